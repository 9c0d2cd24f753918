"""What a recipient is, and what the ready-made ones have in common.

    class Pager:
        async def deliver(self, events: Sequence[Event]) -> None:
            for event in events:
                await page(event)

Rules for every recipient
    1. Process first, confirm then: `deliver` returns when all events are processed, and returning confirms them.
    2. Raising confirms none; `Partly` says which were processed. What is not confirmed comes again, under the same id.
    3. At most one `deliver` runs at a time, in the order of events per source. Retrying is the engine's: a recipient
       tries once and says what happened. `NotDelivered(permanent=True)` says that the same event will fail again.
    4. An id may come twice (a crash between processing and its recorded confirmation): who minds, keeps ids.
    5. Who has events safe before they are processed may return `Later`, and confirm them when they are.

Optional attributes: `name`, `filter` (a selector), `batch_events_max`, `wants_records` (gets `Recorded`, not `Event`),
`window_events` (how many may be unconfirmed),
`async open()`, `async close()`, and `async ready()`, which the engine may await before it picks what to deliver.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

from clarion import limits
from clarion.errors import BadArgument, BadName, NotDelivered, SessionClosed
from clarion.message import check_name
from clarion.threads import SureThread

if TYPE_CHECKING:
    from clarion.events.event import Event

CLOSE_S_MAX = 10.0
"""How long `close` waits for work under way; a thread that hangs longer is left alone and ends with the process."""
FAILURES_MAX = 8
"""After so many events of a delivery failed the others are not tried: whoever is down need not be asked 256 times."""

_Result = TypeVar("_Result")


@runtime_checkable
class Recipient(Protocol):
    """Anything that events can be delivered to. Only `deliver` is needed."""

    async def deliver(self, events: Sequence[Any], /) -> Later | None:
        """Process `events`: returning confirms all, raising none, `Partly` some; or `Later`."""


class Later:
    """What `deliver` may return: all its events are safe, and are confirmed later, in any order, by their indexes.

    Until then they are neither delivered again nor waited for. After a restart what was not confirmed comes again.
    In the thread of the loop only.
    """

    __slots__ = ("_again", "_confirmed", "_early")

    def __init__(self) -> None:
        self._confirmed: Callable[[list[tuple[int, int]]], None] | None = None
        self._again: Callable[[list[tuple[int, int]]], None] | None = None
        self._early: list[tuple[bool, list[tuple[int, int]]]] = []
        """What is said before anybody listens."""

    def listen(
        self,
        confirmed: Callable[[list[tuple[int, int]]], None],
        again: Callable[[list[tuple[int, int]]], None],
    ) -> None:
        """By the engine."""
        self._confirmed, self._again = confirmed, again
        early, self._early = self._early, []
        for is_confirmed, ranges in early:
            (confirmed if is_confirmed else again)(ranges)

    def confirm(self, ranges: list[tuple[int, int]]) -> None:
        """These (ranges of indexes) are processed."""
        if self._confirmed is None:
            self._early.append((True, ranges))
        else:
            self._confirmed(ranges)

    def again(self, ranges: list[tuple[int, int]]) -> None:
        """These (ranges of indexes) are lost where they were safe: they have to be delivered again."""
        if self._again is None:
            self._early.append((False, ranges))
        else:
            self._again(ranges)


class Partly(Exception):
    """Some events of a delivery were processed.

    `done` are their indexes (a number stands for the first so many), `failed` the errors of those that were tried in
    vain. The others were not tried, so nothing speaks against them.
    """

    def __init__(
        self,
        done: int | Iterable[int],
        error: BaseException | None = None,
        failed: Mapping[int, BaseException] | None = None,
    ) -> None:
        self.done = frozenset(range(done) if isinstance(done, int) else done)
        self.failed = dict(failed or {})
        self.error = error if error is not None else next(iter(self.failed.values()), None)
        super().__init__(f"{len(self.done)} events were processed, then: {self.error}")

    def __reduce__(self) -> tuple[object, ...]:
        return Partly, (self.done, self.error, self.failed)


class Progress:
    """Events of one delivery that are processed one by one.

    After one of a source failed, later ones of that source are left out, to keep their order; other sources go on.
    """

    __slots__ = ("_done", "_events", "_failed", "_stuck")

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._done: list[int] = []
        self._failed: dict[int, BaseException] = {}
        self._stuck: set[str] = set()

    def due(self, index: int) -> bool:
        """This event is to be tried."""
        return len(self._failed) < FAILURES_MAX and (not self._stuck or self._events[index].source not in self._stuck)

    def done(self, index: int) -> None:
        self._done.append(index)

    def failed(self, index: int, error: BaseException) -> None:
        self._failed[index] = error
        self._stuck.add(self._events[index].source)

    def finish(self) -> None:
        """Returns if all were processed; otherwise raises what `deliver` has to."""
        if self._failed:
            if len(self._events) == 1:
                raise self._failed[0]
            raise Partly(self._done, failed=self._failed)


class OwnThread:
    """One thread for the blocking work of one recipient: made by `start`, never one per event.

    Without memory it pauses and goes on: whoever waits for its work hears what became of it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: _Jobs = queue.SimpleQueue()
        self._thread: SureThread | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """A daemon: whatever hangs in it does not keep the process from ending."""
        if self._thread is None:
            thread = SureThread(_Worker(self._jobs).run, f"recipient-{self._name}", daemon=True)
            thread.start()  # may fail for want of memory, and is tried again
            self._thread = thread

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, done in the thread after all that was asked before.

        If the caller is cancelled, work that has begun goes on, and work that has not is dropped.
        """
        if self._thread is None:
            raise SessionClosed()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        self._jobs.put(_Job(work, loop, future))
        return await future

    async def close(self, wait_s: float = CLOSE_S_MAX) -> bool:
        """End the thread when its work is done. False if it still hangs after `wait_s`."""
        if self._thread is None:
            return True
        try:
            await asyncio.wait_for(self.run(lambda: None), wait_s)
        except TimeoutError:
            return False
        finally:
            thread, self._thread = self._thread, None
            jobs, self._jobs = self._jobs, queue.SimpleQueue()
            jobs.put(None)
        thread.join()  # it has nothing left to do
        return True


class _Job(Generic[_Result]):
    __slots__ = ("_error", "_is_done", "_loop", "_result", "_work", "future")

    def __init__(
        self, work: Callable[[], _Result], loop: asyncio.AbstractEventLoop, future: asyncio.Future[_Result]
    ) -> None:
        self._work = work
        self._loop = loop
        self.future = future
        self._is_done = False
        self._result: _Result | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """May be called again after want of memory, and does nothing twice."""
        if not self._is_done:
            if self.future.cancelled():
                return
            try:
                self._result = self._work()
            except BaseException as error:
                self._error = error
            self._is_done = True
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    def _settle(self) -> None:
        error, self._error = self._error, None  # it refers to this by its traceback
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(as_exception(error))
        else:
            self.future.set_result(cast(_Result, self._result))


_Jobs = queue.SimpleQueue[_Job[Any] | None]


class _Worker:
    """What the thread does; `run` is called again after want of memory."""

    def __init__(self, jobs: _Jobs) -> None:
        self._jobs = jobs
        self._job: _Job[Any] | None = None

    def run(self) -> None:
        from clarion.events.capture import quiet

        with quiet():  # what a library logs while it delivers is no event
            while True:
                if self._job is None:
                    job = self._jobs.get()
                    if job is None:
                        return
                    self._job = job
                    del job
                self._job.run()
                self._job = None  # what was delivered is not kept until the next one comes


def as_exception(error: BaseException) -> Exception:
    """What a future and a task can carry: neither takes StopIteration, and SystemExit would end the loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return NotDelivered(reason=f"{type(error).__name__}: {error}", permanent=False)


