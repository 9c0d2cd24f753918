"""A Clarion server, or several, as a recipient: each event becomes a message of `topic:events.<type>`.

    ClarionServer("clarion://alpha:7750,beta:7750")

Guarantees
    1. What is confirmed is durable at the broker.
    2. An event is one message, however often it is sent: producer id and sequence of the event are those of the
       message, so that the broker drops doubles, also when a partner replays under the origin's id.
    3. Per destination, events are stored in the order in which they are delivered here, except for those that the
       broker refuses for good. Different destinations do not wait for each other: if one cannot take more, the events
       of the others are confirmed.
    4. A delivery takes at most `timeout_s`; then it fails, visibly, and the engine tries again.

Nothing is decoded: headers and body are the bytes that were recorded. Of the headers only the type is read, at its
fixed place: grouping costs about 1 us an event, whatever the types. Events of one type that others lie between are one
sparse batch all the same.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

from clarion import limits
from clarion.errors import (
    BadArgument,
    BadBatch,
    BadEvent,
    BadName,
    ClarionError,
    MessageTooLarge,
    NotDelivered,
    Timeout,
)
from clarion.events.event import TYPE_UNREADABLE, Severity, check_type
from clarion.events.recipients.base import Named, Partly
from clarion.message import decode_headers, parse_destination

if TYPE_CHECKING:
    from clarion.client.connection import Connection
    from clarion.client.numbered import NumberedSender
    from clarion.events.memory.layout import Recorded

DESTINATION = "topic:events.{type}"
FIELDS = frozenset(("type", "severity"))
DESTINATIONS_KEPT_MAX = 4_096
SENDERS_MAX = 128
"""Producers that are sent for at a time: half of the sessions that a connection may have."""
CLOSE_S_MAX = 1.0
_KEY_TYPE = b"\xa1t"
"""How msgpack writes the key of the type: the first that an event's headers have, behind the byte of the map."""


class Run:
    """Events of one producer with sequences that ascend, for one destination."""

    __slots__ = ("bodies", "headers", "indexes", "last", "producer", "sequences", "times_ms")

    def __init__(self, producer: int) -> None:
        self.producer = producer
        self.last = 0
        self.sequences: list[int] = []
        self.indexes: list[int] = []
        self.bodies: list[bytes | memoryview] = []
        self.headers: list[bytes] = []
        self.times_ms: list[int] = []

    def part(self, low: int, high: int) -> Run:
        """The events [low, high) of it."""
        run = Run(self.producer)
        run.sequences, run.last = self.sequences[low:high], self.sequences[high - 1]
        run.indexes, run.bodies = self.indexes[low:high], self.bodies[low:high]
        run.headers, run.times_ms = self.headers[low:high], self.times_ms[low:high]
        return run


