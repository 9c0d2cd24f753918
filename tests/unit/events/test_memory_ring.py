"""A section as its users see it: threads, signals, forks, mirrors, full rings (A-02, A-03, A-05)."""

from __future__ import annotations

import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.errors import Blocked, EventTooLarge, SectionDamaged, SectionInUse, WrongProcess
from clarion.events.memory import Recorded, Section, records_of, ring_bytes_for
from clarion.journal.options import Durability

PRODUCER = 9 << 64
EVENT_BYTES = 2048


def make(path: Path, durability: Durability, bytes_: int = 1 << 20, name: str = "own") -> Section:
    return Section.create(
        path / f"{name}.ring", name=name, kind="normal", producer=PRODUCER, bytes_=bytes_,
        event_bytes_max=EVENT_BYTES, durability=durability,
    )  # fmt: skip


@pytest.fixture(params=["power", "process"])
def section(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Section]:
    made = make(tmp_path, request.param)
    yield made
    made.close()


def emit(section: Section, number: int) -> int:
    return section.record("test.event", "test", 40, 1000 + number, {"number": number}, bits=3, epoch=7)


def read_all(section: Section) -> list[Recorded]:
    found: list[Recorded] = []
    while some := section.read(found[-1].at + 1 if found else section.first_sequence, 100, 1 << 16):
        found += some
    return found


def test_a02_eight_threads_get_dense_sequences_and_all_is_read_back(section: Section) -> None:
    sequences: list[list[int]] = [[] for _ in range(8)]

    def work(mine: list[int]) -> None:
        mine.extend(emit(section, number) for number in range(100))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for mine in sequences for number in mine) == list(range(1, 801))
    assert all(mine == sorted(mine) for mine in sequences)
    found = read_all(section)
    assert [each.at for each in found] == list(range(1, 801))
    assert {(each.bits, each.epoch, each.severity, each.producer) for each in found} == {(3, 7, 40, PRODUCER)}


