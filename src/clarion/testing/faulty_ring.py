"""The file of a section of persistent memory on a disk that fails (`FaultyDisk`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from clarion.events.memory.layout import MARK_BYTES, RING_OFFSET
from clarion.events.memory.ring import Section, new_pages
from clarion.journal.options import Durability
from clarion.testing.faulty_disk import FaultyDisk


class FaultyRing:
    """One ring on a faulty disk, with its mark. `open` gives it to a section, as often as it crashed."""

    def __init__(self, producer: int, ring_bytes: int, event_bytes_max: int, durability: Durability = "power") -> None:
        header, pages = new_pages("normal", producer, ring_bytes, event_bytes_max, durability)
        self.disk = FaultyDisk(RING_OFFSET + header.ring_bytes, 1)
        self.file = self.disk.create()
        self.disk.write(self.file, 0, [pages])
        self.disk.sync(self.file)
        self.disk.kill()
        self.mark = bytearray(MARK_BYTES)

    def open(self) -> Section:
        """The section as a program finds it that starts now."""
        return Section.attach("faulty", FaultyRingFile(self), writable=True)

    def look(self) -> Section:
        return Section.attach("faulty", FaultyRingFile(self), writable=False)

    def crash(self, rng: Random) -> None:
        """Loss of power. The mark is never synced: it is as it was some time ago, or not there, or garbage."""
        self.disk.crash(rng)
        match rng.randrange(3):
            case 0:
                self.mark = bytearray(MARK_BYTES)
            case 1:
                self.mark = bytearray(self.mark)
            case 2:
                start = rng.randrange(8, 40)  # what is durable is one word, and true whenever it was written
                self.mark[start:64] = rng.randbytes(64 - start)
                self.mark = bytearray(self.mark)


class FaultyRingFile:
    """A `RingFile`."""

    def __init__(self, ring: FaultyRing) -> None:
        self._disk, self._file = ring.disk, ring.file
        self.view = memoryview(ring.disk._files[ring.file].content)
        self.marks = memoryview(ring.mark).cast("Q")

    def write(self, offset: int, data: memoryview, before: Callable[[], None] | None = None) -> None:
        written = 0
        if before is not None:
            before()
        while written < len(data):
            written += self._disk.write(self._file, offset + written, [data[written:]])

    def sync(self) -> None:
        self._disk.sync(self._file)

    def close(self) -> None:
        self.view.release()
        self.marks.release()
