"""The pages of an engine: what was dropped or never read is read again, and never taken for lost (A-08)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.events.engine.pages import PAGE_EVENTS, Pages
from clarion.events.memory import Section

COUNT = 3 * PAGE_EVENTS


@pytest.fixture
def sections(tmp_path: Path) -> Iterator[tuple[Section, Section]]:
    made = []
    for number in (1, 2):
        section = Section.create(
            tmp_path / f"{number}.ring", name=f"{number}", kind="normal", producer=number << 64, bytes_=1 << 20,
            event_bytes_max=1024, durability="process",
        )  # fmt: skip
        for at in range(1, COUNT + 1):
            section.record("a", "s", 20, at, at)
        made.append(section)
    yield made[0], made[1]
    for section in made:
        section.close()


def numbers(pages: Pages, section: Section, first: int, end: int) -> list[int]:
    return [event.at for event in pages.events(section, [(first, end)])]


def test_a08_a_page_that_was_dropped_and_begun_again_is_not_taken_for_whole(sections: tuple[Section, Section]) -> None:
    section, other = sections
    pages = Pages(bytes_max=PAGE_EVENTS * 300)
    half = PAGE_EVENTS + PAGE_EVENTS // 2
    pages.put(section, section.read(PAGE_EVENTS, half - PAGE_EVENTS, 1 << 20))
    assert len(pages.events(other, [(1, COUNT + 1)])) == COUNT  # whoever lags behind needs the room
    pages.put(section, section.read(half, 2 * PAGE_EVENTS - half, 1 << 20))
    assert numbers(pages, section, PAGE_EVENTS, 2 * PAGE_EVENTS) == list(range(PAGE_EVENTS, 2 * PAGE_EVENTS))


def test_a08_pages_that_are_filled_in_pieces_have_everything(sections: tuple[Section, Section]) -> None:
    section, _ = sections
    pages = Pages()
    for first in range(1, COUNT + 1, 100):
        pages.put(section, section.read(first, 100, 1 << 20))
        assert numbers(pages, section, max(1, first - 300), min(first + 100, COUNT)) == list(
            range(max(1, first - 300), min(first + 100, COUNT))
        )
    assert numbers(pages, section, 1, COUNT + 1) == list(range(1, COUNT + 1))


def test_a08_what_was_released_is_not_looked_for(sections: tuple[Section, Section]) -> None:
    section, _ = sections
    pages = Pages()
    section.release(700)
    assert numbers(pages, section, 700, 900) == list(range(700, 900))
    assert numbers(pages, section, 800, COUNT + 1) == list(range(800, COUNT + 1))
    pages.drop(section.producer, 1 << 62)
    assert numbers(pages, section, 1000, 1001) == [1000]
