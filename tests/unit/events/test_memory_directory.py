"""The sections of a host: alive, dead, adopted, spare (A-02, A-05)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from clarion.errors import SectionInUse
from clarion.events.memory import Directory, Section, SectionOptions

OPTIONS = SectionOptions("normal", 64 << 10, 1024, "process")
NUMBERS = count(1)


def next_producer() -> int:
    """Never the same in a fork."""
    return os.getpid() << 64 | next(NUMBERS) << 48


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    opened = Directory.open(tmp_path / "events")
    yield opened
    opened.close()


def emit(section: Section, number: int = 1) -> int:
    return section.record("test.event", "test", 40, number, {"number": number})


def in_child(work: Callable[[], None], *, waits: bool = False) -> tuple[int, int]:
    """Fork, and let the child do it; its id, and a descriptor that keeps it alive if it `waits`, until it is closed."""
    done, tell_done = os.pipe()
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(release)
            work()
            os.write(tell_done, b"x")
            if waits:
                os.read(hold, 1)
            code = 0
        finally:
            os._exit(code)
    os.close(tell_done)
    os.close(hold)
    assert os.read(done, 1) == b"x"
    os.close(done)
    if not waits:
        end(child, release)
        release = -1
    return child, release


def end(child: int, release: int) -> None:
    os.close(release)
    assert os.waitpid(child, 0)[1] == 0


def test_a05_one_engine_at_a_time(directory: Directory) -> None:
    other = Directory.open(directory.path)
    assert directory.try_engine() and directory.try_engine()
    assert not other.try_engine()
    directory.leave_engine()
    assert other.try_engine()
    other.close()


def test_a05_a_fork_does_not_keep_its_parents_locks(directory: Directory) -> None:
    """The child lives on; the parent gives everything up, and others get it."""
    assert directory.try_engine()
    section = directory.create("own", next_producer(), OPTIONS)
    child, release = in_child(lambda: None, waits=True)
    emit(section)
    section.close()
    directory.leave_engine()
    other = Directory.open(directory.path)
    assert other.try_engine()
    assert not other.is_alive("own")
    adopted = other.adopt("own")
    assert adopted is not None and adopted.next_sequence == 2
    adopted.close()
    other.close()
    end(child, release)


def test_a02_sections_of_the_living_are_read_and_those_of_the_dead_adopted(directory: Directory) -> None:
    def work() -> None:
        own = Directory.open(directory.path)
        section = own.create("child", next_producer(), OPTIONS)
        for number in range(10):
            emit(section, number)

    child, release = in_child(work, waits=True)
    assert directory.names() == ["child"]
    assert directory.is_alive("child")
    assert directory.adopt("child") is None
    look = directory.look("child")
    assert [event.time_ns for event in look.read(1, 100, 1 << 20)] == list(range(10))
    look.release(6)
    look.close()
    end(child, release)
    assert not directory.is_alive("child")
    adopted = directory.adopt("child")
    assert adopted is not None
    assert (adopted.first_sequence, adopted.next_sequence, adopted.lost) == (6, 11, [])
    assert not directory.remove(adopted)
    adopted.release(11)
    assert directory.remove(adopted)
    assert directory.names() == [] and list(directory.sections_path.iterdir()) == []
    assert directory.adopt("child") is None


def test_a02_a_forked_child_takes_a_spare_section(directory: Directory) -> None:
    directory.fill_spares(2, OPTIONS, next_producer)
    directory.fill_spares(2, OPTIONS, next_producer)
    assert len(list(directory.spare_path.glob("*.ring"))) == 2

    def work(name: str) -> None:
        taken = directory.take_spare("normal", name)
        assert taken is not None
        assert [emit(taken, number) for number in range(5)] == [1, 2, 3, 4, 5]
        assert taken.owner[0] == os.getpid()

    children = [in_child(lambda name=name: work(name), waits=True) for name in ("one", "two")]  # type: ignore[misc]
    assert directory.names() == ["one", "two"]
    assert directory.is_alive("one") and directory.is_alive("two")
    assert directory.take_spare("normal", "three") is None
    for child in reversed(children):  # the second one has inherited what holds the first one
        end(*child)
    sections = [directory.adopt(name) for name in ("one", "two")]
    producers = set()
    for section in sections:
        assert section is not None and section.next_sequence == 6
        producers.add(section.producer)
        section.close()
    assert len(producers) == 2
    directory.fill_spares(1, OPTIONS, next_producer)
    section = directory.take_spare("normal", "three")
    assert section is not None and emit(section) == 1
    section.close()


def test_a05_what_dead_processes_left_is_cleaned(directory: Directory) -> None:
    def work() -> None:
        own = Directory.open(directory.path)
        own.fill_spares(2, OPTIONS, next_producer)
        (own.sections_path / "never.pending").write_bytes(b"x")

    child, release = in_child(work, waits=True)
    directory.fill_spares(1, OPTIONS, next_producer)
    directory.clean()
    assert len(list(directory.spare_path.glob("*.ring"))) == 3
    end(child, release)
    directory.clean()
    assert len(list(directory.spare_path.glob("*.ring"))) == 1
    assert list(directory.sections_path.iterdir()) == []
    section = directory.take_spare("normal", "mine")
    assert section is not None and emit(section) == 1
    section.close()


def test_a05_who_looks_whether_a_section_is_alive_does_not_keep_it_from_its_owner(directory: Directory) -> None:
    section = directory.create("own", next_producer(), OPTIONS)
    with pytest.raises(SectionInUse):
        Section.open(directory.path_of("own"), writable=True)
    section.close()
    for _ in range(20):
        assert not directory.is_alive("own")
        Section.open(directory.path_of("own"), writable=True).close()
