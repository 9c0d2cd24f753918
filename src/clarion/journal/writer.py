"""The writer: sealed groups to the store, in order, and durable.

Guarantees
    1. `written_end` is a position up to which everything is on the disk (synced, in `power` mode).
    2. After the first failure nothing is written, and `written_end` does not move again. An error of
       a sync is always a failure: the kernel may have dropped the pages and called them clean, so a
       second sync that succeeds says nothing.

Rules
    1. Runs on the writer thread; the appending thread only adds to `sealed` and reads the results. A lone group the
       appending thread may write itself, while nothing is submitted (`run_here`).
    2. No space is not a failure: the space was secured, so the file system takes it back or gives it
       again; the writer waits. Only on its own thread.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from clarion.errors import JournalFailed
from clarion.journal.committer import Committer
from clarion.journal.layout import HINT_OFFSETS, Checkpoints, Hint, encode_hint
from clarion.journal.options import Probe
from clarion.journal.record import Buffer
from clarion.journal.store import Store
from clarion.threads import NO_MEMORY

COMMITS_REMEMBERED = 1_000
QUICK_US_MAX = 500
"""A disk whose commits take less, on average, may be waited for."""
AVERAGE_COMMITS = 16
"""Over about so many: after a stall of 100 ms some 50 commits must be quick before the disk is again."""
AVERAGE_US_FIRST = 2_000.0
"""Nobody knows the disk yet."""


class Group(msgspec.Struct, gc=False):
    """A sealed group, placed: nothing of it changes any more."""

    file: int
    offset: int
    size: int
    buffers: list[Buffer]
    generation: int
    incarnation: int
    end: int
    index_last: int


class _Impatient(Exception):
    """The disk wants to be waited for, by a thread that must not."""


def _nothing() -> None:
    return None


class Writer:
    """Takes everything sealed, writes it with one call and syncs once, per file."""

    def __init__(self, store: Store, committer: Committer, probe: Probe | None, *, sync: bool) -> None:
        self.sealed: deque[Group] = deque()
        self.written_end = 0
        self.failure: JournalFailed | None = None
        self.write_blocked = False
        self.commits = 0
        self.syncs = 0
        self.commit_us: deque[int] = deque(maxlen=COMMITS_REMEMBERED)
        self.checkpoints = Checkpoints(0, 0)
        self.on_progress: Callable[[], None] = _nothing
        self._store = store
        self._committer = committer
        self._probe = probe
        self._sync = sync
        self._last: Group | None = None
        self._hinted: Hint | None = None
        self._hint_turn = 0
        self._starved = JournalFailed(operation="write", detail="no memory")
        self._patient = True
        self._average_us = AVERAGE_US_FIRST

    def run(self) -> None:
        """Commit until nothing is sealed. `on_progress` is posted when more is still to come."""
        try:
            self._run()
        except NO_MEMORY:  # nobody knows how far it came
            self.failure = self._starved

    @property
    def is_quick(self) -> bool:
        """The last commits were, on average."""
        return self._average_us < QUICK_US_MAX

    def run_here(self) -> None:
        """`run` for the appending thread: if the disk wants to be waited for, everything stays sealed."""
        self._patient = False
        try:
            self.run()
        finally:
            self._patient = True

    def _run(self) -> None:
        sealed = self.sealed
        while sealed and self.failure is None:
            started_ns = time.perf_counter_ns()
            groups = [sealed.popleft()]
            while sealed:
                groups.append(sealed.popleft())
            try:
                self._commit(groups)
            except JournalFailed as failure:
                self.failure = failure
                return
            except _Impatient:
                sealed.extendleft(reversed(groups))
                return
            self._last = last = groups[-1]
            self.written_end = last.end
            self.commits += 1
            took_us = (time.perf_counter_ns() - started_ns) // 1_000
            self.commit_us.append(took_us)
            self._average_us += (took_us - self._average_us) / AVERAGE_COMMITS
            if sealed:
                self._committer.post(self.on_progress)

    def hint(self) -> None:
        """Note what is durable, and the checkpoints, beside the segment's header. Not synced: if it
        does not survive, only the proof that the last group was durable is missing."""
        last = self._last
        if last is None or self.failure is not None:
            return
        hint = Hint(last.incarnation, last.generation, last.end, self.checkpoints, last.index_last)
        if hint == self._hinted:
            return
        self._hinted = hint
        self._hint_turn ^= 1
        try:
            self.write_fully(last.file, HINT_OFFSETS[self._hint_turn], [encode_hint(hint)])
        except JournalFailed as failure:
            self.failure = failure

    def sync_file(self, file: int) -> None:
        """One sync. Any error is final."""
        try:
            self._store.sync(file)
        except OSError as error:
            raise JournalFailed(operation="sync", detail=str(error)) from error
        self.syncs += 1

    def write_fully(self, file: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """All of it, however often the store takes only a part."""
        self._write(file, offset, buffers, sum(map(len, buffers)))

    def _commit(self, groups: list[Group]) -> None:
        probe = self._probe
        if probe is not None:
            probe("journal.before_write")
        first = groups[0]
        if len(groups) == 1:
            files = [first.file]
            self._write(first.file, first.offset, first.buffers, first.size)
        else:
            files = self._write_groups(groups)
        if probe is not None:
            probe("journal.after_write")
        if self._sync:
            if probe is not None:
                probe("journal.before_sync")
            for file in files:
                self.sync_file(file)
            if probe is not None:
                probe("journal.after_sync")

    def _write_groups(self, groups: list[Group]) -> list[int]:
        """One call for the groups of one segment, which lie one behind the other. Returns the files."""
        files: list[int] = []
        at = 0
        while at < len(groups):
            first = groups[at]
            buffers, size = first.buffers, first.size
            at += 1
            while at < len(groups) and groups[at].file == first.file:
                buffers = buffers + groups[at].buffers
                size += groups[at].size
                at += 1
            self._write(first.file, first.offset, buffers, size)
            files.append(first.file)
        return files

    def _write(self, file: int, offset: int, buffers: Sequence[Buffer], left: int) -> None:
        while True:
            try:
                count = self._store.write(file, offset, buffers)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EINTR):
                    raise JournalFailed(operation="write", detail=str(error)) from error
                if not self._patient:
                    raise _Impatient from error
                self.write_blocked = True
                if not self._committer.pause():
                    raise JournalFailed(operation="write", detail="closed while the disk was full") from error
                continue
            self.write_blocked = False
            left -= count
            if left <= 0:
                return
            offset += count
            buffers = _after(buffers, count)


def _after(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """What is left of the buffers when `count` bytes of them were taken."""
    rest: list[Buffer] = []
    for buffer in buffers:
        size = len(buffer)
        if count >= size:
            count -= size
        elif count:
            rest.append(memoryview(buffer)[count:])
            count = 0
        else:
            rest.append(buffer)
    return rest
