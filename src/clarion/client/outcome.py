"""Something that will be answered: waited for by nobody, one or many, without a future unless somebody waits.

Guarantees: it is settled once; whoever waits gets the same answer, errors as a new object each
time (so that tracebacks do not grow together).
"""

from __future__ import annotations

import asyncio

from clarion.errors import ClarionError
from clarion.protocols.greetings import Goodbye


class Outcome:
    """Pending, done, or failed."""

    __slots__ = ("_waiters", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: ClarionError | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def watched(self) -> bool:
        """Somebody waits for it."""
        return self._waiters is not None

    async def wait(self) -> None:
        """Return when done. Raises what it failed with."""
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            await waiter
        if self.error is not None:
            raise again(self.error)

    def settle(self, error: ClarionError | None = None) -> None:
        """Done, or failed. A second time changes nothing. Only in the thread of the loop."""
        if self.done:
            return
        self.error = error
        self.done = True
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None


def again(error: ClarionError) -> ClarionError:
    """The same error as a new object."""
    return type(error)(**error.facts)


def error_of(said: object) -> ClarionError:
    """The error in a payload {code, facts}."""
    known = said if isinstance(said, dict) else {}
    code, facts = known.get("code"), known.get("facts")
    error = Goodbye(str(code or "CLN-001"), facts if isinstance(facts, dict) else {}).error()
    assert error is not None
    return error


def release(waiters: list[asyncio.Future[None]]) -> None:
    """Wake all of them."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()
