"""The reference documents are true: every verb, frame and entry is described, and offsets are where they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from clarion.cli.main import app
from clarion.core.entries import Kind, Publish, Stage
from clarion.core.policies import FIELDS
from clarion.wire.frames import Type

DOCS = Path(__file__).resolve().parents[2] / "docs"
_LARGE = {"FRAGMENT", "FRAGMENT_STORED", "PUBLISH_LARGE"}
"""Large bodies have a section of their own."""
_KIND_LAST = Kind.RETAIN
_OFFSET = re.compile(r"^\| (\d+) \| (\d+) \| (.+?) \|$", re.MULTILINE)


def _read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def _verbs(group: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield (*path, command.name or command.callback.__name__)
    for below in group.registered_groups:
        assert below.name is not None and below.typer_instance is not None
        yield from _verbs(below.typer_instance, (*path, below.name))


@pytest.mark.parametrize("verb", sorted(_verbs(app)))
def test_every_command_is_described(verb: tuple[str, ...]) -> None:
    described = re.findall(r"`([a-z][^`]*)`", _read("reference/cli.md"))
    words = [re.split(r"[ \[]+", text.replace("\\|", "|")) for text in described]
    assert any(
        len(said) >= len(verb)
        and all(one in other.rstrip("]").split("|") for one, other in zip(verb, said, strict=False))
        for said in words
    ), " ".join(verb)


@pytest.mark.parametrize("kind", [kind for kind in Type if kind.name not in _LARGE])
def test_every_frame_has_its_row(kind: Type) -> None:
    assert f"\n| {kind.value} | {kind.name} | " in _read("formats/wire.md")


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind <= _KIND_LAST])
def test_every_entry_has_its_row(kind: Kind) -> None:
    assert f"\n| {kind.value} | {kind.name} | " in _read("formats/log.md")


def test_the_heads_with_offsets_are_as_described() -> None:
    """Each field of a head is found at its offset, and nothing is between them."""
    batch = Publish(0x01020304, 0x05060708, 0, 0x1112131415161718, 1 << 120, 21, 22, 23, 9, 2)
    stage = Stage(batch, 31, 32, bytes(range(24))).encode()
    _, publish_text, stage_text = re.split(r"^### (?:PUBLISH|STAGE)$", _read("formats/log.md"), flags=re.MULTILINE)
    stage_text = stage_text.partition("\n#")[0]  # other heads follow
    rows = [(int(at), int(size), text) for at, size, text in _OFFSET.findall(publish_text)]
    assert sum(size for _, size, _ in rows) == len(batch.encode())
    rows += [
        (int(at), int(size), text) for at, size, text in _OFFSET.findall(stage_text) if int(at) >= len(batch.encode())
    ]
    at = 0
    found: dict[str, bytes] = {}
    for offset, size, text in rows:
        assert offset == at, text
        found[text.split(",")[0].split(":")[0].split(" (")[0]] = stage[offset : offset + size]
        at += size
    assert at == len(stage)
    little = {name: int.from_bytes(data, "little") for name, data in found.items() if len(data) <= 8}
    assert little["destination"] == batch.destination and little["messages"] == batch.messages
    assert little["floor of the producer"] == batch.floor and little["first sequence"] == 0
    assert (little["stored"], little["earliest expiry"], little["latest expiry"]) == (21, 22, 23)
    assert (little["priority"], little["until"], little["zero"]) == (9, 2, 0)
    assert found["id of the first message"] == (1 << 120).to_bytes(16, "big")
    assert little["number of the stage"] == 31 and little["due"] == 32
    assert found["transaction; zero = none"] == bytes(range(24))


def test_every_field_of_a_policy_is_described() -> None:
    assert all(f"| `{field}` |" in _read("operating/policies.md") for field in FIELDS)
