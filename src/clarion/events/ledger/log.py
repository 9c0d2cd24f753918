"""The ledger's log: append, apply at once, tell when durable; checkpoints and compaction beside it.

Rules
    1. An entry is applied when it is appended, so that a checkpoint has everything before it; everything that leaves
       the ledger, or lets something go, waits until the entry is durable.
    2. Effects run in the order of their entries, on the thread of the loop.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import partial

from clarion.errors import ClarionError, JournalFull
from clarion.events.ledger.durable import Durable
from clarion.events.ledger.entries import KIND_OF, Entry, encode
from clarion.events.ledger.state import State
from clarion.journal import Journal, Location, Recovery
from clarion.journal import Kind as JournalKind
from clarion.journal.record import Buffer

_MOVED = struct.Struct("<Q")
_MOVES_PER_STEP = 32
_CHECKPOINTS_UNASKED_MAX = 3
"""Checkpoints without an entry between them: it takes two to free what has died, and one more to see it. Without a
bound, a journal full of the dead would move them and write checkpoints for ever, each making room for the other."""
Effect = Callable[[], None]


class LedgerLog:
    """See the module."""

    def __init__(self, journal: Journal, state: State) -> None:
        self.journal = journal
        self.on_failed: Callable[[ClarionError], None] = lambda _error: None
        self.on_room: Effect = lambda: None
        """There may be room again where there was none."""
        self.error: ClarionError | None = None
        self._state = state
        self._waiting: deque[tuple[int, Effect | None, Durable | None]] = deque()
        self._last = -1
        self._checkpointing = False
        self._unasked = 0
        journal.on_durable = self._durable
        journal.on_failed = self._failed
        journal.on_room = lambda: self.on_room()

    def replay(self, recovery: Recovery) -> None:
        """The state as it was; then the journal hears what of it lives."""
        state = self._state
        state.load(recovery.checkpoint_parts)
        for record in recovery.records:
            span = record.span if record.body else 0
            if record.kind == JournalKind.MOVED:
                if span:
                    state.dead.move(_MOVED.unpack(record.head)[0], record.position, span)
            else:
                state.apply(record.kind, record.head, record.position, span)
        for row in state.sections.values():
            for settled in row.settled.values():
                settled.durable_floor = settled.floor
        for event in state.dead.events.values():
            if event.span:
                self.journal.retain(event.position, event.span)

    def write(self, entry: Entry, body: Buffer = b"", *, reserve: bool = True) -> Location:
        """Append and apply. Raises `JournalFull` and changes nothing then."""
        kind, head = KIND_OF[type(entry)], encode(entry)
        location = self.journal.append(kind, head, body, reserve=reserve)
        self._last = location.position
        self._unasked = 0
        if body:
            self.journal.retain(location.position, location.span)
        self._state.apply(kind, head, location.position, location.span if body else 0)
        return location

    def after(self, effect: Effect) -> None:
        """Run `effect` when everything written so far is durable."""
        if self._last < self.journal.durable:
            effect()
        else:
            self._waiting.append((self._last, effect, None))

    def complete(self, durable: Durable) -> None:
        """It is done when everything written so far is durable."""
        if self.error is not None:
            durable.fail(self.error)
        elif self._last < self.journal.durable:
            durable.complete()
        else:
            self._waiting.append((self._last, None, durable))

    def _durable(self, position: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] < position:
            _, effect, durable = waiting.popleft()
            if effect is not None:
                effect()
            if durable is not None:
                durable.complete()
        self.upkeep()

    def close(self, error: ClarionError) -> None:
        """Nothing is written from now on; who still waits hears why."""
        if self.error is None:
            self._fail(error)

    def _failed(self, error: ClarionError) -> None:
        self._fail(error)
        self.on_failed(error)

    def _fail(self, error: ClarionError) -> None:
        self.error = error
        waiting, self._waiting = self._waiting, deque()
        for _, _, durable in waiting:
            if durable is not None:
                durable.fail(error)

    # --- upkeep -----------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Tell the journal how large the next checkpoint may be: the reserve has room for two."""
        wanted, known = self._state.checkpoint_bytes, self.journal.checkpoint_estimate_bytes
        if not known * 3 // 4 <= wanted <= known:
            self.journal.checkpoint_estimate_bytes = wanted * 5 // 4

    def demand(self) -> None:
        """Somebody found no room: do what may make some."""
        self._unasked = 0
        self.upkeep()

    def upkeep(self) -> None:
        """Begin what is due: a checkpoint, a step of compaction."""
        if self.error is not None:
            return
        may = not self._checkpointing and self._unasked < _CHECKPOINTS_UNASKED_MAX
        if may and self.journal.checkpoint_due:
            self.measure()
            self._checkpointing = True
            self._unasked += 1
            try:
                self.journal.checkpoint(self._state.dump(), self._checkpointed)
            except JournalFull:
                self._checkpointing = False
        victim = self.journal.compaction_victim()
        if victim is not None:
            self._compact(victim.position_from, victim.position_to)

    def _checkpointed(self) -> None:
        self._checkpointing = False
        self.on_room()

    def _compact(self, position_from: int, position_to: int) -> None:
        """Copy some of what lives there to the end of the log; the old place goes when the copy is durable."""
        for event in self._state.dead.in_segment(position_from, position_to)[:_MOVES_PER_STEP]:
            old_position, old_span = event.position, event.span
            if old_position >= self.journal.durable:
                continue
            records = self.journal.read(old_position, old_span)
            if not records or not records[0].body:
                event.span = 0  # damaged: its place would be chosen for ever
                self.journal.release(old_position, old_span)
                continue
            try:
                location = self.journal.append(
                    JournalKind.MOVED, _MOVED.pack(event.number), bytes(records[0].body), reserve=True
                )
            except JournalFull:
                return
            self._last = location.position
            self.journal.retain(location.position, location.span)
            # At once, as in a replay: a checkpoint that begins after this must not name the old place.
            event.position, event.span = location.position, location.span
            self.after(partial(self.journal.release, old_position, old_span))
