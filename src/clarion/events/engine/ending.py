"""Ending a loop although some of its tasks cannot be woken any more.

Guarantee: when `end` returns every coroutine of the loop has run its `finally`s, and the loop is closed. Nothing is
left that would let go later, when it has come to somebody else, what it once held.

Want of memory leaves such tasks: what they waited for has come, and the call that was to wake them was lost. To cancel
them is no use, for that would need the same call. So they get some time, and then their coroutines are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from clarion.threads import AGAIN_S, NO_MEMORY

CANCEL_S_MAX = 3.0
"""For all that is cancelled to end."""
END_S_MAX = 5.0
"""For one attempt at the end."""
_CLOSES_MAX = 100
"""An `await` on the way out of a coroutine keeps it from closing, once."""


def end(loop: asyncio.AbstractEventLoop) -> None:
    """Blocks; in the thread of the loop, which must not run any more. Insists without memory.

    What is awaited here may be lost like everything else: so each time it has only so long, and then it begins again.
    """
    while not loop.is_closed():
        try:
            loop.call_later(END_S_MAX, loop.stop)
            loop.run_until_complete(_end_tasks())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        except (*NO_MEMORY, RuntimeError):  # stopped, since it took too long
            time.sleep(AGAIN_S)


async def _end_tasks() -> None:
    """Also those that begin meanwhile: a connection that was accepted last has its task only then."""
    known = {asyncio.current_task()}
    while tasks := asyncio.all_tasks() - known:
        known |= tasks
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=CANCEL_S_MAX)
        for task in late:
            _close(task)


def _close(task: asyncio.Task[object]) -> None:
    coroutine = task.get_coro()
    for _ in range(_CLOSES_MAX):
        if getattr(coroutine, "cr_frame", None) is None:
            break
        with contextlib.suppress(Exception):  # whatever it says on its way out
            coroutine.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
