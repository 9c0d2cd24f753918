"""The ballast is whole again after every use, and nobody else runs while a part of it is free (A-03)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.events import EventSystem
from clarion.events.memory import Section
from clarion.events.memory.ballast import Ballast
from tests.unit.events.link_harness import new_section

BYTES = 1 << 20


def drop(ballast: Ballast) -> None:
    assert ballast.whole is not None
    ballast.whole = ballast.whole[1]
    ballast.blocks = ballast.blocks[1]
    ballast.resize(*ballast.blocks[0])
    ballast.missing = True


@pytest.fixture
def section(tmp_path: Path) -> Iterator[Section]:
    found = new_section(tmp_path / "own.ring", "normal")
    yield found
    found.close()


def test_a03_what_was_dropped_is_taken_again() -> None:
    ballast = Ballast(BYTES)
    units, blocks = ballast.count(), ballast.blocks
    assert units > 10 and not ballast.missing
    for _ in range(5):
        drop(ballast)
    assert ballast.count() == units - 5 and ballast.blocks[0] < blocks[0]
    ballast.refill()
    assert ballast.count() == units and ballast.blocks is blocks and not ballast.missing


def test_a03_to_drop_does_not_give_up_the_interpreter() -> None:
    ballast = Ballast(BYTES)
    turns = 0
    done = False
    interval_s = sys.getswitchinterval()

    def others() -> None:
        nonlocal turns
        while not done:
            turns += 1
            time.sleep(0)

    sys.setswitchinterval(1_000)  # nobody is asked to give it up
    thread = threading.Thread(target=others)
    try:
        thread.start()
        before = turns
        for _ in range(100):
            drop(ballast)
        after = turns
        done = True
    finally:
        sys.setswitchinterval(interval_s)
        thread.join()
    assert after == before


def test_a03_blocks_end_somewhere() -> None:
    ballast = Ballast(0)
    for _ in range(10):
        ballast.blocks = ballast.blocks[1]
        ballast.resize(*ballast.blocks[0])
    assert ballast.blocks[1] is ballast.blocks
    ballast.refill()
    assert ballast.blocks is ballast.blocks[2]


def test_a03_an_event_without_memory_leaves_the_ballast_as_it_was(section: Section) -> None:
    ballast = section.ballast
    units, blocks = ballast.count(), ballast.blocks
    for _ in range(3):
        drop(ballast)
        assert section.record("disk.full", "volume/7", 40, 1 << 60, {"free": 0})
        assert ballast.count() == units and ballast.blocks is blocks and ballast.wanted is blocks


def test_a03_what_is_written_is_not_written_again_for_want_of_memory_after_it(
    section: Section, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    sync = section.file.sync

    def counted() -> None:
        syncs.append(1)
        sync()

    monkeypatch.setattr(section.file, "sync", counted)

    class Mirror:
        failures = 3
        groups = 0

        def begin(self, group: memoryview, first: int, end: int) -> None:
            self.groups += 1
            if self.failures:
                self.failures -= 1
                raise MemoryError

        def finish(self) -> None:
            pass

    section.mirror = mirror = Mirror()
    section.record("disk.full", "volume/7", 40, 1 << 60)
    section.record("disk.full", "volume/7", 40, 1 << 60)
    assert len(syncs) == 2 and mirror.groups == 2 + 3
    assert [event.sequence for event in section.read(1, 10, 1 << 20)] == [1, 2]


def test_a03_what_no_ballast_is_enough_for_is_told_and_not_tried_for_ever(
    section: Section, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(section.encoder, "encode", fail)
        patched.setattr(section.encoder, "encode_without_memory", fail)
        with pytest.raises(MemoryError):
            section.record("disk.full", "volume/7", 40, 1 << 60)
    assert section.record("disk.full", "volume/7", 40, 1 << 60) == 1
    assert not section.ballast.missing


def test_a03_to_ring_for_the_engine_costs_nothing_of_the_ballast(tmp_path: Path) -> None:
    with EventSystem.open(tmp_path / "events", capacity=10, initialisation_capacity=10) as system:
        system.ready()
        recorder = system._recorder
        calls: list[int] = []

        def fail() -> None:
            calls.append(recorder.ballast.count())
            raise MemoryError

        recorder.recorded = fail
        units = recorder.ballast.count()
        assert system.emit("disk.full", source="volume/7")
        assert calls == [units] and recorder.ballast.count() == units and not recorder.ballast.missing
