"""Requests of administrators: status, destinations, browse, purge, delete, create, drop, unsubscribe.

Each verb is one method; each answers exactly once, with a result or an error. docs/reference/requests.md
describes the results.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from clarion import ids, limits
from clarion.core.destination import Destination
from clarion.core.entries import Kind, Ranges, SetPolicy, runs_of
from clarion.core.patterns import is_pattern
from clarion.core.policies import parse_policy
from clarion.core.subscription import Range, Subscription
from clarion.core.view import Filter
from clarion.core.wellknown import DEAD, is_temporary
from clarion.errors import BadArgument, ClarionError, NoSuchDestination, RequestError, UnknownVerb
from clarion.message import parse_destination
from clarion.nodes.message_manager.subscribing import filter_of
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

Arguments = dict[str, Any]
_BROWSE_MESSAGES = 1_000
_BROWSE_BYTES = limits.MIB
_LOOKED_BYTES = 8
"""What looking at a message for nothing takes of an answer's room."""
_SLOW_MAX = 100
_STREAMS_MAX = 4
"""Incomplete large bodies that a destination is described with: as many as `_DESCRIPTION_BYTES` hold."""
_DESCRIPTION_BYTES = 512
"""What a destination or subscription takes in an answer, at most, with a name of the usual length."""


