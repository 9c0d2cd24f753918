"""A journal's committer without threads, for a host that has an event loop: deterministic order."""

from __future__ import annotations

import asyncio

from clarion.journal.committer import InlineCommitter, Work


class LoopCommitter(InlineCommitter):
    """Work is done by the loop, soon after it was asked for, never inside the asking call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._due = False

    def _add(self, *steps: Work) -> None:
        super()._add(*steps)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._run_due)

    def _run_due(self) -> None:
        self._due = False
        self.run()
