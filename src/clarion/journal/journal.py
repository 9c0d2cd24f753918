"""The journal: an append-only log in pre-allocated segments, durable in groups.

Guarantees
    1. What `on_durable` reported is found again after a crash, in order, or is reported as lost by
       name of its range if the disk damaged it; what was never appended is never found.
    2. `append` neither blocks nor copies a large body: the buffer is kept until it is written, so
       its owner must not change it.
    3. A full disk refuses producers (`JournalFull`) and nobody else; a failed one stops everything,
       once (`on_failed`).

Rules
    1. All methods except `read` are called on one thread, the one that `Committer` calls back on.
    2. Nothing is appended before `start`, and `start` comes after all recovered records were read.
    3. Whoever moves something retains the new place before it releases the old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from clarion import limits
from clarion.errors import ClarionError, InternalFault
from clarion.journal.appender import Appender
from clarion.journal.checkpointer import Checkpointer
from clarion.journal.committer import Committer
from clarion.journal.growing import Growing
from clarion.journal.layout import SEGMENT_HEADER_BYTES, SMALL_GROUP_BYTES, ordinal_of_end, record_bytes_max
from clarion.journal.options import JournalOptions, JournalStatus, Probe
from clarion.journal.record import Buffer, Kind, Location, Record, is_visible, salvage, to_record
from clarion.journal.recovery import Recovered, Recovery, recover
from clarion.journal.restart import make_durable
from clarion.journal.space import Claim, Space, Victim
from clarion.journal.store import Store
from clarion.journal.writer import Writer
from clarion.threads import AGAIN_S, NO_MEMORY

EARLY_SEAL_BYTES = 512 * limits.KIB
"""While a commit runs, a group of this size is sealed at once, so that the disk has its next work
without waiting for the loop; smaller ones wait, and gather more."""

LONE_BYTES_MAX = 16 * limits.KIB
"""A group of this size may be a lone message, for which whoever appends waits itself."""


def _ignore(_: object = None) -> None:
    return None


def _never() -> bool:
    return False


class Journal:
    """See the module. Made by `open`."""

    def __init__(
        self, store: Store, options: JournalOptions, committer: Committer, recovered: Recovered, probe: Probe | None
    ) -> None:
        self.on_durable: Callable[[int], None] = _ignore
        self.on_failed: Callable[[ClarionError], None] = _ignore
        self.on_room: Callable[[], None] = _ignore
        """Producers may have more room than before: a segment was recycled or made."""
        self.may_wait: Callable[[], bool] = _never
        """Whether the appending thread may itself wait for a quick disk while nobody else wants it: a lone commit is
        then spared two changes of thread, which cost half as much as the sync (docs/adr/0015)."""
        self.commits_here = 0
        """So many commits the appending thread waited for."""
        self.durable = 0
        """Everything before this position is on the disk."""
        self._store = store
        self._options = options
        self._committer = committer
        self._probe = probe
        self._recovered: Recovered | None = recovered
        self._synced = options.durability == "power"
        self._segment_bytes = store.segment_bytes
        self._writer = Writer(store, committer, probe, sync=self._synced)
        self._space = Space(store.segment_bytes, options.bytes_max)
        self.retain = self._space.retain
        """(position, span): these bytes of the log live, until they are released."""
        self.growing = Growing(store, self._space, committer, self._grown)
        self._log = Appender(self._space, self._writer.sealed, self.growing.grow)
        self._error: ClarionError | None = InternalFault(detail="the journal is not started")
        self._failed = False
        self._closing = False
        self.gathers = False
        """Whoever appends now calls `flush` afterwards: until then nothing need be scheduled."""
        self._flush_scheduled = False
        self._committing = False
        self._waiting_here = False
        self._checkpointer = Checkpointer(self._space, self._log, probe)
        self._writer.on_progress = self._advance

    @classmethod
    def open(
        cls, store: Store, options: JournalOptions, committer: Committer, probe: Probe | None = None
    ) -> tuple[Journal, Recovery]:
        """Read what the store holds. Read all of `recovery.records`, retain what lives, `start`."""
        recovered = recover(store.read, store.files(), store.segment_bytes)
        journal = cls(store, options, committer, recovered, probe)
        journal._adopt(recovered)
        recovery = Recovery(
            recovered.parts,
            recovered.records(),
            recovered.lost,
            recovered.repaired,
            recovered.plan.discarded_bytes,
            recovered.fresh,
        )
        return journal, recovery

    def _adopt(self, recovered: Recovered) -> None:
        space = self._space
        space.checkpoints = self._writer.checkpoints = recovered.checkpoints
        space.pending = self._store.pending
        last = ordinal_of_end(recovered.plan.cut, self._segment_bytes)
        for ordinal, segment in recovered.scanner.segments.items():
            if ordinal <= last:
                space.adopt(segment.file, ordinal)
            else:
                space.free.append(segment.file)
        space.free.extend(recovered.scanner.unused)

    def start(self) -> None:
        """Make what was recovered durable, begin a new incarnation, take appends. Blocks."""
        recovered = self._recovered
        if recovered is None or not recovered.exhausted:
            raise InternalFault(detail="start comes once, after all recovered records were read")
        self._recovered = None
        make_durable(self._store, self._writer, recovered, sync=self._synced)
        cut = recovered.plan.cut
        self._space.after_recovery(ordinal_of_end(cut, self._segment_bytes), cut)
        self._space.recycle(cut)
        if not self._space.free and cut % self._segment_bytes + SMALL_GROUP_BYTES > self._segment_bytes:
            # Nothing is left to begin with, so even beyond the bound.
            self._space.free.append(self._store.create())
        elif not self._space.free and self._space.active is None:
            self._space.free.append(self._store.create())
        self._space.pending = self._store.pending
        self._log.incarnation = recovered.scanner.incarnation_max + 1
        self._log.index = recovered.index_last
        self._checkpointer.resume(
            recovered.checkpoint_end, recovered.index_last - recovered.entries, urgent=recovered.fell_back
        )
        self._log.resume(cut)
        self.durable = self._log.durable
        self._log.place(Kind.INCARNATION, b"", b"", Claim.UPKEEP)
        self._log.seal()
        self._writer.run()
        if self._writer.failure is not None:
            raise self._writer.failure
        self._error = None
        self.durable = self._log.durable = self._writer.written_end
        self._committer.on_idle(self._writer.hint)
        self._recycle()
        self.growing.grow()

    # --- appending ------------------------------------------------------------------------------

    @property
    def tail(self) -> int:
        log = self._log
        return log.base + log.offset

    @property
    def index_last(self) -> int:
        """The index of the newest entry; 0 if there never was one."""
        return self._log.index

    @property
    def record_bytes_max(self) -> int:
        """The largest 2 * head + body that one record can have here."""
        return record_bytes_max(self._segment_bytes)

    def room(self) -> int:
        """Bytes that producers may still append, what surrounds a record included."""
        log = self._log
        room = log.room_base + self._segment_bytes - log.offset
        return room if room > 0 else 0

    def append(self, kind: int, head: bytes, body: Buffer = b"", *, reserve: bool = False) -> Location:
        """Put a record at the end of the log; it is durable when `on_durable` passes its end.

        `reserve` is for what must go on when producers must not: confirmations, outcomes and the like.
        """
        if self._error is not None:
            raise self._error
        claim = Claim.COMPACTION if kind == Kind.MOVED else Claim.RESERVE if reserve else Claim.PRODUCER
        log = self._log
        location = log.place(kind, head, body, claim)
        # During a commit its end looks for what has gathered; only much of it goes on earlier, and whatever can go with
        # that: else a small record would wait for the present commit, the one of much, and its own.
        if not self._flush_scheduled and (not self._committing or self._seals_early):
            self._flush_scheduled = True
            if not self.gathers:
                self._committer.schedule(self._flush)
        return location

    @property
    def _seals_early(self) -> bool:
        """During a commit: there is much to seal, or much is sealed already and not begun."""
        log = self._log
        return log.offset - log.group_offset >= EARLY_SEAL_BYTES or bool(self._writer.sealed)

    def flush(self) -> None:
        """Give the writer now what was appended, instead of after this turn of the loop."""
        self.gathers = False
        if self._flush_scheduled:
            self._flush()

    def _flush(self) -> None:
        """Give the writer what has gathered, unless it is better to gather more."""
        self._flush_scheduled = False
        if self._error is not None:
            return
        if not self._committing and self._checkpointer.run is not None:
            self._checkpointer.step()
        if not self._synced:
            self._flush_at_once()
            return
        if self._committing:
            if self._seals_early:
                self._log.seal()
            return
        self._log.seal()
        if self._writer.sealed:
            self._committing = True
            if not self._commits_here():
                self._committer.submit(self._writer.run, self._written)

    def _commits_here(self) -> bool:
        """Commit a lone group in place, effects and all. False: not done, or not done completely."""
        writer = self._writer
        sealed = writer.sealed
        if len(sealed) > 1 or sealed[0].size > LONE_BYTES_MAX or not writer.is_quick:
            return False
        if self._waiting_here or not self.may_wait() or not self._committer.here(writer.run_here):
            return False
        if sealed:
            return False
        self.commits_here += 1
        self._waiting_here = True
        try:
            self._written()
        finally:
            self._waiting_here = False
        return True

    def _flush_at_once(self) -> None:
        """`process` durability: a copy into mapped memory is durable when it is made."""
        self._log.seal()
        if self._writer.sealed:
            self._writer.run()
            self._advance()
            self._writer.hint()

    def _written(self) -> None:
        self._committing = False
        self._advance()

    def _advance(self) -> None:
        """The writer got further, or failed."""
        durable = self._writer.written_end
        if durable > self.durable:
            self.durable = self._log.durable = durable
            if self._checkpointer.run is not None:
                run = self._checkpointer.complete(durable)
                if run is not None:
                    self._complete_checkpoint(run.done)
            if self._space.dead:
                self._recycle()
            self.on_durable(durable)
        if self._writer.failure is not None:
            self._fail(self._writer.failure)
            return
        if self._committing or self._closing:
            return
        checkpointer = self._checkpointer
        if self._log.buffers or self._writer.sealed or (checkpointer.run is not None and checkpointer.has_parts):
            self._schedule_flush_now()

    def _schedule_flush_now(self) -> None:
        if self._synced:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._committer.schedule(self._flush)

    def _fail(self, error: ClarionError) -> None:
        if self._failed:
            return
        self._failed = True
        self._error = error
        self._checkpointer.abandon()
        self.on_failed(error)

    # --- space ------------------------------------------------------------------------------------

    def release(self, position: int, span: int) -> None:
        if self._space.release(position, span, self._log.tail) and self._error is None:
            self._recycle()

    def compaction_victim(self) -> Victim | None:
        return self._space.victim()

    def _recycle(self) -> None:
        recycled = self._space.recycle(self._log.durable)
        if not recycled:
            return
        if self._probe is not None:
            for _ in recycled:
                self._probe("journal.recycle")
        self._space_grew()

    def _space_grew(self) -> None:
        self._log.space_changed()
        self.on_room()

    def _grown(self, is_more: bool) -> None:
        """An attempt to prepare a segment is over."""
        if is_more:
            self._space_grew()
        if self._checkpointer.has_parts and not self._committing:
            self._flush()

    # --- checkpoints --------------------------------------------------------------------------------

    @property
    def checkpoint_estimate_bytes(self) -> int:
        """How large the caller thinks its next checkpoint is; the reserve holds two of them."""
        return self._space.estimate_bytes

    @checkpoint_estimate_bytes.setter
    def checkpoint_estimate_bytes(self, value: int) -> None:
        self._space.estimate_bytes = value
        self._log.space_changed()
        if self._error is None:
            self.growing.grow()  # a larger reserve may have taken the last room: then nobody else would ask for more

    @property
    def checkpoint_due(self) -> bool:
        return self._error is None and self._checkpointer.is_due(self._options)

    def checkpoint(self, parts: Iterator[bytes], done: Callable[[], None] | None = None) -> None:
        """Write a checkpoint beside the traffic. `done` is called when it is complete."""
        if self._error is not None:
            raise self._error
        self._checkpointer.begin(parts, done)
        if not self._committing:
            self._schedule_flush_now()

    def _complete_checkpoint(self, done: Callable[[], None] | None) -> None:
        self._writer.checkpoints = self._space.checkpoints
        self._recycle()
        self.growing.grow()
        if self._probe is not None:
            self._probe("journal.checkpoint_end")
        if done is not None:
            done()

    # --- reading, status, the end ---------------------------------------------------------------------

    def read(self, position: int, span: int, *, alone: bool = False) -> list[Record]:
        """The records in these bytes of the log that check. Blocks; any thread may call it.

        What is not written yet is not found; what was recycled meanwhile is not found either. `alone`: nothing is read
        ahead, which small commits would wait for.
        """
        end = position + span
        found = []
        while position < end:
            ordinal, offset = divmod(position, self._segment_bytes)
            base = ordinal * self._segment_bytes
            segment = self._space.in_use.get(ordinal)
            if segment is not None:
                length = min(end - base, self._segment_bytes) - offset
                data = memoryview(self._store.read(segment.file, offset, length, alone=alone))
                for at, raw in salvage(data, 0, ordinal):
                    if is_visible(raw.kind):
                        found.append(to_record(data, raw, position + at))
            position = base + self._segment_bytes + SEGMENT_HEADER_BYTES
        return found

    def status(self) -> JournalStatus:
        space, writer = self._space, self._writer
        times = sorted(writer.commit_us) or [0]
        return JournalStatus(
            segments=space.segments,
            free_segments=len(space.free),
            segment_bytes=self._segment_bytes,
            bytes_total=space.segments * self._segment_bytes,
            bytes_live=space.live_bytes,
            bytes_reserve=space.reserve_bytes,
            room=self.room(),
            tail=self.tail,
            durable=self.durable,
            checkpoint_newest=space.checkpoints.newest,
            checkpoint_older=space.checkpoints.older,
            commits=writer.commits,
            commits_here=self.commits_here,
            commit_us_p50=times[len(times) // 2],
            commit_us_p99=times[len(times) * 99 // 100],
            syncs=writer.syncs,
            growth_blocked=space.growth_blocked,
            write_blocked=writer.write_blocked,
            warnings=list(self._store.warnings),
        )

    def close(self) -> None:
        """Make everything appended durable, join the threads, give the store back. Blocks."""
        if self._closing:
            return
        self._closing = self.growing.closing = True
        try:
            self._checkpointer.abandon()
            if self._error is None:
                self._log.seal()
                self._committing = True
                self._error = InternalFault(detail="the journal is closed")
                self._committer.submit(self._write_last, self._written)
        finally:  # whatever fails, like want of memory: who opens the directory next must find it free
            try:
                while True:  # descriptors that are closed under a writer are soon those of other files
                    try:
                        self._committer.close()
                        break
                    except NO_MEMORY:
                        time.sleep(AGAIN_S)
            finally:
                self._store.close()

    def _write_last(self) -> None:
        self._writer.run()
        self._writer.hint()
