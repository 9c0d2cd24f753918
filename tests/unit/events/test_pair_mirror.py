"""The copy of a ring at the partner, with real rings and real sockets: nothing missing, in order, never in the way."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.events.link.client import Link
from clarion.events.link.frames import Hello, Role, Type
from clarion.events.link.server import Server
from clarion.events.memory.ring import Section
from clarion.events.pair.keeper import Keeper
from clarion.events.pair.mirror import Mirror, Mode
from clarion.instruments import Registry
from clarion.journal.options import Durability
from tests.unit.events.link_harness import (
    ServerProgram,
    StoringHandler,
    emit,
    emit_many,
    new_section,
    texts_of,
    until,
)

HELLO = Hello("a", Role.PARTNER)


class Partner:
    """The other side, which comes and goes."""

    def __init__(self, path: Path) -> None:
        self.section = new_section(path, "partner", mib=16)
        self.handler = StoringHandler(self.section)
        self.server: Server | None = None
        self.address = ("127.0.0.1", 0)

    def come(self) -> None:
        self.server = Server(self.handler, self.address)
        self.address = self.server.address
        self.server.start()

    def go(self) -> None:
        if self.server is not None:
            self.server.close()
            assert self.server.fault is None
            self.server = None

    def texts(self) -> list[str]:
        return texts_of(self.section)


@pytest.fixture
def partner(tmp_path: Path) -> Iterator[Partner]:
    partner = Partner(tmp_path / "partner.ring")
    partner.come()
    yield partner
    partner.go()
    partner.section.close()


@pytest.fixture(params=["power", "process"])
def ring(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Section]:
    durability: Durability = request.param
    section = new_section(tmp_path / "normal.ring", mib=16, durability=durability)
    yield section
    section.close()


@pytest.fixture
def keeper(partner: Partner) -> Iterator[Keeper]:
    keeper = Keeper(partner.address, HELLO, Registry(), stored_s=2.0)
    keeper.start()
    yield keeper
    keeper.close()


def attach(keeper: Keeper, ring: Section) -> Mirror:
    ring.mirror = mirror = keeper.mirror(ring)
    return mirror


def test_a10_in_a_whole_pair_both_have_it_when_emit_returns(keeper: Keeper, partner: Partner, ring: Section) -> None:
    attach(keeper, ring)
    until(lambda: keeper.whole)
    for number in range(50):
        emit(ring, str(number))
        assert partner.texts()[-1] == str(number)
    emit_many(ring, [f"many {number}" for number in range(2_000)])
    assert partner.texts() == texts_of(ring)


def test_a10_what_was_there_before_is_sent_first(keeper: Keeper, partner: Partner, ring: Section) -> None:
    emit_many(ring, [str(number) for number in range(3_000)])
    ring.release(501)
    attach(keeper, ring)
    until(lambda: keeper.whole)
    emit(ring, "new")
    assert partner.texts() == [str(number) for number in range(500, 3_000)] + ["new"]


def test_a10_a_partner_that_was_away_gets_everything_in_order(keeper: Keeper, partner: Partner, ring: Section) -> None:
    mirror = attach(keeper, ring)
    until(lambda: keeper.whole)
    emit(ring, "with")
    partner.go()
    until(lambda: mirror.mode is Mode.AWAY)
    for number in range(200):
        emit(ring, f"without {number}")
    partner.come()
    until(lambda: keeper.whole)
    emit(ring, "with again")
    assert partner.texts() == texts_of(ring)
    assert mirror.degraded == 1


def test_a10_the_handover_to_live_leaves_nothing_out_while_others_emit(
    keeper: Keeper, partner: Partner, ring: Section
) -> None:
    mirror = attach(keeper, ring)
    stop = threading.Event()

    def work(name: int) -> None:
        number = 0
        while not stop.wait(0.0002):
            emit(ring, f"{name} {number}")
            number += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        until(lambda: keeper.whole)
        partner.go()
        until(lambda: mirror.mode is not Mode.LIVE)
        partner.come()
    until(lambda: keeper.whole)
    stop.set()
    for thread in threads:
        thread.join()
    until(lambda: keeper.whole)
    assert partner.texts() == texts_of(ring)
    assert ring.next_sequence > 100


def test_a10_a_partner_that_does_not_answer_delays_emit_once(tmp_path: Path, ring: Section) -> None:
    program = ServerProgram(tmp_path / "away.ring")
    program.start()
    keeper = Keeper(("127.0.0.1", program.port), HELLO, Registry(), stored_s=0.3)
    keeper.start()
    try:
        mirror = attach(keeper, ring)
        until(lambda: keeper.whole)
        program.signal(signal.SIGSTOP)
        before_s = time.monotonic()
        emit(ring, "0")
        first_s = time.monotonic() - before_s
        assert mirror.mode is not Mode.LIVE
        before_s = time.monotonic()
        for number in range(1, 20):
            emit(ring, str(number))
        assert first_s >= 0.25
        assert time.monotonic() - before_s < first_s + 2
        program.signal(signal.SIGCONT)
        until(lambda: keeper.whole)
    finally:
        program.signal(signal.SIGCONT)
        keeper.close()
        program.kill()
    section = Section.open(tmp_path / "away.ring", writable=True)
    assert texts_of(section) == [str(number) for number in range(20)]
    section.close()


def test_a10_a_partner_that_is_killed_again_and_again_misses_nothing(tmp_path: Path, ring: Section) -> None:
    program = ServerProgram(tmp_path / "killed.ring")
    program.start()
    keeper = Keeper(("127.0.0.1", program.port), HELLO, Registry(), stored_s=2.0)
    keeper.start()
    try:
        attach(keeper, ring)
        for turn in range(3):
            until(lambda: keeper.whole)
            killer = threading.Timer(0.02, program.signal, (signal.SIGKILL,))
            killer.start()
            for number in range(100):
                emit(ring, f"{turn} {number}")
            killer.join()
            program.kill()
            program.start()
        until(lambda: keeper.whole)
    finally:
        keeper.close()
        program.kill()
    section = Section.open(tmp_path / "killed.ring", writable=True)
    assert texts_of(section) == texts_of(ring)
    section.close()


class Versions:
    """Emits the version of the note that whoever emits was told of; notes what the partner had not heard of by then."""

    def __init__(self, keeper: Keeper, handler: StoringHandler) -> None:
        self._keeper = keeper
        self._handler = handler
        self.version = 0
        self.early: list[tuple[int, int]] = []
        handler.on_record = self._stored

    def change(self) -> None:
        self._keeper.note(self.version + 1, str(self.version + 1).encode())
        self.version += 1  # and only now somebody records by it

    def _stored(self, text: str) -> None:
        told = [int(content) for kind, _, content in self._handler.told if kind == Type.NOTE]
        if int(text) > max(told, default=0):
            self.early.append((int(text), max(told, default=0)))


def test_a10_the_partner_has_a_note_before_it_gets_what_was_recorded_after_it(
    keeper: Keeper, partner: Partner, ring: Section
) -> None:
    versions = Versions(keeper, partner.handler)
    mirror = attach(keeper, ring)
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.0002):
            emit(ring, str(versions.version))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        versions.change()
        if turn % 3 == 0:
            partner.go()
            until(lambda: mirror.mode is not Mode.LIVE)
            partner.come()
        until(lambda: keeper.whole)
    stop.set()
    for thread in threads:
        thread.join()
    until(lambda: keeper.whole)
    assert versions.early == []
    assert partner.texts() == texts_of(ring)


def test_a10_a_group_that_comes_while_the_note_is_told_waits_and_is_there_when_emit_returns(
    keeper: Keeper, partner: Partner, ring: Section
) -> None:
    mirror = attach(keeper, ring)
    keeper.note(1, b"1")
    until(lambda: keeper.whole)
    for number in range(2, 12):
        keeper.note(number, str(number).encode())
        emit(ring, str(number))
        assert partner.texts()[-1] == str(number)
        assert partner.handler.told[-1] == (Type.NOTE, 0, str(number).encode())
    assert mirror.degraded == 0


def test_a10_what_others_recorded_goes_behind_the_note_too(keeper: Keeper, partner: Partner, tmp_path: Path) -> None:
    versions = Versions(keeper, partner.handler)
    ring = new_section(tmp_path / "other.ring", durability="process")
    mirror = keeper.copy(ring)
    for _ in range(200):
        versions.change()
        emit(ring, str(versions.version))
    until(lambda: keeper.whole)
    assert versions.early == []
    assert partner.texts() == texts_of(ring)
    keeper.remove(mirror)
    until(lambda: not keeper.has(mirror))
    ring.close()


def telling_keeper(partner: Partner) -> tuple[Keeper, list[tuple[bool, int]]]:
    """A keeper, and whether everything was at the partner, with which version of the note, each time it said so."""
    told: list[tuple[bool, int]] = []
    keeper = Keeper(
        partner.address,
        HELLO,
        Registry(),
        stored_s=2.0,
        on_whole=lambda whole, version, _: told.append((whole, version)),
    )
    return keeper, told


def test_a10_a_partner_that_cannot_keep_the_note_has_nothing_that_counts(partner: Partner, ring: Section) -> None:
    keeper, told = telling_keeper(partner)
    mirror = attach(keeper, ring)
    partner.handler.refuses_notes = True
    keeper.note(1, b"1")
    keeper.start()
    try:
        until(lambda: "no room for notes" in mirror.detail)
        emit(ring, "alone")
        assert partner.texts() == []
        assert (True, 0) not in told
        partner.handler.refuses_notes = False
        until(lambda: (True, 1) in told)
        assert partner.texts() == ["alone"]
    finally:
        keeper.close()


def test_a10_a_full_partner_degrades_and_recovers(tmp_path: Path) -> None:
    small = new_section(tmp_path / "small.ring", "partner", mib=1)
    handler = StoringHandler(small)
    server = Server(handler, ("127.0.0.1", 0))
    server.start()
    ring = new_section(tmp_path / "normal.ring", mib=8)
    keeper = Keeper(server.address, HELLO, Registry(), stored_s=2.0)
    keeper.start()
    try:
        mirror = attach(keeper, ring)
        until(lambda: keeper.whole)
        while mirror.mode is Mode.LIVE:
            emit(ring, "x" * 10_000)
        assert "CLN-203" in mirror.detail
        end = ring.next_sequence
        handler.sink.released(ring.producer, end - 1)
        until(lambda: keeper.whole)
        assert small.next_sequence == end
    finally:
        keeper.close()
        server.close()
        ring.close()
        small.close()


def test_a10_a_ring_of_a_dead_process_is_copied_too(keeper: Keeper, partner: Partner, tmp_path: Path) -> None:
    ring = new_section(tmp_path / "dead.ring")
    for number in range(100):
        emit(ring, str(number))
    ring.close()
    dead = Section.open(tmp_path / "dead.ring", writable=False)
    mirror = keeper.copy(dead)
    until(lambda: keeper.whole)
    assert partner.texts() == [str(number) for number in range(100)]
    keeper.remove(mirror)
    assert keeper.whole
    dead.close()


def test_a10_a_signal_that_interrupts_emit_costs_no_event(keeper: Keeper, partner: Partner, ring: Section) -> None:
    class Interrupted(BaseException):
        pass

    def handler(*_: object) -> None:
        raise Interrupted

    attach(keeper, ring)
    until(lambda: keeper.whole)
    before = signal.signal(signal.SIGALRM, handler)
    returned: list[str] = []
    try:
        for number in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + number * 0.00002)
                emit(ring, str(number))
                returned.append(str(number))
            except Interrupted:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        pass
    finally:
        signal.signal(signal.SIGALRM, before)
    emit(ring, "last")
    until(lambda: keeper.whole)
    assert partner.texts() == texts_of(ring)
    assert set(returned) <= set(partner.texts())


@pytest.mark.parametrize(("failures", "live"), [(2, True), (50, False)])
def test_a10_without_memory_a_group_is_tried_again_and_then_recorded_here_only(
    keeper: Keeper, partner: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, live: bool
) -> None:
    ring = new_section(tmp_path / "normal.ring")
    mirror = attach(keeper, ring)
    until(lambda: keeper.whole)
    original, left = Link.put_group, [MemoryError()] * failures

    def put_group(self: Link, producer: bytes, group: memoryview, first: int, end: int, deadline_s: float) -> None:
        if left:
            raise left.pop()
        original(self, producer, group, first, end, deadline_s)

    monkeypatch.setattr(Link, "put_group", put_group)
    emit(ring, "one")
    assert (mirror.degraded == 0) is live
    left.clear()
    emit(ring, "two")
    until(lambda: keeper.whole)
    assert partner.texts() == ["one", "two"]
    ring.close()


def test_a10_whole_and_broken_are_told_once_each(partner: Partner, tmp_path: Path) -> None:
    keeper, told = telling_keeper(partner)
    ring = new_section(tmp_path / "normal.ring")
    attach(keeper, ring)
    keeper.start()
    until(lambda: bool(told) and told[-1][0])
    partner.go()
    until(lambda: not told[-1][0])
    partner.come()
    until(lambda: told[-1][0])
    assert [whole for whole, _ in told][-3:] == [True, False, True]
    keeper.close()
    ring.close()


def test_a10_test_points_stand_at_each_step(partner: Partner, tmp_path: Path) -> None:
    registry = Registry()
    keeper = Keeper(partner.address, HELLO, registry, stored_s=2.0)
    ring = new_section(tmp_path / "normal.ring")
    emit(ring, "before")
    attach(keeper, ring)
    keeper.note(1, b"who the recipients are")
    for name in ("before_put", "before_stored", "after_stored", "before_catch_up", "before_note", "after_note"):
        registry.arm(f"events.pair.{name}=log:{tmp_path}/log*always")
    keeper.start()
    until(lambda: keeper.whole)
    emit(ring, "after")
    assert all(reading.value for reading in registry.sense("events.pair.*").values())
    keeper.close()
    ring.close()
