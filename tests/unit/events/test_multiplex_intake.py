"""How events come into a multiplexer, without a network: known ones, filters, no room, no memory (A-03, A-11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clarion.errors import BadArgument, BadFrame, Blocked, UnknownFrame
from clarion.events.encoding import Encoder
from clarion.events.link import frames
from clarion.events.link.confirmations import pack_confirmations, unpack_confirmations
from clarion.events.link.frames import Heartbeat, Hello, Role, Type
from clarion.events.link.server import Peer
from clarion.events.memory import FLAG_UNDECIDED, Recorded, Section, ring_bytes_for
from clarion.events.memory.layout import ORIGIN
from clarion.events.multiplex import signals
from clarion.events.multiplex.intake import Intake
from clarion.events.multiplex.origins import COMPLETE, HELD
from clarion.events.routing import Route, Routes
from clarion.events.steps import Steps
from clarion.instruments import Registry

A, B = 7 << 64, 9 << 64
EVENT_BYTES = 512


class _Server:
    """Notes what is posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, int, list[tuple[str, list[tuple[int, int, int]]]]]] = []

    def post(self, name: str, kind: int, payload: bytes, flags: int = 0) -> bool:
        assert kind == Type.CONFIRMED
        _, token, confirmations = unpack_confirmations(memoryview(payload))
        self.posted.append((name, token, confirmations))
        return True


class World:
    def __init__(self, path: Path, *, routes: Routes, early: bool = True, capacity: int = 50) -> None:
        self.routes = routes
        if path.exists():
            self.section = Section.open(path, writable=True)
        else:
            self.section = Section.create(
                path, name="multiplex", kind="multiplex", producer=1 << 64,
                bytes_=ring_bytes_for(capacity, EVENT_BYTES, "process"), event_bytes_max=EVENT_BYTES,
                durability="process",
            )  # fmt: skip
        self.rung = 0
        self.intake = Intake(
            self.section, lambda: self.routes, Steps(Registry()), self._ring,
            name="m", frame_bytes_max=1 << 18, confirm_early=early, forward=False,
        )  # fmt: skip
        self.server = _Server()
        self.intake.server = self.server  # type: ignore[assignment]
        self.intake.read_memory()
        self.peer = Peer(0, 4_096)
        self.peer.hello = Hello("sender-1", Role.MULTIPLEX)

    def _ring(self) -> None:
        self.rung += 1

    def store(self, *events: Recorded) -> int:
        return self.intake.store(self.peer, A, [record_of(event) for event in events])

    def stored(self) -> list[tuple[int, int]]:
        found = self.section.read(self.section.first_sequence, 10_000, 1 << 30)
        return [(event.producer, event.sequence) for event in found]


def event(producer: int, sequence: int, severity: str = "info", size: int = 10) -> Recorded:
    level = {"info": 20, "error": 40}[severity]
    encoded = Encoder(4_096).encode("disk.full", "volume/7", level, 1 << 60, b"x" * size)
    return Recorded(producer, sequence, 1 << 60, level, 0xFF, 99, 3, bytes(encoded.headers), bytes(encoded.body))


def record_of(one: Recorded) -> memoryview:
    return memoryview(ORIGIN.pack(frames.pack_producer(one.producer), one.sequence) + frames.rest_of(one))


EVERYBODY = Routes(3, [Route(0, "log"), Route(2, "pager")])
FILTERED = Routes(4, [Route(0, "log"), Route(2, "pager", "severity_level >= 40")])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "multiplex.ring", routes=EVERYBODY)
    yield world
    world.section.close()


def test_a11_events_are_recorded_once_for_the_recipients_of_here(world: World) -> None:
    assert world.store(event(A, 1), event(A, 2), event(A, 2), event(B, 5)) == 3
    assert world.store(event(A, 2), event(A, 3), event(B, 5)) == 4
    assert world.stored() == [(A, 1), (A, 2), (B, 5), (A, 3)]
    first = world.section.read(1, 1, 1 << 20)[0]
    assert (first.bits, first.epoch, first.flags) == (0b101, 3, 0)
    assert world.rung == 2
    assert not world.server.posted


