"""The log of an archive: numbered entries, each made once, by whoever comes first.

Theory of operation
    To change an archive one reads its log to the end, decides, and creates the next entry. If somebody else has
    created it meanwhile, his entry is read and it is decided again. So all changes are in one order, each was
    decided with full knowledge of those before it, and no lock is held by anybody who may die.

    Every `CHECKPOINT_ENTRIES` entries somebody writes down what all of them say together. It is a function of them:
    whoever writes it writes the same. Readers begin at the last checkpoint.

Guarantees
    1. An entry that `commit` returned is durable, and every later reader sees it.
    2. A process that dies anywhere in here leaves the log as it was before or after its entry.
    3. Entries that a checkpoint stands for are deleted only by `clean`, when they are older than `LOG_GRACE_MS` and
       nobody reads the archive as it was then. Who decided longer ago than half of that does not trust his entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from clarion.errors import BadArgument, NotReady
from clarion.pipelines.archive import layout, steps
from clarion.pipelines.archive.entries import Checkpoint, Entry, decoded, encoded
from clarion.pipelines.archive.files import Files
from clarion.pipelines.archive.state import State

CHECKPOINT_ENTRIES = 32
LOG_GRACE_MS = 24 * 3_600_000
ORPHAN_GRACE_MS = 24 * 3_600_000
"""A file that no entry names may be one of a writer that is not ready, until it is so old."""
LISTINGS_MAX = 5
"""A listing made while entries come and go may have holes; so often another one is made."""

Decide = Callable[[State], Entry | None]


class Log:
    """One reader or writer of a log. Not for several threads."""

    def __init__(self, files: Files, clock: Callable[[], float] = time.time) -> None:
        self._files = files
        self._clock = clock
        self._state: State | None = None

    def now_ms(self) -> int:
        """Of the clock that entries are written by."""
        return int(self._clock() * 1000)

    # --- reading ------------------------------------------------------------------------------------------

    def latest(self) -> State:
        """What the archive holds now. The state is the log's own: look, do not keep."""
        for _ in range(LISTINGS_MAX):
            entries, checkpoints = self._listed()
            end = max([*entries, *checkpoints], default=0)
            state = self._state
            if state is None or (end > state.number and state.number + 1 not in entries):
                state = self._loaded(max(checkpoints, default=0))  # the first time, or it was cleaned since
            if state is not None and self._read_on(state, None) >= end:
                self._state = state
                return state
            self._state = None
        raise BadArgument(argument=self._files.uri, detail=f"the log of the archive has a hole before entry {end}")

    def at(self, number: int | None) -> State:
        """What the archive held after an entry; now, if it is None. The state is the caller's."""
        for _ in range(LISTINGS_MAX):
            entries, checkpoints = self._listed()
            wanted = max([*entries, *checkpoints], default=0) if number is None else number
            state = self._loaded(max((one for one in checkpoints if one <= wanted), default=0))
            if state is not None and self._read_on(state, wanted) >= wanted:
                return state
        detail = f"what it held after entry {number} is not known any more, or never was"
        raise BadArgument(argument=self._files.uri, detail=detail)

    def _listed(self) -> tuple[set[int], set[int]]:
        parsed = [layout.parse_log_name(name) for name in self._files.names(layout.LOG)]
        known = [one for one in parsed if one is not None]
        return {number for number, summed in known if not summed}, {number for number, summed in known if summed}

    def _loaded(self, number: int) -> State | None:
        """The state at a checkpoint, of nothing if it is 0; None if it is gone."""
        if number == 0:
            return State()
        path = layout.checkpoint_path(number)
        try:
            return State.of(decoded(self._files.read(path), Checkpoint, f"{self._files.uri}/{path}"))
        except FileNotFoundError:
            return None

    def _read_on(self, state: State, end: int | None) -> int:
        """Apply entries, to the end or up to this one; the number of the last."""
        while end is None or state.number < end:
            path = layout.entry_path(state.number + 1)
            try:
                data = self._files.read(path)
            except FileNotFoundError:
                break
            state.apply(decoded(data, Entry, f"{self._files.uri}/{path}"))
        return state.number

    # --- writing ------------------------------------------------------------------------------------------

    def commit(self, decide: Decide) -> Entry | None:
        """Write the entry that `decide` makes of the state now; None if it decides that there is nothing to write.

        `decide` may be called several times: whenever somebody else was faster.
        """
        while True:
            began_ms = self.now_ms()
            state = self.latest()
            entry = decide(state)
            if entry is None:
                return None
            steps.at("archive.entry")
            if self._files.create(layout.entry_path(state.number + 1), encoded(entry)):
                steps.at("archive.entered")
                if self.now_ms() - began_ms > LOG_GRACE_MS // 2:
                    self._state = None  # its number may have been used and cleaned before: then it says nothing
                    raise NotReady(detail="writing to the archive took longer than its log is kept; try again")
                state.apply(entry)
                if state.number % CHECKPOINT_ENTRIES == 0:
                    self._checkpoint(state)
                return entry

    def _checkpoint(self, state: State) -> None:
        steps.at("archive.checkpoint")
        self._files.create(layout.checkpoint_path(state.number), encoded(state.checkpoint()))

    def clean(self) -> int:
        """Delete entries and checkpoints that nobody needs, and unfinished ones; how many."""
        state, now_ms = self.latest(), self.now_ms()
        _, checkpoints = self._listed()
        pinned = state.oldest_pin(now_ms)
        kept = sorted(one for one in checkpoints if pinned is None or one <= pinned)
        keep_from = kept[-2] if len(kept) > 1 else 0  # the last but one as well
        cleaned = 0
        for found in self._files.walk(layout.LOG):
            name = found.path.rpartition("/")[2]
            parsed = layout.parse_log_name(name)
            old = found.modified_ms + LOG_GRACE_MS <= now_ms
            if old and (parsed[0] < keep_from if parsed else name.startswith(layout.TEMPORARY)):
                steps.at("archive.cleaned")
                self._files.remove(found.path)
                cleaned += 1
        return cleaned
