"""Which sections a process takes, and which an engine finds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clarion.errors import SectionInUse
from clarion.events.host_memory import SHELL, HostMemory, Sizes
from clarion.events.memory import Section
from clarion.events.memory.directory import Directory
from clarion.events.recorder import Sections

SIZES = Sizes(capacity=50, initialisation_capacity=10, event_bytes_max=2048, durability="process")


def opened(path: Path) -> HostMemory:
    return HostMemory(Directory.open(path), SIZES)


def record(section: Section, count: int = 1) -> int:
    sequence = 0
    for _ in range(count):
        sequence = section.record("a", "s", 20, time.time_ns(), None, bits=1, epoch=1)
    return sequence


def close(sections: Sections) -> None:
    for section in sections.all():
        section.close()


def test_a02_who_comes_back_goes_on_in_the_sections_it_had(tmp_path: Path) -> None:
    first = opened(tmp_path).take()
    record(first.normal, 3)
    close(first)
    again = opened(tmp_path).take()
    assert again.normal.producer == first.normal.producer
    assert record(again.normal) == 4
    close(again)


def test_a02_processes_that_live_have_sections_of_their_own(tmp_path: Path) -> None:
    one, other = opened(tmp_path).take(), opened(tmp_path).take()
    producers = [section.producer for sections in (one, other) for section in sections.all()]
    assert len(set(producers)) == len(producers)
    close(one)
    third = opened(tmp_path).take()
    assert third.normal.producer == one.normal.producer, "the lowest that is free"
    close(other)
    close(third)


def test_b11_producer_ids_of_two_directories_differ(tmp_path: Path) -> None:
    one, other = opened(tmp_path / "1").take(), opened(tmp_path / "2").take()
    assert not {each.producer for each in one.all()} & {each.producer for each in other.all()}
    close(one)
    close(other)


def test_a09_an_engine_finds_all_sections_and_removes_only_orphans_that_are_empty(tmp_path: Path) -> None:
    producer, engine = opened(tmp_path), opened(tmp_path)
    sections = producer.take()
    record(sections.normal, 2)
    found = {section.name: section for section, own in engine.found() if not own}
    assert set(found) == {section.name for section in sections.all()}
    normal = found["0-normal"]
    assert normal.next_sequence == 3
    assert not engine.is_orphan(normal) and not engine.remove(normal), "its owner lives"
    close(sections)
    assert engine.is_orphan(normal)
    assert not engine.remove(normal), "it holds events"
    normal.release(3)
    assert engine.remove(normal)
    assert "0-normal" not in {section.name for section, _ in engine.found()}
    engine.close_foreign()


def test_a02_the_section_of_the_command_line_is_shared_one_at_a_time_and_stays(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    section = one.take_shell(1.0)
    with pytest.raises(SectionInUse):
        other.take_shell(0.0)
    record(section)
    section.close()
    again = other.take_shell(1.0)
    assert again.producer == section.producer
    again.release(2)
    again.close()
    engine = opened(tmp_path)
    found = [each for each, _ in engine.found() if each.name == SHELL]
    assert len(found) == 1 and not engine.is_orphan(found[0])
    engine.close_foreign()