class ClarionServer(Named):
    """Publishes to a broker. `destination` may have `{type}` and `{severity}` in it."""

    wants_records = True

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        name: str = "clarion",
        filter: str = "",
        destination: str = DESTINATION,
        timeout_s: float = 30.0,
        batch_events_max: int = limits.BATCH_MESSAGES_TARGET,
    ) -> None:
        from clarion.client.address import parse

        super().__init__(name, filter, batch_events_max)
        if not timeout_s > 0:
            raise BadArgument(argument="timeout_s", detail=f"{timeout_s} is not more than 0")
        parse(url)  # raises BadUrl here, not when the first event comes
        self._url = url
        self._template = destination
        self._by_severity = _check_destination(destination)
        self._timeout_s = timeout_s
        self._destinations: dict[bytes, str] = {}
        self._connection: Connection | None = None
        self._senders: dict[int, NumberedSender] = {}
        """By producer; the longest unused one first."""
        self._floors: dict[int, int] = {}

    async def close(self) -> None:
        self._senders.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def settled(self, producer: int, below: int) -> None:
        """No event of this producer with a lower sequence will be delivered here again: the broker may forget those.

        Without it the broker remembers every gap in the sequences of a destination.
        """
        if below > self._floors.get(producer, 1):
            self._floors[producer] = below
            sender = self._senders.get(producer)
            if sender is not None:
                with suppress(BadArgument):  # something of a delivery that timed out is still under way: next time
                    sender.forget_below(below)

    def finished(self, producer: int) -> None:
        """Nothing of this producer will be delivered here again."""
        self._floors.pop(producer, None)

    async def deliver(self, records: Sequence[Recorded]) -> None:
        runs = self.runs(records)
        done: list[int] = []
        failed: dict[int, BaseException] = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connected()
                await asyncio.gather(
                    *(self._send(connection, name, queue, done, failed) for name, queue in runs.items())
                )
        except TimeoutError:
            detail = f"{self.name}: {self._connection!r}" if self._connection is not None else self.name
            late = Timeout(limit_ms=round(self._timeout_s * 1000), detail=detail)
            await self._let_senders_go()
            if not done:
                raise late from None
            raise Partly(done, late, failed) from None
        if failed:
            if not done and len(failed) == 1:
                raise next(iter(failed.values()))
            raise Partly(done, failed=failed)

    async def _send(
        self,
        connection: Connection,
        destination: str,
        runs: list[Run],
        done: list[int],
        failed: dict[int, BaseException],
    ) -> None:
        """The runs of one destination. Those of one producer are sent without waiting, and stored in their order."""
        for producer, same in groupby(runs, key=lambda run: run.producer):
            group = list(same)
            sender = await self._sender(connection, producer)
            sending = (self._send_run(sender, destination, run, failed) for run in group)
            for stored in await asyncio.gather(*sending):
                done += stored
            if any(index in failed for run in group for index in run.indexes):
                return  # what follows, of another producer, must not overtake it

    async def _send_run(
        self, sender: NumberedSender, destination: str, run: Run, failed: dict[int, BaseException]
    ) -> list[int]:
        """Which of a run are stored. One that is too large is found by halves: the others are none the worse for it."""
        try:
            await sender.send(destination, run.sequences, run.bodies, run.headers, run.times_ms)
            return run.indexes
        except MessageTooLarge as error:
            if len(run.indexes) > 1:
                half = len(run.indexes) // 2
                return [
                    *await self._send_run(sender, destination, run.part(0, half), failed),
                    *await self._send_run(sender, destination, run.part(half, len(run.indexes)), failed),
                ]
            failed[run.indexes[0]] = NotDelivered(reason=str(error), permanent=True)
        except ClarionError as error:
            failed[run.indexes[0]] = error
        return []

    async def _sender(self, connection: Connection, producer: int) -> NumberedSender:
        """The one sender of a producer; the one that was not used for the longest time makes room."""
        sender = self._senders.pop(producer, None)
        if sender is None or sender.closed:
            sender = connection.numbered(producer, settled_below=self._floors.get(producer, 1))
        self._senders[producer] = sender
        if len(self._senders) > SENDERS_MAX:
            oldest = next(iter(self._senders))
            await self._senders.pop(oldest).close()
        return sender

    async def _connected(self) -> Connection:
        """The connection of now: it comes back by itself unless it failed for good, then a new one is made."""
        from clarion.client.connection import connect

        if self._connection is not None and self._connection.closed:
            await self.close()
        if self._connection is None:
            self._connection = await connect(self._url, name=f"events-{self.name}", connect_timeout=self._timeout_s)
        return self._connection

    async def _let_senders_go(self) -> None:
        """What waits to be sent is given up: the engine brings it again, and it would be sent twice."""
        senders, self._senders = self._senders, {}
        closing = (asyncio.wait_for(sender.close(flush=False), CLOSE_S_MAX) for sender in senders.values())
        await asyncio.gather(*closing, return_exceptions=True)

    # --- grouping, without any input or output ----------------------------------------------------------

    def runs(self, records: Sequence[Recorded]) -> dict[str, list[Run]]:
        """What goes where: for each destination its runs, in order."""
        destinations = self._destinations
        by_severity = self._by_severity
        runs: dict[str, list[Run]] = {}
        last: dict[str, Run] = {}
        for index, record in enumerate(records):
            headers = record.headers
            if headers.__class__ is not bytes:
                headers = bytes(headers)
            # The type with its length in front, as it stands there: 32 bytes at most, or with a longer mark.
            size = headers[3] if len(headers) > 4 else 0
            if 0xA0 <= size <= 0xBF:
                key = headers[1 : size - 156]
            elif size == 0xD9:
                key = headers[1 : 5 + headers[4]]
            else:
                key = headers
            if by_severity:
                key = b"%d %b" % (record.severity, key)
            destination = destinations.get(key)
            if destination is None:
                destination = self._destination(key, headers, record.severity)
            run = last.get(destination)
            sequence = record.sequence
            if run is None or run.last >= sequence or run.producer != record.producer:
                run = last[destination] = Run(record.producer)
                runs.setdefault(destination, []).append(run)
            run.last = sequence
            run.sequences.append(sequence)
            run.indexes.append(index)
            run.bodies.append(record.body)
            run.headers.append(headers)
            run.times_ms.append(record.time_ns // 1_000_000)
        return runs

    def _destination(self, key: bytes, headers: bytes, severity: int) -> str:
        """Where events with these headers go; remembered if it follows from the key alone."""
        try:
            type_ = check_type(decode_headers(headers).type or "")
        except (BadBatch, BadEvent):
            type_ = TYPE_UNREADABLE
        destination = self._template.format(type=type_, severity=Severity.at_most(severity).text)
        if type_ != TYPE_UNREADABLE and headers[1:3] == _KEY_TYPE:
            if len(self._destinations) >= DESTINATIONS_KEPT_MAX:
                self._destinations.clear()
            self._destinations[key] = destination
        return destination


def _check_destination(template: str) -> bool:
    """Whether it depends on the severity. Raises `BadArgument` if it cannot be a destination for every event."""
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        if unknown := fields - FIELDS:
            raise ValueError(f"there is no field {min(unknown)!r}: there are type and severity")
        longest = template.format(type="t" * limits.EVENT_TYPE_BYTES_MAX, severity=Severity.EMERGENCY.text)
        parse_destination(longest)
    except (ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise BadArgument(argument="destination", detail=f"{template!r}: {error}") from None
    except BadName as error:
        raise BadArgument(argument="destination", detail=f"{template!r}: {error.facts['detail']}") from None
    return "severity" in fields
