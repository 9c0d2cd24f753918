"""Group commit: who waits for whom (A-02)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clarion.errors import Blocked
from clarion.events.memory import Section

WAIT_S = 30.0


class Syncs:
    """Of a section: each waits until it is let go."""

    def __init__(self, section: Section) -> None:
        self._sync = section.file.sync
        self._changed = threading.Condition()
        self._begun = 0
        self._allowed = 0
        section.file.sync = self  # type: ignore[method-assign]

    def __call__(self) -> None:
        with self._changed:
            self._begun += 1
            mine = self._begun
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._allowed >= mine, WAIT_S)
        self._sync()

    def begun(self, count: int) -> None:
        """Wait for that many."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._begun >= count, WAIT_S)
            assert self._begun == count

    def allow(self, count: int) -> None:
        with self._changed:
            self._allowed = count
            self._changed.notify_all()


class Counted:
    """A lock, and how many had or wanted it at the same time."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._now = 0
        self.most = 0

    def __enter__(self) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._now -= 1
        self._lock.release()


class Emitters:
    """Threads with one event each."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self.returned: list[int] = []

    def start(self, count: int) -> list[threading.Thread]:
        """They have staged their events when this returns."""
        writer: Any = self._section.writer
        staged = writer.next[0] + count
        threads = [threading.Thread(target=self._emit) for _ in range(count)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + WAIT_S
        while writer.next[0] < staged:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return threads

    def _emit(self) -> None:
        self.returned.append(self._section.record("test.event", "test", 40, 1, None))


@pytest.fixture
def section(tmp_path: Path) -> Iterator[Section]:
    found = Section.create(
        tmp_path / "own.ring", name="own", kind="normal", producer=1 << 64, bytes_=1 << 20, event_bytes_max=2048,
        durability="power",
    )  # fmt: skip
    yield found
    found.close()


def test_a02_only_the_leader_of_the_next_group_waits_for_the_disk(section: Section) -> None:
    syncs, emitters = Syncs(section), Emitters(section)
    committing = Counted(section.writer._committing)
    section.writer._committing = committing  # type: ignore[assignment]
    groups = []
    for number in range(1, 7):
        groups.append(emitters.start(1 if number == 1 else 5))
        if number > 1:
            syncs.allow(number - 1)
        syncs.begun(number)
        for thread in groups[number - 2] if number > 1 else ():
            thread.join(WAIT_S)  # while the sync of the group after theirs is waiting
            assert not thread.is_alive()
    syncs.allow(7)
    for thread in groups[-1]:
        thread.join(WAIT_S)
    syncs.begun(6)
    assert committing.most <= 2
    assert sorted(emitters.returned) == list(range(1, 27))
    assert [event.at for event in section.read(1, 100, 1 << 20)] == list(range(1, 27))


def test_a02_many_events_at_once_beside_threads_that_wait_at_their_gate(section: Section) -> None:
    """`append_many` commits what is in its way without a gate: nobody waits for whom who waits for him."""
    events = [section.encoder.encode("a", "b", 40, 1, bytes(1000)) for _ in range(300)]
    sequences: list[int] = []

    def many() -> None:
        for _ in range(5):
            sequences.extend(section.append_many(events, 1, 1, wait_s=None))
            section.release(section.next_sequence)

    def single() -> None:
        sequences.extend(section.record("test.event", "test", 40, 1, None, wait_s=None) for _ in range(50))

    threads = [threading.Thread(target=work) for work in (many, many, single, single, single, single)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sorted(sequences) == list(range(1, 2 * 5 * 300 + 4 * 50 + 1))


def test_a02_a_leader_that_is_interrupted_while_it_waits_leaves_its_gate(section: Section) -> None:
    """A signal handler raises in the thread that leads the next group; its followers are led by one of them."""

    class Interrupted(Exception):
        pass

    syncs, emitters = Syncs(section), Emitters(section)
    writer: Any = section.writer
    first = emitters.start(1)
    syncs.begun(1)
    outcomes: list[object] = []

    def handler(number: int, frame: object) -> None:
        try:
            outcomes.append(section.record("test.event", "test", 40, 1, None))
        except Blocked as error:  # this thread has a gate
            outcomes.append(error)
        raise Interrupted

    def interrupt() -> None:
        while writer.next[0] < 3:
            time.sleep(0.001)
        time.sleep(0.05)  # until it waits; if it does not yet, it is interrupted elsewhere, and all below holds
        followers.extend(emitters.start(3))
        signal.pthread_kill(main, signal.SIGUSR1)

    followers: list[threading.Thread] = []
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, handler)
    other = threading.Thread(target=interrupt)
    try:
        other.start()
        with pytest.raises(Interrupted):
            section.record("test.event", "test", 40, 1, None)
    finally:
        signal.signal(signal.SIGUSR1, before)
        syncs.allow(10)
        other.join(WAIT_S)
    assert len(outcomes) == 1 and isinstance(outcomes[0], Blocked)
    assert not writer.held_here()
    for thread in (*first, *followers):
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sorted(emitters.returned) == [1, 3, 4, 5]  # 2 is recorded, too, though its emit did not return
    assert [event.at for event in section.read(1, 100, 1 << 20)] == [1, 2, 3, 4, 5]
