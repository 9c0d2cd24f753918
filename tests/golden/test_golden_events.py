"""An event system that an earlier version left behind is taken up by this one: what is owed is delivered, nothing else.

`make_events.py` made the directory, and says what happened in it: processes were killed, a recipient has a filter that
changed, one was removed, one event was given up, one was recorded for nobody knows whom.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clarion.events import EventSystem
from clarion.events.control import ask
from clarion.events.look import status
from tests.golden.archives import unpack
from tests.golden.make import FOLDER
from tests.golden.make_events import ARCHIVE, CONTENT, OPTIONS, PAGER_FILTERS, WAIT_S, Taker, _until, listed

KEPT: dict[str, Any] = json.loads((FOLDER / CONTENT).read_text("utf-8"))
KNOWN = {event["id"]: {key: value for key, value in event.items() if key != "section"} for event in KEPT["events"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the directory of then."""
    unpack(FOLDER / ARCHIVE, tmp_path / "events")
    return tmp_path / "events"


@pytest.fixture
def takers() -> dict[str, Taker]:
    return {"log": Taker("log"), "pager": Taker("pager", PAGER_FILTERS[1])}


@pytest.fixture
def system(path: Path, takers: dict[str, Taker]) -> Iterator[EventSystem]:
    """The code of now in it."""
    with EventSystem.open(path, takers.values(), **OPTIONS) as opened:
        yield opened


def test_a05_an_old_directory_is_seen_while_nobody_delivers(path: Path) -> None:
    seen = status(path)
    assert {one["name"]: {"kind": one["kind"], "recorded": one["recorded"]} for one in seen["sections"]} == KEPT[
        "sections"
    ]
    waiting = {one["name"]: one["waiting"] for one in seen["sections"] if one["waiting"]}
    held = [event["section"] for event in KEPT["events"]]
    assert waiting == {name: held.count(name) for name in set(held)}
    assert all(one["lost"] == 0 and one["owner"].endswith(" (gone)") for one in seen["sections"])
    assert len(seen["problems"]) == 1  # that nobody delivers


def test_a05_a09_an_old_event_system_delivers_exactly_what_it_owes(
    path: Path, system: EventSystem, takers: dict[str, Taker]
) -> None:
    system.ready()
    assert system.wait_until_delivered(WAIT_S)
    for name, taker in takers.items():
        assert sorted(taker.ids) == sorted(KEPT["owed"][name])
        assert [listed(event) for event in taker.events] == [KNOWN[identity] for identity in taker.ids]
    sections = {event["id"]: event["section"] for event in KEPT["events"]}
    order = [sections[identity] == "0-initialisation" for identity in takers["log"].ids]
    assert order == sorted(order, reverse=True)  # what was recorded while initialising goes first
    found = status(path)
    assert found["problems"] == [] and all(one["lost"] == 0 for one in found["sections"])
    assert {one["name"]: one["dead"] for one in found["recipients"]} == {"log": 0, "pager": 1}
    assert ask(path, "dead") == KEPT["dead"]


def test_a05_a08_what_was_delivered_of_an_old_directory_does_not_come_again(
    path: Path, takers: dict[str, Taker]
) -> None:
    for life in range(2):
        with EventSystem.open(path, takers.values(), **OPTIONS) as system:
            system.ready()
            assert system.wait_until_delivered(WAIT_S)
            fresh = system.emit("golden.new", source="volume/1", severity="alert", data={"n": 300 + life})
            assert system.wait_until_delivered(WAIT_S)
        assert [taker.ids[-1] for taker in takers.values()] == [fresh, fresh]
    for name, taker in takers.items():
        assert len(taker.ids) == len(set(taker.ids)) == len(KEPT["owed"][name]) + 2
        assert not {event["id"] for event in KEPT["dead"]} & set(taker.ids)


def test_a05_an_old_dead_event_is_sent_again(path: Path, system: EventSystem, takers: dict[str, Taker]) -> None:
    system.ready()
    assert system.wait_until_delivered(WAIT_S)
    (dead,) = KEPT["dead"]
    assert ask(path, "dead_resend", {"numbers": [dead["number"]]}) == {"count": 1}
    _until(lambda: dead["id"] in takers["pager"].ids, "the dead event is delivered")
    event = takers["pager"].events[-1]
    assert (event.id, event.type, event.data) == (dead["id"], dead["type"], {"n": 0})
    _until(lambda: not ask(path, "dead"), "it is dead no more")
    assert dead["id"] not in takers["log"].ids
