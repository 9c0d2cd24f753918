"""What an archive holds after an entry of its log: a fold over the entries, pure.

Invariants
    1. A file is live, or removed, or neither: then it is an orphan of a writer that died, or is not complete yet.
    2. A body is live while a live file names it.
    3. A file that was live at a pin is not `removable` while the pin holds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from clarion.pipelines.archive.entries import Checkpoint, DataFile, Entry, Pin, Removed, Written


class State:
    """Changed only by `apply`."""

    def __init__(self) -> None:
        self.number = 0
        self.files: dict[str, DataFile] = {}
        self.removed: dict[str, Removed] = {}
        self.writers: dict[str, Written] = {}
        self.pins: dict[str, Pin] = {}

    def apply(self, entry: Entry) -> None:
        """The next entry."""
        self.number += 1
        for path in entry.remove:
            file = self.files.pop(path, None)
            if file is not None:
                self.removed[path] = Removed(path, self.number, entry.time_ms, file.bodies)
        for path in entry.forget:
            self.removed.pop(path, None)
        for file in entry.add:
            self.files[file.path] = file
        if entry.writer:
            self._written(entry)
        if entry.pin is not None:
            self.pins[entry.pin.name] = entry.pin
        self.pins.pop(entry.unpin, None)

    def _written(self, entry: Entry) -> None:
        writer = self.writers.setdefault(entry.writer, Written())
        writer.batch = max(writer.batch, entry.batch)
        for file in entry.add:
            end = (file.incarnation, file.last)
            writer.ends[file.destination] = max(writer.ends.get(file.destination, end), end)

    # --- checkpoints --------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """All of it."""
        return Checkpoint(
            self.number, list(self.files.values()), list(self.removed.values()), self.writers, list(self.pins.values())
        )

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> State:
        """The inverse of `checkpoint`."""
        state = cls()
        state.number = checkpoint.number
        state.files = {file.path: file for file in checkpoint.files}
        state.removed = {removed.path: removed for removed in checkpoint.removed}
        state.writers = checkpoint.writers
        state.pins = {pin.name: pin for pin in checkpoint.pins}
        return state

    # --- questions ----------------------------------------------------------------------------------------

    def has_batch(self, writer: str, batch: int) -> bool:
        """Whether this batch, or a later one, was appended."""
        known = self.writers.get(writer)
        return known is not None and known.batch >= batch

    def ends(self, writer: str) -> dict[str, tuple[int, int]]:
        """Of each destination that a writer has appended to: incarnation, greatest sequence."""
        known = self.writers.get(writer)
        return {} if known is None else dict(known.ends)

    def numbered(self, files: Iterable[DataFile], writer: str) -> tuple[DataFile, ...]:
        """New files of a writer with their incarnations.

        The sequences of one destination ascend from batch to batch: if they do not, the destination was dropped and
        made again since. Whoever writes to a destination for the first time writes to its latest incarnation.
        """
        new = list(files)
        firsts: dict[str, int] = {}
        for file in new:
            firsts[file.destination] = min(file.first, firsts.get(file.destination, file.first))
        ends = self.ends(writer)
        incarnations = dict.fromkeys(firsts, 0)
        for file in self.files.values():
            if file.destination in firsts:
                incarnations[file.destination] = max(file.incarnation, incarnations[file.destination])
        for destination in firsts.keys() & ends.keys():
            incarnation, last = ends[destination]
            incarnations[destination] = incarnation + (firsts[destination] <= last)
        return tuple(msgspec.structs.replace(file, incarnation=incarnations[file.destination]) for file in new)

    def bodies(self) -> set[str]:
        """Bodies of live files."""
        return {path for file in self.files.values() for path in file.bodies}

    def oldest_pin(self, now_ms: int) -> int | None:
        """The entry that somebody reads the archive at."""
        return min((pin.number for pin in self.pins.values() if pin.until_ms > now_ms), default=None)

    def removable(self, now_ms: int, grace_ms: int) -> list[Removed]:
        """Removed files that nobody may read any more."""
        pinned = self.oldest_pin(now_ms)
        return [
            removed
            for removed in self.removed.values()
            if removed.time_ms + grace_ms <= now_ms and (pinned is None or removed.number <= pinned)
        ]
