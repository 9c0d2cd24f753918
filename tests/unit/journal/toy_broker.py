"""The smallest owner a journal can have: messages that live until they are confirmed.

It publishes, confirms, checkpoints, compacts and recovers as a message manager does, one object per
message, so that its state is easy to compare with a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from clarion.errors import JournalFull
from clarion.journal import InlineCommitter, Journal, JournalOptions, Kind, Store

PUBLISH, CONFIRM = 40, 41
MOVES_PER_STEP = 4


class ToyBroker:
    def __init__(self, store: Store, **options: int) -> None:
        self.committer = InlineCommitter()
        self.live: dict[int, tuple[int, int]] = {}
        self.journal, recovery = Journal.open(store, JournalOptions(**options), self.committer)  # type: ignore[arg-type]
        for part in recovery.checkpoint_parts:
            self.live.update({number: (position, span) for number, position, span in json.loads(part)})
        for record in recovery.records:
            number = int(record.head)
            if record.kind == PUBLISH or (record.kind == Kind.MOVED and number in self.live):
                self.live[number] = (record.position, record.span)
            elif record.kind == CONFIRM:
                self.live.pop(number, None)
        self.lost = recovery.lost
        for position, span in self.live.values():
            self.journal.retain(position, span)
        self.waiting: list[tuple[int, int, bool]] = []
        self.published: set[int] = set()
        self.confirmed: set[int] = set()
        self.checkpoints = 0
        self.moved = 0
        self.journal.on_durable = self._on_durable
        self.journal.start()
        self.committer.run()

    def _on_durable(self, position: int) -> None:
        while self.waiting and self.waiting[0][0] <= position:
            _, number, is_publish = self.waiting.pop(0)
            (self.published if is_publish else self.confirmed).add(number)

    def publish(self, number: int, body: bytes) -> bool:
        """False if producers are refused."""
        try:
            place = self.journal.append(PUBLISH, b"%d" % number, body)
        except JournalFull:
            return False
        self.journal.retain(place.position, place.span)
        self.live[number] = (place.position, place.span)
        self.waiting.append((place.position + place.span, number, True))
        return True

    def confirm(self, number: int) -> None:
        """Applied at once, as an entry is when it is ordered: before it is durable."""
        place = self.journal.append(CONFIRM, b"%d" % number, reserve=True)
        self.waiting.append((place.position + place.span, number, False))
        self.journal.release(*self.live.pop(number))

    def read(self, number: int) -> bytes:
        (record,) = self.journal.read(*self.live[number])
        assert int(record.head) == number and record.body is not None
        return bytes(record.body)

    def upkeep(self) -> None:
        """What a broker does beside its traffic."""
        if self.journal.checkpoint_due:
            self.journal.checkpoint(self._parts(), self._checkpoint_done)
        victim = self.journal.compaction_victim()
        if victim is None:
            return
        inside = [n for n, (at, _) in self.live.items() if victim.position_from <= at < victim.position_to]
        for number in inside[:MOVES_PER_STEP]:
            old = self.live[number]
            try:
                place = self.journal.append(Kind.MOVED, b"%d" % number, self.read(number))
            except JournalFull:
                return
            self.journal.retain(place.position, place.span)
            self.journal.release(*old)
            self.live[number] = (place.position, place.span)
            self.moved += 1

    def _parts(self) -> Iterator[bytes]:
        numbers = sorted(self.live)
        for first in range(0, max(len(numbers), 1), 20):
            rows = [(n, *self.live[n]) for n in numbers[first : first + 20] if n in self.live]
            yield json.dumps(rows).encode()

    def _checkpoint_done(self) -> None:
        self.checkpoints += 1
