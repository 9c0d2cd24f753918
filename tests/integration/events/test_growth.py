"""An event system that emits and delivers for long does not grow.

What counts is memory of the process's own. Pages of the files that it maps (rings, ledger) are the kernel's cache, are
bounded by the sizes of these files, and are seen one after the other as the files are written for the first time.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clarion.events import Event, EventSystem

MIB = 1 << 20
WARM = 60_000
"""More than three times what the rings hold: every buffer, cache and file has been used."""


def own_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize(
    "count",
    [
        60_000,
        pytest.param(10_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
def test_a03_emits_do_not_grow_memory(tmp_path: Path, count: int) -> None:
    delivered = 0

    def count_one(_event: Event) -> None:
        nonlocal delivered
        delivered += 1

    with EventSystem.open(tmp_path, recipients=[count_one], durability="process", wait_s=60.0) as events:
        events.ready()
        for number in range(WARM):
            events.emit("disk.full", source="volume/7", severity="error", data={"number": number})
        events.wait_until_delivered()
        before = own_bytes()
        for number in range(count):
            events.emit("disk.full", source="volume/7", severity="error", data={"number": number})
        events.wait_until_delivered()
        grown = own_bytes() - before
        print(f"{count} emits: grown by {grown / MIB:.1f} MiB")
        assert grown < 8 * MIB
    assert delivered == WARM + count
