"""Reading by sequences: which there are, slices of them, and confirming ranges.

A `Reader` does not receive: it is told which sequences there are, and confirms what was made of them, as often and as
late as it likes. In between anybody reads them, with `Session.read`, from any connection.

Guarantees
    1. An open reader is the only user of its subscription, and stays it over lost connections; if somebody else has
       taken it meanwhile, the next `look` says so.
    2. `confirm` is durable when it returns, needs no open reader, and is as good twice as once.
    3. `answers` keeps `READS_AHEAD` requests on their way, so that no more than as many answers are ever in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Self

import msgspec

from clarion import limits
from clarion.client.channel import Channel
from clarion.client.commands import Call
from clarion.client.outcome import again
from clarion.client.subscription import wanted_of
from clarion.errors import BadArgument, ClarionError, ConnectionLost
from clarion.message import parse_destination
from clarion.wire.batch import Batch
from clarion.wire.frames import Type

READS_AHEAD = 4
"""Requests of one range that are on their way."""
READ_BYTES = 2 * limits.MIB
"""What an answer holds at most, unless a single message is larger."""
_STEP_MAX = 1 << 24
_OPEN = "reader_open"

Wanted = dict[str, Any]
Ranges = Mapping[str, Iterable[tuple[int, int]]]
Slices = list[tuple[int, Batch]]


class Readable(msgspec.Struct, frozen=True):
    """What can be read of a destination now."""

    destination: str
    """With its kind: `topic:NAME` or `queue:NAME`."""
    identity: int
    """Of this destination: one that is dropped and made again has another, and sequences from 1 on."""
    floor: int
    """Everything below is confirmed; without a subscription, is not kept any more."""
    end: int
    """One more than the last message that is durable and visible."""
    subscription: str | None = None
    """For `Session.read`, so that it gives only what is not confirmed: the subscription's name, "" for a queue's own;
    None where there is none."""


class Reader:
    """Made by `Session.reader`. Open it with `async with`, or by `open`; `look` and `confirm` also work without."""

    def __init__(self, session: Channel, wanted: Wanted) -> None:
        self._session = session
        self._wanted = wanted
        self._number = 0
        self._failure: ClarionError | None = None
        self._identities: dict[str, int] = {}
        """Of the destinations that it was last told of."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def opened(self) -> bool:
        """It has the right to its subscription, as far as is known here."""
        return self._number in self._session._readers

    async def open(self) -> list[Readable]:
        """Make the subscription if it is not there, and be its only user until `close`: what can be read now.

        Raises `SubscriptionInUse` while somebody else uses it, or has messages of it.
        """
        if not self.opened:
            self._failure = None
            self._session._readers_opened += 1
            self._number = self._session._readers_opened
            await self._session._call(_Open(self))
        return await self.look()

    async def look(self) -> list[Readable]:
        """What can be read now: destinations that a pattern matches since are there too."""
        asked: Wanted = {"reader": self._number} if self.opened else dict(self._wanted)
        rows: list[Readable] = []
        after: int | None = 0
        while after is not None:
            self._check_failure()
            try:
                result = await self._session.command("reader_look", {**asked, "after": after})
            except BadArgument:
                self._check_failure()  # it could not be opened again while this was on its way
                raise
            rows += [Readable(*row) for row in result["readable"]]
            after = result["next"]
        self._identities = {row.destination: row.identity for row in rows}
        return rows

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise again(self._failure)

    async def confirm(self, ranges: Ranges, *, identities: Mapping[str, int] | None = None) -> None:
        """Confirm [first, end) of destinations, all that is visible of it; returns when that is durable.

        Destinations that are not there, and those that are others now than `identities` says (by default, than the
        last `look` said), are passed over.
        """
        known = self._identities if identities is None else identities
        for part in _parts(ranges):
            said = {name: (known.get(name), some) for name, some in part.items()}
            arguments = {"subscription": self._wanted["subscription"], "ranges": said}
            await self._session.command("reader_confirm", arguments)

    async def close(self) -> None:
        """Others may use the subscription. It stays, with all that is not confirmed."""
        if self._session._readers.pop(self._number, None) is not None and not self._session._closed:
            with suppress(ConnectionLost, BadArgument):  # with the connection the right has ended too
                await self._session.command("reader_close", {"reader": self._number})

    @property
    def _opening(self) -> Wanted:
        return {"reader": self._number, **self._wanted}

    def _attach(self) -> None:
        """There is a new connection: open on it, before anything is asked there."""
        self._session._ask(Type.REQUEST, {"verb": _OPEN, "arguments": self._opening}, self._reopened)

    def _reopened(self, _result: object, error: ClarionError | None) -> None:
        if error is not None and self._session._readers.get(self._number) is self:
            del self._session._readers[self._number]
            self._failure = error


