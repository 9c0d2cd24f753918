"""A real server knows every verb that the documents of requests name."""

from __future__ import annotations

import re
from pathlib import Path

from clarion import sync
from clarion.errors import RequestError, UnknownVerb


def test_b17_every_verb_of_the_reference_is_there(connection: sync.Connection) -> None:
    """What the tables of docs/reference/requests.md and docs/formats/wire.md name, a server knows."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    text = (docs / "reference/requests.md").read_text() + (docs / "formats/wire.md").read_text()
    verbs = [
        verb
        for table in re.findall(r"^\| verb \| arguments \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
        for verb in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    ]
    assert {"status", "resend", "resolve", "consumers", "commit", "temporary"} <= set(verbs)
    for verb in verbs:
        try:
            connection.command(verb, {})
        except RequestError as error:
            assert not isinstance(error, UnknownVerb), verb
