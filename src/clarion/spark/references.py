"""References of large bodies: text that says everything that is needed to read the body from its broker.

    clarion-body:1/topic:films/42/000102…16/104857600/9ae0daaf
                 │ │           │  │         │         └ CRC32C, hexadecimal
                 │ │           │  │         └ bytes
                 │ │           │  └ id of the stream, hexadecimal
                 │ │           └ sequence of the message
                 │ └ destination, with its kind
                 └ version of this form

No name of a destination has a slash, so the parts cannot be confused.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from clarion.core.streams import ID_BYTES
from clarion.core.wellknown import receivable
from clarion.errors import BadArgument, BadName

PREFIX: Final = "clarion-body:1/"
_FORM = re.compile(
    re.escape(PREFIX) + rf"([^/]+)/(\d{{1,19}})/([0-9a-f]{{{2 * ID_BYTES}}})/(\d{{1,19}})/([0-9a-f]{{8}})", re.ASCII
)


class Reference(NamedTuple):
    """A large body at its broker. It is there until its message is confirmed by everybody."""

    destination: str
    """With its kind: `topic:NAME` or `queue:NAME`."""
    sequence: int
    """Of its message."""
    stream: bytes
    size: int
    checksum: int
    """CRC32C of the whole body."""


def is_sound(stream: bytes, size: int, checksum: int) -> bool:
    """Whether headers that say this of a large body can be those of one."""
    return len(stream) == ID_BYTES and 0 <= size < 1 << 63 and 0 <= checksum < 1 << 32


def format_reference(reference: Reference) -> str:
    """The text of a reference."""
    destination, sequence, stream, size, checksum = reference
    return f"{PREFIX}{destination}/{sequence}/{stream.hex()}/{size}/{checksum:08x}"


def parse_reference(text: str) -> Reference:
    """The inverse of `format_reference`. Raises `BadArgument` for any other text."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise BadArgument(argument="reference", detail=f"{str(text)[:80]!a} is not the reference of a large body")
    try:
        receivable(found[1])
    except BadName as error:
        raise BadArgument(argument="reference", detail=str(error)) from None
    return Reference(found[1], int(found[2]), bytes.fromhex(found[3]), int(found[4]), int(found[5], 16))