def test_a03_full_is_refused_counted_and_never_written_over(section: Section, tmp_path: Path) -> None:
    with pytest.raises(Blocked):
        for number in range(100_000):
            emit(section, number)
    count = section.next_sequence - 1
    other = Section.open(tmp_path / "own.ring", writable=False)
    assert section.refused == other.refused == 1
    other.close()
    assert [each.at for each in read_all(section)] == list(range(1, count + 1))
    began = time.monotonic()
    with pytest.raises(Blocked):
        section.record("test.event", "test", 40, 1, None, wait_s=0.05)
    assert time.monotonic() - began >= 0.05
    waiting = threading.Timer(0.02, section.release, (count // 2,))
    waiting.start()
    assert section.record("test.event", "test", 40, 1, None, wait_s=None) == count + 1
    waiting.join()


def test_a03_the_promised_number_of_events_fits_at_any_place_of_the_ring(tmp_path: Path) -> None:
    for durability in ("power", "process"):
        section = make(tmp_path, durability, ring_bytes_for(20, EVENT_BYTES, durability), durability)
        body = bytes(EVENT_BYTES - len(section.encoder.encode("a", "b", 40, 1, b"").headers))
        for round_ in range(30):
            emit(section, round_)
            section.release(section.next_sequence)
            for _ in range(20):
                section.record("a", "b", 40, 1, body)
            section.release(section.next_sequence)
        section.close()


def test_a03_a_read_only_section_of_another_process_sees_and_releases(section: Section, tmp_path: Path) -> None:
    other = Section.open(tmp_path / "own.ring", writable=False)
    for number in range(50):
        emit(section, number)
    assert other.next_sequence == 51
    assert read_all(other) == read_all(section)
    other.release(40)
    with pytest.raises(Blocked):
        emit(other, 1)
    while section.next_sequence < (20_000 if section.durability == "process" else 1_000):
        emit(section, 1)
        other.release(other.next_sequence)
    other.close()
    with pytest.raises(SectionInUse):
        Section.open(tmp_path / "own.ring", writable=True)


def test_a02_append_many_is_all_or_nothing(section: Section) -> None:
    events = [section.encoder.encode("a", "b", 40, number, bytes(500)) for number in range(1000)]
    assert section.append_many(events, 1, 1) == range(1, 1001)
    with pytest.raises(Blocked):
        section.append_many(events, 1, 1)
    assert section.next_sequence == 1001
    section.release(1001)
    assert section.append_many(events, list(range(1000)), 1) == range(1001, 2001)
    assert [each.bits for each in read_all(section)] == list(range(1000))
    with pytest.raises(Blocked, match="more than it has"):
        section.append_many(events * 10, 1, 1)


def test_a10_foreign_events_keep_their_id(section: Section) -> None:
    origin = Recorded(5 << 64, 77, 1, 40, 3, 2, 1, b"headers", b"body")
    assert section.put(origin) == 1
    assert section.put_many([origin, origin]) == range(2, 4)
    found = read_all(section)
    assert [(each.producer, each.sequence, each.at) for each in found] == [(5 << 64, 77, at) for at in (1, 2, 3)]
    assert (found[0].headers, found[0].body, found[0].bits, found[0].flags) == (b"headers", b"body", 3, 1)


class Copies:
    """A partner that keeps what it is given."""

    def __init__(self) -> None:
        self.found: list[Recorded] = []
        self.unfinished = 0

    def begin(self, group: memoryview, first: int, end: int) -> None:
        events = list(records_of(group, PRODUCER))
        assert [each.at for each in events] == list(range(first, end))
        self.found += events
        self.unfinished += 1

    def finish(self) -> None:
        self.unfinished -= 1


def test_a10_a_mirror_gets_every_record_before_append_returns(section: Section) -> None:
    emit(section, 0)
    copies = Copies()
    section.mirror = copies
    for number in range(1, 12_000 if section.durability == "process" else 400):
        at = emit(section, number)
        assert copies.found[-1].at == at and not copies.unfinished
        section.release(at)
    events = [section.encoder.encode("a", "b", 40, number, bytes(500)) for number in range(500)]
    section.append_many(events, 1, 1)
    assert [each.at for each in copies.found] == list(range(2, section.next_sequence))
    section.mirror = None
    emit(section, 1)


def test_a02_a_signal_handler_in_the_middle_of_append_gets_blocked_or_succeeds(section: Section) -> None:
    outcomes: list[object] = []

    def handler(number: int, frame: object) -> None:
        try:
            outcomes.append(emit(section, 1))
        except Blocked as error:
            outcomes.append(error)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        mine: list[int] = []
        while len(outcomes) < 60 or len(mine) < 200:
            mine.append(emit(section, 0))
            section.release(section.next_sequence - 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    sequences = sorted([*mine, *(each for each in outcomes if isinstance(each, int))])
    assert sequences == list(range(1, section.next_sequence))


class Interrupted(Exception):
    pass


def test_a05_an_exception_of_a_signal_handler_leaves_the_ring_consistent(section: Section, tmp_path: Path) -> None:
    def handler(number: int, frame: object) -> None:
        raise Interrupted

    told: dict[int, int] = {}
    interrupted = 0
    before = signal.signal(signal.SIGALRM, handler)
    number = 0
    while interrupted < 150:
        number += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.00001 * (number % 30 + 1))
            at = emit(section, number)
            told[at] = number
        except Interrupted:
            interrupted += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            pass
        if number % 300 == 0:
            check_told(section, told)
            section.release(section.next_sequence)
            told.clear()
    signal.signal(signal.SIGALRM, before)
    emit(section, 0)
    check_told(section, told)
    section.close()
    again = Section.open(tmp_path / "own.ring", writable=True)
    check_told(again, told)
    assert again.lost == again.torn == []
    again.close()


def check_told(section: Section, told: dict[int, int]) -> None:
    found = {each.at: each.time_ns - 1000 for each in read_all(section)}
    assert {at: found[at] for at in told} == told
    assert list(found) == list(range(section.first_sequence, section.next_sequence))


def test_a02_a_forked_child_cannot_write_its_parents_section(section: Section, tmp_path: Path) -> None:
    emit(section, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            emit(section, 2)
        except WrongProcess:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert emit(section, 2) == 2


def test_a05_what_is_no_section_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.ring").write_bytes(bytes(100_000))
    with pytest.raises(SectionDamaged):
        Section.open(tmp_path / "bad.ring", writable=True)
    section = make(tmp_path, "process")
    with pytest.raises(EventTooLarge):
        section.record("a", "b", 40, 1, bytes(EVENT_BYTES))
    section.close()
    section.close()


def grow(section: Section, count: int) -> int:
    """Bytes that appending and releasing leave behind."""
    for number in range(2000):
        section.release(emit(section, number))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(count):
        section.release(emit(section, number))
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def test_a03_appending_does_not_grow_memory(tmp_path: Path) -> None:
    section = make(tmp_path, "process")
    assert grow(section, 20_000) < 10_000
    section.close()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a03_ten_million_appends_do_not_grow_memory(tmp_path: Path) -> None:
    section = make(tmp_path, "process")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for number in range(100_000):
        section.release(emit(section, number))
    before = resident()
    for number in range(10_000_000):
        section.release(emit(section, number))
    assert resident() - before < 1 << 20
    section.close()