class Named:
    """Name, filter and batch size of a recipient, checked."""

    wants_records = False

    def __init__(self, name: str, filter: str = "", batch_events_max: int = limits.EVENT_BATCH_EVENTS_DEFAULT) -> None:
        try:
            check_name(name)
        except BadName as error:
            raise BadArgument(argument="name", detail=f"{name!r}: {error.facts['detail']}") from None
        if not 1 <= batch_events_max <= limits.BATCH_MESSAGES_MAX:
            raise BadArgument(argument="batch_events_max", detail=f"{batch_events_max} is not 1 to 65536")
        if filter:
            from clarion.selector import compile_selector

            compile_selector(filter)
        self.name = name
        self.filter = filter
        self.batch_events_max = batch_events_max

    async def open(self) -> None:
        """Get ready; called once, before the first delivery."""

    async def close(self) -> None:
        """Let everything go."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Blocking(Named):
    """A recipient whose work blocks: subclasses override `process`, and `start` and `stop` if there is need.

    All three run in the recipient's own thread, one at a time.
    """

    def __init__(self, name: str, filter: str = "", batch_events_max: int = limits.EVENT_BATCH_EVENTS_DEFAULT) -> None:
        super().__init__(name, filter, batch_events_max)
        self._thread = OwnThread(name)

    def start(self) -> None:
        """Before the first delivery. An error here is no reason to give up: `process` may try again."""

    def process(self, events: Sequence[Event]) -> None:
        """As `Recipient.deliver`, blocking."""
        raise NotImplementedError

    def stop(self) -> None:
        """After the last delivery."""

    def abort(self) -> None:
        """Make `process`, which runs in the other thread, end soon."""

    async def open(self) -> None:
        self._thread.start()
        await self._thread.run(self.start)

    async def deliver(self, events: Sequence[Event]) -> None:
        await self._thread.run(lambda: self.process(events))

    async def close(self) -> None:
        if self._thread.started:
            self.abort()
            stopping = asyncio.ensure_future(self._thread.run(self.stop))
            if await self._thread.close():
                await stopping
            else:
                stopping.cancel()
