"""Batches that are stored and not visible: delayed ones, and those of transactions that are not decided.

They have no sequence: a message gets it when it becomes visible, so whoever reads by sequence never sees it too
early and never passes it over. Changed only while log entries are applied.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from clarion.core.entries import Publish, Range, Stage


class Staged:
    """One batch in the wings."""

    __slots__ = ("batch", "due_ms", "number", "position", "span", "stream", "subscriptions_end", "transaction")

    def __init__(self, entry: Stage, position: int, span: int) -> None:
        self.batch: Publish = entry.batch
        self.number = entry.number
        self.due_ms = entry.due_ms
        self.transaction = entry.transaction
        self.position = position
        self.span = span
        """0: its body is lost."""
        self.stream = 0
        """The number of its large body; 0 for none."""
        self.subscriptions_end = 0
        """It is not for subscriptions from this number on, which were made after it was sent; 0: for all."""


class Stages:
    """The staged batches of one destination, in the order of their numbers."""

    __slots__ = ("_due", "_known", "bytes_live", "next_number")

    def __init__(self) -> None:
        self._known: dict[int, Staged] = {}
        self._due: list[tuple[int, int]] = []
        """(time, number) of those that wait for their time alone; may name some that are gone."""
        self.next_number = 1
        self.bytes_live = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Staged]:
        return iter(self._known.values())

    def get(self, number: int) -> Staged | None:
        """By its number."""
        return self._known.get(number)

    def add(self, staged: Staged) -> None:
        """A batch was stored."""
        self._known[staged.number] = staged
        self.next_number = max(self.next_number, staged.number + 1)
        self.bytes_live += staged.span
        if not staged.transaction:
            heapq.heappush(self._due, (staged.due_ms, staged.number))

    def take(self, runs: Sequence[Range]) -> list[Staged]:
        """These leave the wings, in this order."""
        taken: list[Staged] = []
        for first, end in runs:
            for number in range(first, end):
                staged = self._known.pop(number, None)
                if staged is not None:
                    self.bytes_live -= staged.span
                    taken.append(staged)
        return taken

    def delay(self, runs: Sequence[Range], subscriptions_end: int) -> None:
        """Their transaction is committed: now they wait for their time, for the subscriptions that there are now."""
        for first, end in runs:
            for number in range(first, end):
                staged = self._known.get(number)
                if staged is not None:
                    staged.transaction = b""
                    staged.subscriptions_end = subscriptions_end
                    heapq.heappush(self._due, (staged.due_ms, number))

    def due(self, now_ms: int, messages_max: int) -> list[Staged]:
        """Whose time has come, the earliest first; they stay until the log says that they are visible."""
        due: list[Staged] = []
        messages = 0
        while self._due and self._due[0][0] <= now_ms and messages < messages_max:
            _, number = heapq.heappop(self._due)
            staged = self._known.get(number)
            if staged is not None and not staged.transaction:
                due.append(staged)
                messages += staged.batch.messages
        return due

    def not_yet(self, staged: Sequence[Staged]) -> None:
        """`due` gave these, and it could not be logged: another time."""
        for one in staged:
            heapq.heappush(self._due, (one.due_ms, one.number))

    @property
    def due_ms(self) -> int:
        """When the next one is due; 0 for never."""
        return self._due[0][0] if self._due else 0

    def in_segment(self, position_from: int, position_to: int) -> list[Staged]:
        """Those that lie in a stretch of the journal: what compaction must move."""
        return [staged for staged in self._known.values() if position_from <= staged.position < position_to]

    def move(self, number: int, position: int, span: int) -> None:
        """Its record was copied elsewhere."""
        staged = self._known.get(number)
        if staged is not None and position > staged.position:  # a replay may meet a copy that it was moved on from
            self.bytes_live += span - staged.span
            staged.position, staged.span = position, span

    def dump(self) -> list[object]:
        """For a checkpoint."""
        rows = [
            (
                Stage(one.batch, one.number, one.due_ms, one.transaction).encode(),
                one.position,
                one.span,
                one.stream,
                one.subscriptions_end,
            )
            for one in self._known.values()
        ]
        return [self.next_number, rows]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> Stages:
        """The inverse of `dump`."""
        stages = cls()
        next_number, rows = dumped
        for head, position, span, *more in rows:
            staged = Staged(Stage.decode(head), position, span)
            staged.stream, staged.subscriptions_end = (*more, 0, 0)[:2]
            stages.add(staged)
        stages.next_number = next_number
        return stages