def test_a11_filters_decide_when_an_event_is_recorded(world: World) -> None:
    world.routes = FILTERED
    world.store(event(A, 1), event(A, 2, "error"))
    assert [(one.bits, one.epoch) for one in world.section.read(1, 9, 1 << 20)] == [(0b001, 4), (0b101, 4)]


def test_a11_without_recipients_the_engine_decides(world: World) -> None:
    world.routes = Routes()
    world.store(event(A, 1))
    assert world.section.read(1, 1, 1 << 20)[0].flags == FLAG_UNDECIDED


def test_a03_without_memory_for_a_filter_the_engine_decides(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.routes = FILTERED

    def fails(*_: Any) -> int:
        raise MemoryError

    monkeypatch.setattr(Routes, "decide", fails)
    world.store(event(A, 1, "error"))
    found = world.section.read(1, 1, 1 << 20)[0]
    assert (found.bits, found.flags, found.epoch) == (0b101, FLAG_UNDECIDED, 4)


def test_a11_what_memory_holds_is_known_after_a_restart(tmp_path: Path, world: World) -> None:
    world.store(event(A, 1), event(A, 2), event(B, 1))
    world.section.close()
    again = World(tmp_path / "multiplex.ring", routes=EVERYBODY)
    again.store(event(A, 2), event(B, 1), event(B, 2))
    assert again.stored() == [(A, 1), (A, 2), (B, 1), (B, 2)]
    again.section.close()


def test_a11_an_event_that_was_complete_is_not_recorded_again_and_its_late_sender_hears_of_it(tmp_path: Path) -> None:
    world = World(tmp_path / "late.ring", routes=EVERYBODY, early=False)
    world.store(event(A, 1), event(A, 2), event(A, 3))
    world.intake.origins.complete(A, 1, 3)
    world.section.release(3)
    world.store(event(A, 1), event(A, 2), event(A, 3))
    assert world.stored() == [(A, 3)]
    assert world.server.posted == [("sender-1", signals.OF_ALL, [(signals.ASKED, [(A, 1, 3)])])]
    world.section.close()


@pytest.mark.parametrize("early", [True, False])
def test_a11_a_sender_that_asks_hears_what_is_known(tmp_path: Path, early: bool) -> None:
    world = World(tmp_path / "asked.ring", routes=EVERYBODY, early=early)
    world.store(*(event(A, number) for number in range(1, 6)))
    world.intake.origins.complete(A, 1, 3)
    asked = pack_confirmations([(signals.ASKED, [(A, 2, 9), (B, 1, 1 << 40)])])
    world.intake.control(world.peer, Type.NOTE, 0, memoryview(asked))
    known = [(A, 2, 3)] if not early else [(A, 2, 3), (A, 3, 6)]
    assert world.server.posted == [
        ("sender-1", signals.OF_ALL, [(signals.ASKED, known)]),
        ("sender-1", signals.UNKNOWN, [(signals.ASKED, [(A, 6, 9), (B, 1, 1 << 40)])]),
    ]
    world.section.close()


def test_a11_confirmations_go_to_who_sent_last(world: World) -> None:
    world.store(event(A, 1))
    other = Peer(1, 4_096)
    other.hello = Hello("sender-2", Role.MULTIPLEX)
    world.intake.store(other, A, [record_of(event(A, 1)), record_of(event(B, 1))])
    world.intake.confirm("log", [(A, 1, 2), (B, 1, 2)], signals.OF_RECIPIENT)
    assert world.server.posted == [("sender-2", signals.OF_RECIPIENT, [("log", [(A, 1, 2), (B, 1, 2)])])]
    world.intake.lost(other)
    world.intake.confirm("log", [(A, 1, 2)], signals.OF_RECIPIENT)
    assert len(world.server.posted) == 1


def test_a11_a_full_memory_keeps_what_fits_and_refuses_the_rest_in_order(tmp_path: Path) -> None:
    world = World(tmp_path / "full.ring", routes=EVERYBODY, capacity=8)
    events = [event(A, number, size=300) for number in range(1, 40)]
    with pytest.raises(Blocked):
        world.store(*events)
    count = len(world.stored())
    assert 0 < count < len(events)
    assert world.stored() == [(A, number) for number in range(1, count + 1)]
    world.section.release(count + 1)
    with pytest.raises(Blocked):
        world.store(*events)
    assert world.stored()[0] == (A, count + 1)
    assert world.intake.origins.state(A, count) == HELD
    world.section.close()


@pytest.mark.parametrize("fails_at", range(1, 14))
def test_a03_want_of_memory_at_any_moment_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """The server handles the same frame again; what was staged before is recognised."""
    world = World(tmp_path / "starved.ring", routes=EVERYBODY)
    passed = 0

    def fragile(function: Any, after: bool) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal passed
            passed += 1
            if not after and passed == fails_at:
                raise MemoryError
            result = function(*arguments, **named)
            passed += 1
            if after and passed == fails_at:
                raise MemoryError
            return result

        return call

    intake = world.intake
    monkeypatch.setattr(intake.origins, "hold", fragile(intake.origins.hold, True))
    monkeypatch.setattr(intake.origins, "state", fragile(intake.origins.state, False))
    monkeypatch.setattr(world.section, "put_many", fragile(world.section.put_many, True))
    monkeypatch.setattr(world.section.writer, "flush", fragile(world.section.writer.flush, False))
    events = [event(A, 1), event(A, 2), event(B, 1), event(A, 3)]
    for attempt in range(3):
        try:
            world.store(*events)
            break
        except MemoryError:
            assert attempt == 0
    assert world.stored() == [(A, 1), (A, 2), (B, 1), (A, 3)]
    assert [intake.origins.state(A, number) for number in range(1, 5)] == [HELD, HELD, HELD, None]
    world.section.close()


@pytest.mark.parametrize(
    ("producer", "sequence"), [(0, 1), (A + 1, 1), (A, 0), (A, 1 << 48)], ids=["none", "odd", "zero", "large"]
)
def test_a11_ids_that_nobody_gives_are_refused(world: World, producer: int, sequence: int) -> None:
    with pytest.raises(BadFrame):
        world.store(event(producer, sequence))
    assert world.stored() == []


def test_a11_headers_that_nobody_can_read_are_delivered_as_they_are(world: World) -> None:
    world.routes = FILTERED
    one = event(A, 1)
    one.headers = b"\xc1nonsense"
    world.store(one)
    assert bytes(world.section.read(1, 1, 1 << 20)[0].headers) == b"\xc1nonsense"


def test_a11_other_frames(world: World) -> None:
    intake = world.intake
    with pytest.raises(BadArgument):
        intake.hello(world.peer, Hello("x", Role.PARTNER))
    welcome = intake.hello(world.peer, Hello("x", Role.MULTIPLEX))
    assert (welcome.name, welcome.role, welcome.epoch) == ("m", Role.MULTIPLEX, signals.CONFIRMS_EARLY)
    assert intake.heartbeat(world.peer, Heartbeat(7)).echo == 7
    with pytest.raises(UnknownFrame):
        intake.control(world.peer, Type.GIVE_BACK, 0, memoryview(b""))
    with pytest.raises(BadFrame):
        intake.control(world.peer, Type.NOTE, 0, memoryview(b"x"))
    world.store(event(A, 1))
    intake.origins.complete(A, 1, 2)
    intake.control(world.peer, Type.RELEASED, 0, memoryview(frames.pack_released(A, 2)))
    assert intake.origins.floor(A) == 2
    assert intake.origins.state(A, 1) == COMPLETE