class ReadingSession(Channel):
    """What a session offers for reading by sequences."""

    def reader(
        self,
        destination: str,
        *,
        subscription: str | None = None,
        selector: str | None = None,
        start: int | None = None,
        start_time: datetime | float | None = None,
    ) -> Reader:
        """A reader of a destination, or of every topic that a pattern matches, by sequences: see `Reader`.

        `subscription` is durable, and made on first use: from `start` or `start_time` on, where messages are kept,
        otherwise with what comes. Without one a topic is only looked at. A queue has its own.
        """
        return Reader(self, reader_wanted(destination, subscription, selector, start, start_time))

    async def read(
        self,
        destination: str,
        first: int,
        end: int,
        *,
        selector: str | None = None,
        subscription: str | None = None,
        identity: int | None = None,
    ) -> AsyncGenerator[tuple[int, Batch], None]:
        """Slices of what is kept of the sequences [first, end), ascending: (sequence of its first message, batch).

        With `subscription`, of what that one has not confirmed ("" is a queue's own); what it does not select is
        left out, unless `selector` says otherwise. What is not there is simply absent. Nothing is consumed: it can be
        read again until it is confirmed. Requests are sent ahead, a bounded number. Raises `NoSuchDestination`,
        `NoSuchSubscription`, and `BadArgument` if the destination is another one now than `identity`.
        """
        wanted = range_wanted(destination, first, end, selector, subscription, identity)
        async with aclosing(answers(self, wanted)) as found:
            async for slices in found:
                for one in slices:
                    yield one


class _Open(Call):
    """The first `reader_open`: from its answer on the reader is opened again on every connection."""

    __slots__ = ("_reader",)

    def __init__(self, reader: Reader) -> None:
        super().__init__(_OPEN, reader._opening)
        self._reader = reader

    def answered(self, result: Any, error: ClarionError | None) -> None:
        if error is None:
            self._reader._session._readers[self._reader._number] = self._reader
        super().answered(result, error)


def reader_wanted(
    destination: str,
    subscription: str | None,
    selector: str | None,
    start: int | None,
    start_time: datetime | float | None,
) -> Wanted:
    """The arguments of `reader_open` that say what is wanted. Raises what is wrong with them."""
    checked = wanted_of(destination, durable=subscription, selector=selector, start=start, start_time=start_time)
    return {
        "destination": destination,
        "subscription": subscription,
        "selector": selector,
        "start": checked.start,
        "start_ms": checked.start_ms,
    }


def range_wanted(
    destination: str, first: int, end: int, selector: str | None, subscription: str | None, identity: int | None
) -> Wanted:
    """The arguments of `read`. Raises what is wrong with them."""
    parse_destination(destination, system=True)
    for argument, value in (("first", first), ("end", end)):
        if not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise BadArgument(argument=argument, detail=f"{value!r} is not a sequence")
    wanted: Wanted = {"destination": destination, "from": first, "end": end, "bytes": READ_BYTES}
    optional = {"selector": selector, "subscription": subscription, "identity": identity}
    return wanted | {name: value for name, value in optional.items() if value is not None}


async def answers(session: Channel, wanted: Wanted) -> AsyncGenerator[Slices, None]:
    """The slices of a range, answer by answer, in order."""
    at, end = wanted["from"], wanted["end"]
    step, ahead = end - at, 1  # the first request goes alone: its answer tells how many messages one holds
    asked: deque[tuple[Call, int, int]] = deque()

    def ask(first: int, stop: int) -> tuple[Call, int, int]:
        call = Call("read", {**wanted, "from": first, "end": stop})
        session._begin_call(call)
        return call, first, stop

    try:
        if at < end:
            asked.append(ask(at, end))
            at = end
        while asked:
            call, first, stop = asked.popleft()
            result = (await session._end_call(call)).result
            following: int | None = result["next"]
            if ahead == 1:
                ahead = READS_AHEAD
                if following is not None:
                    at, step, end = following, max(1, (following - first) * 7 // 8), result["end"]
            elif following is not None:  # messages are larger here
                asked.appendleft(ask(following, stop))
                step = max(1, step * 3 // 4)
            elif sum(len(one[3]) for one in result["slices"]) < READ_BYTES // 2:
                step = min(2 * step, _STEP_MAX)
            while at < end and len(asked) < ahead:  # before the caller goes to work
                asked.append(ask(at, min(end, at + step)))
                at = asked[-1][2]
            yield [(one[0], Batch(one[3])) for one in result["slices"]]
    finally:
        for call, _, _ in asked:
            session._forget_call(call)


def _parts(ranges: Ranges) -> Iterable[dict[str, list[tuple[int, int]]]]:
    """As many ranges as a request takes, and again."""
    part: dict[str, list[tuple[int, int]]] = {}
    left = limits.RANGES_PER_FRAME_MAX
    for name, said in ranges.items():
        for first, end in said:
            if not left:
                yield part
                part, left = {}, limits.RANGES_PER_FRAME_MAX
            part.setdefault(name, []).append((first, end))
            left -= 1
    if part:
        yield part
