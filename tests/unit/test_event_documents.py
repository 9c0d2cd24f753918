"""The documents of the event system are true: entries, frames, verbs, settings and steps are there, offsets right."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clarion.events import daemon
from clarion.events import settings as events_settings
from clarion.events.distribution import RetryPolicy
from clarion.events.ledger import entries
from clarion.events.link import confirmations, frames
from clarion.events.look import handlers, status
from clarion.events.memory import layout
from clarion.events.pair import memory_file
from clarion.events.recipients import settings as recipient_settings
from clarion.events.steps import STEPS
from clarion.events.system import EventSystem

DOCS = Path(__file__).resolve().parents[2] / "docs"
_ROW = re.compile(r"^\| (\d+) \| (\d+) \| ", re.MULTILINE)


def _read(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def _part(name: str, start: str) -> list[tuple[int, int]]:
    """(offset, bytes) of the first table behind a text."""
    text = _read(name)
    at = text.index(start) + len(start)
    table = text.index("\n|", at)
    return [(int(offset), int(size)) for offset, size in _ROW.findall(text[table : text.index("\n\n", table)])]


def _offsets(form: str) -> list[tuple[int, int]]:
    """(offset, bytes) of the fields of a struct; a pad is a field too."""
    found, at = [], 0
    for field in re.findall(r"\d*[a-zA-Z]", form.lstrip("<")):
        size = struct.calcsize("<" + field)
        found.append((at, size))
        at += size
    return found


CHECKSUM = struct.calcsize("<I")
TABLES: dict[str, tuple[str, str, list[tuple[int, int]]]] = {
    "header": ("formats/events.md", "Header (72 bytes", [*_offsets(layout._HEADER.format), (68, CHECKSUM)]),
    "state": ("formats/events.md", "State (420 bytes", [*_offsets("<8sQQQ"), (32, 384), (416, CHECKSUM)]),
    "head": ("formats/events.md", "The head has 32 bytes:", _offsets(layout.HEAD.format)),
    "foreign head": (
        "formats/events.md",
        "That of a foreign event has 56:",
        [*_offsets(layout.ORIGIN.format), (24, layout.HEAD.size)],
    ),
    "pair": ("formats/events.md", "### Pair", [*_offsets(memory_file._COPY.format), (40, CHECKSUM)]),
    "frame": ("formats/link.md", "## Frame", _offsets(frames.HEADER.format)),
    "hello": ("formats/link.md", "## HELLO", _offsets(frames._HELLO.format)),
    "put": ("formats/link.md", "## PUT and STORED", _offsets(frames._PUT.format)),
    "heartbeat": ("formats/link.md", "## HEARTBEAT", _offsets(frames._HEARTBEAT.format)),
    "confirmations": ("formats/link.md", "## Confirmations", _offsets(confirmations._CONFIRMATIONS.format)),
}


@pytest.mark.parametrize("name", TABLES)
def test_offsets_are_as_described(name: str) -> None:
    page, start, wanted = TABLES[name]
    assert _part(page, start) == wanted


def test_the_sizes_of_the_ring_file_are_as_described() -> None:
    text = _read("formats/events.md")
    for offset in (*layout.HEADER_OFFSETS, *layout.STATE_OFFSETS):
        assert f"\n| {offset} | 512 | " in text
    assert f"\n| {layout.RING_OFFSET} | ring bytes | " in text
    assert f"{layout.OWN_BYTES} bytes before its body, a foreign one {layout.FOREIGN_BYTES}." in text
    assert layout._STATE.size + CHECKSUM == 420 and layout._HEADER.size + CHECKSUM == 72
    kinds = ", ".join(f"{number} {kind}" for number, kind in enumerate(layout.KINDS))
    assert f"kind: {kinds}".replace("4 state", "4 state (not used)") in text


@pytest.mark.parametrize("kind", entries.Kind)
def test_every_entry_of_the_ledger_has_its_row(kind: entries.Kind) -> None:
    (row,) = re.findall(rf"^\| {kind.value} \| {kind.name} \| (.*) \|$", _read("formats/ledger.md"), re.MULTILINE)
    fields = row.partition(" | ")[0]
    if kind is not entries.Kind.DEAD:  # its fields are below
        assert _depth_commas(fields) == len(entries._TYPES[kind].__struct_fields__), fields


def _depth_commas(text: str) -> int:
    """How many fields a row names: commas outside of brackets, and one `and` as the last comma."""
    flat = re.sub(r"\(.*?\)", "", text)
    while "[" in flat:
        flat = re.sub(r"\[[^\[\]]*\]", "", flat)
    flat = flat.replace(", the newest last", "").replace(" and ", ", ").partition(". ")[0]
    return flat.count(",") + 1


@pytest.mark.parametrize("kind", frames.Type)
def test_every_frame_of_the_link_has_its_row(kind: frames.Type) -> None:
    assert f"\n| {kind.value} | {kind.name} | " in _read("formats/link.md")


def test_every_verb_and_every_field_of_control_is_described(tmp_path: Path) -> None:
    text = _read("reference/events-control.md")

    async def deliver(_events: Any) -> None: ...

    with EventSystem.open(tmp_path, [deliver], capacity=10, event_bytes_max=1024, durability="process") as system:
        system.ready()
        system.emit("some.event")
        assert system.wait_until_delivered()
        assert system._engine is not None
        verbs = handlers(system, system._engine)
        found = status(tmp_path)
        report = system._engine.report.dump()
    absent = status(tmp_path)
    rows = (found, absent, found["sections"][0], found["recipients"][0], report, verbs)
    for row in rows:
        assert [name for name in row if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "described",
    [
        events_settings.EventsSettings,
        events_settings.PairSettings,
        events_settings.MultiplexSettings,
        RetryPolicy,
        *recipient_settings._Any.__args__,
    ],
)
def test_every_setting_is_described(described: type[msgspec.Struct]) -> None:
    text = _read("operating/settings.md").partition("## Event systems")[2]
    tables = {"recipients", "pair", "multiplex"}
    assert [name for name in described.__struct_fields__ if name not in tables and f"`{name}`" not in text] == []
    assert all(f"| `{kind}` |" in text for kind in recipient_settings.TYPES)


def test_the_example_of_the_settings_is_understood(tmp_path: Path) -> None:
    example = _read("operating/settings.md").partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "events.toml").write_text(example, "utf-8")
    settings = events_settings.load(tmp_path / "events.toml")
    recipients, policies = daemon.recipients_of(settings, "events.toml")
    assert len(recipients) == 2 and policies["pager"].give_up_age_ms == 7 * 86_400_000


def test_every_step_is_found_in_the_origins() -> None:
    text = _read("reference/origins.md")
    assert [name for name in STEPS if f"`{name}`" not in text] == []
