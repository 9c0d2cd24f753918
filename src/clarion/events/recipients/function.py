"""A callable as a recipient: one event a call, or with `batch=True` a list of them; blocking or `async`.

    def page(event: Event) -> None: …
    EventSystem.open(path, recipients=[page])                       # wrapped by `as_recipient`
    EventSystem.open(path, recipients=[Function(page, filter="severity_level >= 40")])

Guarantees
    1. Returning confirms; any exception does not, and the event comes again.
    2. A blocking callable runs in one thread of its own, never in the event loop; an `async` one runs in the loop.
    3. With `timeout_s`, an `async` call that takes longer is cancelled. A blocking one cannot be: it counts as failed,
       and the next one waits until it ends.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.errors import BadArgument, NotDelivered
from clarion.events.recipients.base import Named, OwnThread, Progress, Recipient, as_exception

if TYPE_CHECKING:
    from clarion.events.event import Event


class Function(Named):
    """Calls `function(event)`, or `function(events)` with `batch`."""

    def __init__(
        self,
        function: Callable[[Any], object],
        *,
        name: str | None = None,
        filter: str = "",
        batch: bool = False,
        timeout_s: float | None = None,
        batch_events_max: int = limits.EVENT_BATCH_EVENTS_DEFAULT,
    ) -> None:
        if not callable(function):
            raise BadArgument(argument="function", detail=f"a {type(function).__name__} cannot be called")
        if timeout_s is not None and not timeout_s > 0:
            raise BadArgument(argument="timeout_s", detail=f"{timeout_s} is not more than 0")
        super().__init__(name if name is not None else _name(function), filter, batch_events_max)
        self._function = function
        self._batch = batch
        self._timeout_s = timeout_s
        self._thread = None if _is_async(function) else OwnThread(self.name)

    async def open(self) -> None:
        if self._thread is not None:
            self._thread.start()

    async def deliver(self, events: Sequence[Event]) -> None:
        if self._batch:
            await self._call(list(events))
            return
        progress = Progress(events)
        if self._thread is not None and self._timeout_s is None:
            await self._thread.run(lambda: self._all_in_thread(events, progress))
        else:
            for index, event in enumerate(events):
                if progress.due(index):
                    try:
                        await self._call(event)
                    except Exception as error:
                        progress.failed(index, error)
                    else:
                        progress.done(index)
        progress.finish()

    async def close(self) -> None:
        if self._thread is not None:
            await self._thread.close()

    async def _call(self, argument: object) -> None:
        """One call, bounded in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._thread is not None:
                    await self._thread.run(lambda: self._blocking(argument))
                else:
                    await self._awaited(argument)
        except TimeoutError:
            raise NotDelivered(reason=f"{self.name} did not return within {self._timeout_s} s") from None

    async def _awaited(self, argument: object) -> None:
        try:
            result = self._function(argument)
            assert isinstance(result, Awaitable)
            await result
        except TimeoutError as error:  # its own, not ours
            raise NotDelivered(reason=f"{self.name}: {type(error).__name__}: {error}") from error
        except (SystemExit, KeyboardInterrupt) as error:
            raise as_exception(error) from error

    def _all_in_thread(self, events: Sequence[Event], progress: Progress) -> None:
        """One hop to the thread for the whole delivery: a hop costs more than most calls."""
        for index, event in enumerate(events):
            if progress.due(index):
                try:
                    self._blocking(event)
                except BaseException as error:
                    progress.failed(index, as_exception(error))
                else:
                    progress.done(index)

    def _blocking(self, argument: object) -> None:
        result = self._function(argument)
        if inspect.iscoroutine(result):
            result.close()
            raise NotDelivered(
                reason=f"{self.name} returned a coroutine that nobody awaits: declare it `async def`", permanent=True
            )


def as_recipient(thing: Recipient | Callable[[Event], object]) -> Recipient:
    """A recipient as it is, a callable as a `Function`. Raises `BadArgument` for anything else."""
    if callable(getattr(thing, "deliver", None)):
        assert isinstance(thing, Recipient)
        return thing
    if not callable(thing):
        detail = f"a {type(thing).__name__} has no method deliver(events) and cannot be called"
        raise BadArgument(argument="recipients", detail=detail)
    return Function(thing)


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _name(function: object) -> str:
    """Of the function, its class, or what it is a part of: names are kept over restarts, so no numbers are made up."""
    inner = getattr(function, "func", function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return str(name).strip("<>")
