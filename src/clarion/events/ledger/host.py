"""The ledger of an event system: what must be known after a crash so that nothing is sent twice or forgotten.

Guarantees
    1. What a `Durable` reported is never forgotten; what was not asked for is never found.
    2. `floor` moves only when the confirmations below it are durable: whoever frees space by it loses nothing.
    3. Confirmations of one turn of the loop are written together, and always find room in the end: they use the
       reserve, and when even that is full they wait. Dead events never use it.
    4. A dead event keeps its bytes here until it is purged, or sent again and confirmed.

Rules
    1. Every method is called on the thread of the loop, `open` included; only `read_dead` may wait for the disk.
    2. Who is owed what is the engine's knowledge: the ledger remembers what is settled, never what was recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from clarion import limits
from clarion.errors import ClarionError, InternalFault
from clarion.events.ledger.confirming import Confirming
from clarion.events.ledger.durable import Durable
from clarion.events.ledger.log import LedgerLog
from clarion.events.ledger.registry import Registry
from clarion.events.ledger.state import State
from clarion.journal import (
    Committer,
    Durability,
    FileStore,
    Journal,
    JournalOptions,
    JournalStatus,
    LostRange,
    Probe,
    Recovery,
    Store,
    ThreadCommitter,
)
from clarion.threads import AGAIN_S, NO_MEMORY

_SEGMENT_BYTES = 1 * limits.MIB
_CHECKPOINT_ENTRIES = 20_000
"""Entries that the next start replays at most, about: some 0.1 s."""


class LedgerStatus(msgspec.Struct, frozen=True):
    recipients: int
    sections: int
    dead: int
    dead_max: int
    confirmations_waiting: int
    """Ranges that wait for room."""
    journal: JournalStatus


class Ledger(Confirming, Registry):
    """See the module. Made by `open` or `over`."""

    def __init__(self, journal: Journal, committer: Committer, recovery: Recovery) -> None:
        state = State()
        log = LedgerLog(journal, state)
        super().__init__(log, state, committer)
        self.on_failed: Callable[[ClarionError], None] = lambda _error: None
        """Called once when persistent memory failed; nothing can be recorded from then on."""
        self.lost: list[LostRange] = recovery.lost
        """Damage of the disk that was found at the start: confirmations may be missing, so doubles are possible."""
        log.replay(recovery)
        journal.start()
        log.on_failed = self._failed
        log.measure()
        log.upkeep()

    @classmethod
    def open(
        cls,
        path: Path | str,
        loop: asyncio.AbstractEventLoop,
        *,
        durability: Durability = "power",
        event_bytes_max: int = limits.EVENT_BYTES_MAX_DEFAULT,
        bytes_max: int = limits.EVENT_LEDGER_BYTES_MAX,
        probe: Probe | None = None,
    ) -> Ledger:
        """Open the directory, or make it. Blocks; on the thread of the loop. Raises `JournalError`s."""
        segment_bytes = _SEGMENT_BYTES
        while segment_bytes < 2 * event_bytes_max + 64 * limits.KIB:
            segment_bytes *= 2
        bytes_max = max(bytes_max, 2 * limits.SEGMENTS_MIN * segment_bytes)
        options = JournalOptions(durability, bytes_max, checkpoint_log_entries=_CHECKPOINT_ENTRIES)
        store = FileStore.open(path, durability=durability, segment_bytes=segment_bytes, bytes_max=bytes_max)
        committer: ThreadCommitter | None = None
        try:
            committer = ThreadCommitter(loop)
            return cls.over(store, committer, options, probe)
        except BaseException:
            while True:  # what stays open keeps the next one from opening it
                try:
                    if committer is not None:
                        committer.close()
                    store.close()
                    break
                except NO_MEMORY:
                    time.sleep(AGAIN_S)
            raise

    @classmethod
    def over(
        cls, store: Store, committer: Committer, options: JournalOptions | None = None, probe: Probe | None = None
    ) -> Ledger:
        """On any store and committer: a faulty or a simulated disk."""
        journal, recovery = Journal.open(store, options or JournalOptions(), committer, probe)
        return cls(journal, committer, recovery)

    def _failed(self, error: ClarionError) -> None:
        self._give_up_turn(error)
        self.on_failed(error)

    @property
    def error(self) -> ClarionError | None:
        """Why nothing can be recorded any more."""
        return self._log.error

    def durable(self) -> Durable:
        """Everything that was asked for so far, confirmations included."""
        self._flush()
        return self._turn or self._written()

    def status(self) -> LedgerStatus:
        state = self._state
        waiting = sum(len(ranges) for ranges in self._gathered.values())
        present = sum(1 for row in state.recipients.values() if not row.removed)
        journal = self._log.journal.status()
        return LedgerStatus(present, len(state.sections), len(state.dead), limits.EVENT_DEAD_MAX, waiting, journal)

    def close(self) -> None:
        """Make everything durable, join the threads, give the files back. Blocks."""
        self._flush()
        self._log.journal.close()
        self._log.close(InternalFault(detail="the ledger is closed"))