class Requests:
    """The administration side of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._verbs: dict[str, Callable[[Arguments], Awaitable[object]]] = {
            "status": self._status,
            "destinations": self._destinations,
            "browse": self._browse,
            "purge": self._purge,
            "delete": self._delete,
            "create": self._create,
            "drop": self._drop,
            "unsubscribe": self._unsubscribe,
            "policies": self._policies,
            "set_policy": self._set_policy,
            "remove_policy": self._remove_policy,
            "dead": self._dead,
            "resend": self._resend,
            "consumers": self._consumers,
            "patterns": self._patterns,
        }
        self._session_verbs = {**host.transacting.verbs, **host.streaming.verbs, "temporary": host.temporary.make}
        """Verbs that act for the session that asks; done at once, in the order of its commands."""

    def handle(self, command: Command) -> None:
        """One REQUEST."""
        wanted = frames.unpack(command.payload)
        request, verb, arguments = wanted["request"], wanted["verb"], wanted.get("arguments") or {}
        at_once = self._session_verbs.get(verb)
        if verb == "fragment":
            self._read_fragment(command.session, request, arguments)
            return
        if at_once is None:
            self._host.spawn(self._answer(command.session, request, verb, arguments))
            return
        session = self._host.sessions.get(command.session)
        try:
            with _told():
                result = at_once(session, arguments)
        except ClarionError as error:
            # A rollback that the error speaks of is durable first.
            self._host.log.after(lambda error=error: self._host.fail(command.session, request, error))  # type: ignore[misc]
        else:
            self._host.log.after(lambda: self._host.reply(command.session, request, result))

    def _read_fragment(self, session: int, request: int, arguments: Arguments) -> None:
        try:
            with _told():
                self._host.streaming.reading.ask(self._host.sessions.get(session), request, arguments)
        except ClarionError as error:
            self._host.fail(session, request, error)

    async def _answer(self, session: int, request: int, verb: str, arguments: Arguments) -> None:
        try:
            work = self._verbs.get(verb)
            if work is None:
                raise UnknownVerb(verb=verb)
            with _told():
                result = await work(arguments)
        except ClarionError as error:
            self._host.fail(session, request, error)
        else:
            self._host.log.after(lambda: self._host.reply(session, request, result))

    def _find(self, arguments: Arguments) -> Destination:
        _kind, name = parse_destination(_text(arguments, "destination"), system=True)
        found = self._host.state.find(name)
        if found is None:
            raise NoSuchDestination(destination=name)
        return found

    # --- looking --------------------------------------------------------------------------------------

    async def _status(self, _arguments: Arguments) -> object:
        host = self._host
        journal = host.journal.status()
        published_rate, confirmed_rate = host.upkeep.rates()
        destinations = [known for known in host.state.destinations.values() if not known.name.startswith("_")]
        dead = host.system(DEAD)
        return {
            "node": host.settings.node.name,
            "uptime_s": round((time.time() * 1000 - host.started_ms) / 1000, 1),
            "destinations": len(destinations),
            "sessions": len(host.sessions),
            "depth": sum(destination.depth() for destination in destinations),
            "published": host.count("mm.published"),
            "confirmed": host.count("mm.confirmed"),
            "published_per_s": round(published_rate, 1),
            "confirmed_per_s": round(confirmed_rate, 1),
            "commit_us_p50": journal.commit_us_p50,
            "commit_us_p99": journal.commit_us_p99,
            "commits": journal.commits,
            "space": {
                "bytes_total": journal.bytes_total,
                "bytes_live": journal.bytes_live,
                "bytes_reserve": journal.bytes_reserve,
                "bytes_room": journal.room,
                "bytes_max": host.upkeep.capacity_bytes,
                "segments": journal.segments,
                "segments_free": journal.free_segments,
                "segment_bytes": journal.segment_bytes,
                "growth_blocked": journal.growth_blocked,
            },
            "producers_waiting": host.publishing.waiting,
            "dead_messages": dead.depth(),
            "prepared_transactions": len(host.state.transactions.prepared),
            "slow_consumers": self._slow(),
            "lost_messages": sum(destination.lost_messages for destination in destinations),
            "oldest": await self._oldest(),
            "warnings": list(journal.warnings),
        }

    async def _oldest(self) -> object:
        """The oldest unconfirmed message of all, and who holds it."""
        oldest: tuple[int, Destination] | None = None
        for destination in self._host.state.destinations.values():
            page = destination.pages.find(destination.floor())  # earlier ones are only retained
            if page is not None and (oldest is None or page.position < oldest[0]):
                oldest = (page.position, destination)
        if oldest is None:
            return None
        destination = oldest[1]
        sequence = destination.floor()
        found = await self._host.reader.fetch(destination, sequence)
        batch = found[1].find(sequence) if found else None
        stored_ms = batch[1].time_ms(sequence - batch[0]) if batch else None
        return {
            "destination": str(destination),
            "sequence": sequence,
            "age_s": None if stored_ms is None else round(time.time() - stored_ms / 1000, 3),
            "held_by": self._holders(destination, sequence),
        }

    def _holders(self, destination: Destination, sequence: int) -> list[object]:
        return [
            {
                "subscription": subscription.name or None,
                "consumers": len(subscription.consumers),
                "in_flight": any(
                    consumer.inflight.overlap(sequence, sequence + 1) for consumer in subscription.consumers
                ),
            }
            for subscription in destination.subscriptions.values()
            if not subscription.confirmed.covers(sequence, sequence + 1)
        ]

    async def _destinations(self, arguments: Arguments) -> object:
        """As many as an answer holds, in the order of their names, after the one that is named."""
        after = arguments.get("after") or ""
        found = sorted(self._host.state.destinations.values(), key=lambda destination: destination.name)
        listed: list[object] = []
        room = limits.FRAME_BYTES_MAX // 2
        for destination in found:
            if destination.name <= after or (destination.name.startswith("_") and not arguments.get("system")):
                continue
            room -= _DESCRIPTION_BYTES * (1 + len(destination.subscriptions))
            if listed and room < 0:
                break
            listed.append(self._describe(destination))
        return listed

    def _describe(self, destination: Destination) -> object:
        return {
            "name": destination.name,
            "kind": destination.kind,
            "depth": destination.depth(),
            "next_sequence": destination.tail,
            "bytes": destination.bytes_live,
            "streams": self._streams(destination),
            "delayed": sum(staged.batch.messages for staged in destination.stages if not staged.transaction),
            "retained_from": destination.retained_from or None,
            "bytes_quota": self._host.quota_bytes(destination),
            "lost_messages": destination.lost_messages,
            "subscriptions": [
                _describe_subscription(destination, subscription) for subscription in destination.subscriptions.values()
            ],
        }

    def _streams(self, destination: Destination) -> list[object]:
        """Large bodies on their way to it, those first of which something came last."""
        found = self._host.state.streams.incomplete(destination.identity)
        now_ms = self._host.now_ms()
        return [
            {"stream": stream.identity.hex(), "bytes": stream.size, "idle_ms": max(0, now_ms - stream.touched_ms)}
            for stream in sorted(found, key=lambda one: -one.touched_ms)[:_STREAMS_MAX]
        ]

    async def _browse(self, arguments: Arguments) -> object:
        destination = self._find(arguments)
        selector = filter_of(arguments)
        kept = destination.retained_from or destination.floor()
        sequence = max(_number(arguments, "from", 0), min(kept, destination.floor()), 1)
        messages = min(_number(arguments, "messages", _BROWSE_MESSAGES), limits.BATCH_MESSAGES_MAX)
        room = min(_number(arguments, "bytes", _BROWSE_BYTES), _BROWSE_BYTES)
        slices: list[object] = []
        while messages > 0 and room > 0 and sequence < destination.visible:
            run = self._wanted(destination, sequence)
            if run is None:
                sequence = destination.visible
                break
            sequence, end = run
            found = await self._host.reader.fetch(destination, sequence)
            at = found[1].find(sequence) if found else None
            if at is None:
                following = destination.pages.following(sequence, 1)
                sequence = following[0].first if following else destination.visible
                continue
            first, batch = at
            stop = batch.fit(sequence - first, min(end - first, batch.count, sequence - first + messages), room)
            if slices and batch.data_bytes(sequence - first, stop) > room:
                break  # a large message comes alone, so that no reply is larger than a frame
            for low, high in _selected(selector, batch, sequence - first, stop):
                data = b"".join(batch.slice_parts(low, high))
                slices.append((first + low, 1, False, data))
                messages -= high - low
                room -= len(data)
            room -= _LOOKED_BYTES * (first + stop - sequence)
            sequence = first + stop
        return {"slices": slices, "next": sequence if sequence < destination.visible else None}

    @staticmethod
    def _wanted(destination: Destination, sequence: int) -> Range | None:
        """The next run that some subscription has not confirmed, or that is retained."""
        if destination.retained_from:
            return (sequence, destination.visible) if sequence < destination.visible else None
        runs = [
            run
            for subscription in destination.subscriptions.values()
            if (run := subscription.confirmed.gap(sequence, destination.visible)) is not None
        ]
        return min(runs, default=None)

    # --- changing -------------------------------------------------------------------------------------

    async def _purge(self, arguments: Arguments) -> object:
        destination = self._find(arguments)
        removed = destination.depth()
        self._discard(destination, [(1, destination.tail)])
        return {"removed": removed}

    async def _delete(self, arguments: Arguments) -> object:
        destination = self._find(arguments)
        ranges = [(int(first), int(end)) for first, end in arguments["ranges"]]
        if len(ranges) > limits.RANGES_PER_FRAME_MAX:
            raise BadArgument(argument="ranges", detail=f"at most {limits.RANGES_PER_FRAME_MAX}")
        if not all(0 < first < end < 1 << 63 for first, end in ranges):
            raise BadArgument(argument="ranges", detail="a range is [first, end) with 0 < first < end")
        before = destination.depth()
        self._discard(destination, ranges)
        return {"removed": before - destination.depth()}

    def _discard(self, destination: Destination, ranges: list[Range]) -> None:
        self._host.log.write(Kind.DISCARD, Ranges(destination.identity, 0, ranges).encode())
        self._host.log.after(lambda: self._host.release(destination, ranges))

    async def _create(self, arguments: Arguments) -> object:
        kind, name = parse_destination(_text(arguments, "destination"))
        if self._host.state.find(name) is not None:
            raise BadArgument(argument="destination", detail=f"{name} exists")
        quota = _number(arguments, "quota_bytes", 0)
        return self._describe(self._host.create(kind or "queue", name, quota or None))

    async def _drop(self, arguments: Arguments) -> object:
        destination = self._find(arguments)
        if destination.has_consumers():
            raise BadArgument(argument="destination", detail=f"{destination} has consumers")
        if destination.name.startswith("_") and not is_temporary(destination.name):
            raise BadArgument(argument="destination", detail=f"{destination} belongs to the system")
        self._host.drop(destination)
        self._host.temporary.dropped(destination)
        return {"dropped": str(destination)}

    async def _unsubscribe(self, arguments: Arguments) -> object:
        name = _text(arguments, "subscription")
        if is_pattern(_text(arguments, "destination")):
            self._host.merging.delete_by_name(_text(arguments, "destination"), name)
        else:
            self._host.subscribing.delete_by_name(self._find(arguments), name)
        return None

    async def _patterns(self, _arguments: Arguments) -> object:
        return [
            {"name": one.name, "pattern": one.pattern, "shared": one.shared, "selector": one.selector or None}
            for one in self._host.state.patterns.values()
        ]

    # --- policies -------------------------------------------------------------------------------------

    async def _policies(self, _arguments: Arguments) -> object:
        table = self._host.state.policies
        return {
            "file": [(pattern, policy.said()) for pattern, policy in table.file_rules()],
            "set": [(pattern, policy.said()) for pattern, policy in table.rules()],
        }

    async def _set_policy(self, arguments: Arguments) -> object:
        pattern, said = _text(arguments, "pattern"), arguments["policy"]
        if not isinstance(said, dict) or not said:
            raise BadArgument(argument="policy", detail="it names no field")
        policy = parse_policy(said)
        self._host.state.policies.check(pattern)
        self._host.log.write(Kind.POLICY, SetPolicy(pattern, policy.said()).encode())
        self._host.retention.step()
        return policy.said()

    async def _remove_policy(self, arguments: Arguments) -> object:
        pattern = _text(arguments, "pattern")
        if pattern not in dict(self._host.state.policies.rules()):
            raise BadArgument(argument="pattern", detail=f"no policy was set for {pattern}")
        self._host.log.write(Kind.POLICY, SetPolicy(pattern, None).encode())
        return None

    # --- dead messages --------------------------------------------------------------------------------

    async def _dead(self, arguments: Arguments) -> object:
        return await self._browse({**arguments, "destination": DEAD})

    async def _resend(self, arguments: Arguments) -> object:
        sequences, origin, to = arguments.get("sequences"), arguments.get("destination"), arguments.get("to")
        if sequences is not None and not all(isinstance(one, int) and one > 0 for one in sequences):
            raise BadArgument(argument="sequences", detail="they are numbers above 0")
        for argument, text in (("destination", origin), ("to", to)):
            if text is not None and not isinstance(text, str):
                raise BadArgument(argument=argument, detail="it is not text")
        return {"resent": await self._host.dead.resend(sequences, origin, to)}

    # --- consumers ------------------------------------------------------------------------------------

    async def _consumers(self, arguments: Arguments) -> object:
        destination = self._find(arguments)
        return [
            {
                "session": ids.format_id(consumer.session),
                "subscription": subscription.name or None,
                "selector": None
                if consumer.view is None or consumer.view.selector is None
                else consumer.view.selector.canonical,
                "in_flight": consumer.held,
                "room": consumer.room,
                "paused": consumer.credit.paused,
            }
            for subscription in destination.subscriptions.values()
            for consumer in subscription.consumers
        ]

    def _slow(self) -> Sequence[object]:
        """Consumers that have no room although something waits for them."""
        return [
            {
                "destination": str(destination),
                "subscription": subscription.name or None,
                "session": ids.format_id(consumer.session),
                "in_flight": consumer.held,
                "waiting": subscription.depth(destination.visible) - consumer.held,
                "paused": consumer.credit.paused,
            }
            for destination in self._host.state.destinations.values()
            for subscription in destination.subscriptions.values()
            for consumer in subscription.consumers
            if consumer.room <= 0 and not consumer.detached and subscription.depth(destination.visible) > consumer.held
        ][:_SLOW_MAX]


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with arguments, as an error of the request."""
    try:
        yield
    except KeyError as error:
        raise BadArgument(argument=str(error.args[0]), detail="it is missing") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(detail=str(error)) from None


def _selected(selector: Filter | None, batch: Batch, first: int, end: int) -> list[Range]:
    """The runs of [first, end) that a selector selects."""
    if selector is None:
        return [(first, end)]
    return runs_of((np.flatnonzero(selector.matches(batch, first, end)) + first).tolist())


def _text(arguments: Arguments, name: str) -> str:
    value = arguments[name]
    if not isinstance(value, str):
        raise BadArgument(argument=name, detail="it is not text")
    return value


def _number(arguments: Arguments, name: str, default: int) -> int:
    """A count or a sequence; absent, nil and 0 are the default."""
    value = arguments.get(name) or default
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise BadArgument(argument=name, detail="it is not a number from 0 to 2 to the power of 63")
    return value


def _describe_subscription(destination: Destination, subscription: Subscription) -> object:
    return {
        "name": subscription.name or None,
        "durable": subscription.durable,
        "shared": subscription.shared,
        "depth": subscription.depth(destination.tail),
        "in_flight": sum(consumer.held for consumer in subscription.consumers),
        "consumers": len(subscription.consumers),
        "floor": subscription.confirmed.floor,
        "selector": subscription.selector or None,
    }
