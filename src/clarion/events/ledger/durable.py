"""Something that will be durable: to be awaited, or to be told of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from clarion.errors import ClarionError


class Durable:
    """`await` it, or give it a callback with `then`. On the loop's thread only.

    If persistent memory fails an `await` raises, and callbacks are never called: what the disk holds is unknown.
    """

    __slots__ = ("_callbacks", "_failures", "done", "error")

    def __init__(self, *, done: bool = False) -> None:
        self.done = done
        self.error: ClarionError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._failures: list[Callable[[ClarionError], None]] = []

    def then(self, callback: Callable[[], None]) -> None:
        """Call it when durable; at once if it is."""
        if self.done:
            callback()
        elif self.error is None:
            self._callbacks.append(callback)

    def complete(self) -> None:
        """It is durable."""
        self.done = True
        callbacks, self._callbacks = self._callbacks, []
        self._failures = []
        for callback in callbacks:
            callback()

    def fail(self, error: ClarionError) -> None:
        """It will not be, as far as anybody knows."""
        self.error = error
        self._callbacks = []
        failures, self._failures = self._failures, []
        for callback in failures:
            callback(error)

    def __await__(self) -> Generator[object, None, None]:
        if self.error is not None:
            raise self.error
        if self.done:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callbacks.append(lambda: None if future.done() else future.set_result(None))
        self._failures.append(lambda error: None if future.done() else future.set_exception(error))
        yield from future
