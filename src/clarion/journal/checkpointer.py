"""When a checkpoint is due, and how it gets into the log beside the traffic.

Guarantees
    At most one is in progress; the two complete ones stand until its end record is durable.

Rules
    1. A begin record starts a group, for a replay starts where a group starts.
    2. Without room for the next part it waits; it never fails for want of space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clarion import limits
from clarion.errors import InternalFault, JournalFull
from clarion.journal.appender import Appender
from clarion.journal.checkpoint import BEGIN_HEAD, GROUP_PART_BYTES_MAX, CheckpointRun
from clarion.journal.layout import SMALL_GROUP_BYTES
from clarion.journal.options import JournalOptions, Probe
from clarion.journal.record import Kind
from clarion.journal.space import Claim, Space


class Checkpointer:
    def __init__(self, space: Space, log: Appender, probe: Probe | None) -> None:
        self._space = space
        self._log = log
        self._probe = probe
        self.run: CheckpointRun | None = None
        """The one in progress; without it `step` and `complete` have nothing to do."""
        self._end = space.segment_bytes
        """Where the newest complete checkpoint ended; without one, where the log began."""
        self._index = 0
        self._urgent = False

    def resume(self, end: int, index: int, *, urgent: bool) -> None:
        """After recovery: the newest checkpoint ended there and began after that index."""
        self._end = end or self._space.segment_bytes
        self._index = index
        self._urgent = urgent

    def is_due(self, options: JournalOptions) -> bool:
        if self.run is not None:
            return False
        space, log = self._space, self._log
        if space.room_base(Claim.UPKEEP) + space.segment_bytes - log.offset < SMALL_GROUP_BYTES:
            return False
        # Since its end, not its begin: a checkpoint larger than the bound must not make the next one due.
        log_bytes = log.tail - self._end
        return (
            self._urgent
            or log_bytes >= min(self._log_bytes_due(), options.checkpoint_log_bytes, space.capacity_bytes() // 8)
            or log.index - self._index >= options.checkpoint_log_entries
            or space.checkpoint_helps(log_bytes)
        )

    def _log_bytes_due(self) -> int:
        """After how much log the next one pays: a small state soon, a large one less often."""
        return max(limits.CHECKPOINT_LOG_BYTES_MIN, limits.CHECKPOINT_LOG_FACTOR * self._space.checkpoint_bytes)

    @property
    def has_parts(self) -> bool:
        """More of it is to be written."""
        return self.run is not None and not self.run.end

    def begin(self, parts: Iterator[bytes], done: Callable[[], None] | None) -> None:
        if self.run is not None:
            raise InternalFault(detail="a checkpoint is already being written")
        if self._probe is not None:
            self._probe("journal.checkpoint_begin")
        self._log.seal()
        index = self._log.index
        location = self._log.place(Kind.CHECKPOINT_BEGIN, BEGIN_HEAD.pack(index), b"", Claim.UPKEEP)
        self.run = CheckpointRun(location.position, index, parts, done)

    def step(self) -> None:
        """Add a few parts to the open group."""
        run = self.run
        if run is None:
            return
        written = 0
        try:
            while not run.end and written < GROUP_PART_BYTES_MAX:
                part = run.next_part()
                if part is None:
                    location = self._log.place(Kind.CHECKPOINT_END, run.end_head(), b"", Claim.UPKEEP)
                    run.end = location.position + location.span
                    return
                self._log.place(Kind.CHECKPOINT_PART, run.part_head(), part, Claim.UPKEEP)
                run.part_written(part)
                written += len(part)
        except JournalFull:
            return
        except Exception:
            self.run = None
            raise

    def complete(self, durable: int) -> CheckpointRun | None:
        """The checkpoint that is complete now that the log is durable so far."""
        run = self.run
        if run is None or not run.end or run.end > durable:
            return None
        self.run = None
        self._end = run.end
        self._index = run.index
        self._urgent = False
        self._space.checkpoint_completed(run.begin, run.size_bytes)
        self._log.space_changed()
        return run

    def abandon(self) -> None:
        self.run = None
