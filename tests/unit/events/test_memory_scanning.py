"""Reading many records at a time finds exactly what reading them one by one finds (A-05)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.events.memory import Recorded, Section
from clarion.events.memory.layout import SECTOR_BYTES
from clarion.events.memory.reading import Reader
from clarion.journal import Durability

RING_BYTES = 64 << 10


class Careful(Reader):
    """One by one."""

    def _scan(self, sequence: int, position: int, count: int, bytes_max: int) -> tuple[list[Recorded], int, bool]:
        return [], position, False


def all_of(reader: Reader, first: int, limit: int, count_max: int, bytes_max: int) -> list[Recorded]:
    found: list[Recorded] = []
    while some := reader.read(first, limit, count_max, bytes_max):
        assert len(some) == 1 or sum(len(one.headers) + len(one.body) for one in some) <= bytes_max
        assert len(some) <= count_max
        found += some
        first = some[-1].at + 1
    return found


@pytest.mark.parametrize("durability", ["power", "process"])
@given(
    groups=st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=12), min_size=1, max_size=40),
    damaged=st.lists(st.integers(0, RING_BYTES - 1), max_size=4),
    count_max=st.integers(1, 100),
    bytes_max=st.integers(1, 20_000),
    ahead=st.integers(0, 100),
)
@settings(deadline=None, max_examples=60)
def test_a05_many_at_a_time_are_those_that_one_by_one_finds(
    durability: Durability, groups: list[list[int]], damaged: list[int], count_max: int, bytes_max: int, ahead: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        section = Section.create(
            Path(folder) / "a.ring",
            name="a",
            kind="normal",
            producer=7 << 64,
            bytes_=RING_BYTES,
            event_bytes_max=1_024,
            durability=durability,
        )
        try:
            for sizes in groups:
                events = [section.encoder.encode("disk.full", "a", 40, 1 << 60, "x" * size) for size in sizes]
                free = section.ring_bytes - section.used_bytes()
                if free < sum(sizes) + 512 * len(sizes) + 2 * SECTOR_BYTES:
                    section.release(section.next_sequence)
                section.append_many(events, [1] * len(events), 1, wait_s=0.0)
            view, limit = section._ring.view, section.next_sequence
            head = section._reader.head
            for offset in damaged:
                view[offset % len(view)] ^= 0x55
            readers = [kind(section._ring, section.producer, head, [], []) for kind in (Reader, Careful)]
            first = head[0] + ahead % max(1, limit - head[0])
            fast, careful = (all_of(reader, first, limit, count_max, bytes_max) for reader in readers)
            assert fast == careful
            if not damaged:
                assert [one.at for one in fast] == list(range(first, limit))
            assert readers[0]._lost == readers[1]._lost
            assert readers[0]._positions.items() >= readers[1]._positions.items()
        finally:
            section.close()
