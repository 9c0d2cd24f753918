"""Dead messages: what cannot be delivered goes to `_DMQ`, whole, with its story; and back, when told to (B-20).

Rules
    1. A message dies by one entry that stores it in `_DMQ` and confirms it where it was: never lost, never in both.
    2. Nothing dies without a reason: the headers say why, when, where it was, and what happened to it before.
    3. Nothing leaves `_DMQ` unasked: no time to live, no maximum, no retention.
    4. While it is being buried a message is out of sight; without room in the log that is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from clarion import limits
from clarion.core.destination import QUEUE, QUEUE_SUBSCRIPTION, Destination
from clarion.core.entries import Transfer
from clarion.core.subscription import Range, Subscription
from clarion.core.wellknown import DEAD
from clarion.core.whereabouts import is_idle
from clarion.errors import BadArgument, BadBatch, JournalFull
from clarion.message import Headers, decode_headers, encode_headers
from clarion.nodes.logging import WARNING, event
from clarion.nodes.message_manager.clockwork import EXPIRED
from clarion.nodes.message_manager.subscribing import named
from clarion.wire import batch as wire
from clarion.wire import frames
from clarion.wire.batch import Batch

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_AGAIN_MS = 500
_MESSAGES_MAX = 1_000
"""Messages buried, or sent back, by one entry."""
_log = logging.getLogger("clarion.mm")


class Dead:
    """The dead messages of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        registry = host.registry
        self._buried = registry.counter("mm.dead", unit="messages", meaning="messages that became dead")
        self._expired = registry.counter("mm.expired", unit="messages", meaning="messages whose time to live was over")
        self._before = registry.test_point("mm.before_bury", meaning="dead messages are about to be logged")

    def expire(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        """Their time to live is over: dead, or dropped, as the policy says."""
        self._expired.add(sum(end - first for first, end in ranges))
        if self._host.policy(destination).expired == "dead" and destination.name != DEAD:
            self.bury(destination, subscription, ranges, EXPIRED)
        else:
            subscription.bury(ranges)
            self._drop(destination, subscription, ranges)

    def _drop(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        try:
            self._host.consuming.log_confirm(destination, subscription, ranges)
        except JournalFull:
            self._host.later(_AGAIN_MS, lambda: self._drop(destination, subscription, ranges))
            return
        self._host.log.after(lambda: self._gone(destination, ranges, frames.EXPIRED))

    def bury(self, destination: Destination, subscription: Subscription, ranges: list[Range], reason: str) -> None:
        """These become dead messages."""
        subscription.bury(ranges)
        self._host.spawn(self._bury(destination, subscription, ranges, reason))

    async def _bury(
        self, destination: Destination, subscription: Subscription, ranges: list[Range], reason: str
    ) -> None:
        for first, end in ranges:
            at = first
            while at < end and destination.subscriptions.get(subscription.identity) is subscription:
                found = await self._host.reader.batch(destination, at)
                if found is None:
                    subscription.come_back(at, end)  # dispatch finds out that it is lost
                    self._host.delivery.wake(destination)
                    break
                batch_first, batch = found
                stop = min(end, batch_first + batch.count, at + _MESSAGES_MAX)
                stop = batch_first + batch.fit(at - batch_first, stop - batch_first, limits.BATCH_BYTES_TARGET)
                self._bury_part(destination, subscription, batch_first, batch, (at, stop), reason)
                at = stop

    def _bury_run(
        self,
        destination: Destination,
        subscription: Subscription,
        batch_first: int,
        batch: Batch,
        run: Range,
        reason: str,
    ) -> None:
        host = self._host
        target = host.naming.system(DEAD)
        first, end = run
        now_ms = host.now_ms()
        story = {
            "reason": reason[:200],
            "destination": str(destination),
            "subscription": subscription.name or None,
            "time_ms": now_ms,
        }
        headers = [
            _with_story(batch, sequence - batch_first, {**story, **_past(subscription, sequence), "sequence": sequence})
            for sequence in range(first, end)
        ]
        bodies = [batch.record(sequence - batch_first)[1] for sequence in range(first, end)]
        encoded = wire.encode(
            str(target).encode(),
            batch.id_of(first - batch_first),
            bodies,
            headers,
            priority=batch.priority,
            created_ms=batch.created_ms,
            id_deltas=_deltas(batch, first - batch_first, end - batch_first),
        )
        entry = Transfer(
            target.identity, target.tail, end - first, now_ms, batch.priority, 0, 0, 0,
            destination.identity, subscription.identity, [run],
            [(one - first, destination.large[one]) for one in range(first, end) if one in destination.large],
        )  # fmt: skip
        self._before()
        how = frames.EXPIRED if reason == EXPIRED else frames.DEAD
        try:
            host.transfer(entry, encoded)
        except JournalFull:
            host.later(_AGAIN_MS, lambda: self._bury_part(destination, subscription, batch_first, batch, run, reason))
            return
        self._buried.add(end - first)
        event(
            _log, WARNING, "messages_dead", destination=str(destination), first=first, count=end - first, reason=reason
        )
        host.log.after(lambda: self._gone(destination, [run], how))

    def _bury_part(
        self,
        destination: Destination,
        subscription: Subscription,
        batch_first: int,
        batch: Batch,
        run: Range,
        reason: str,
    ) -> None:
        """Of messages of one batch, those that nobody has confirmed meanwhile."""
        if destination.subscriptions.get(subscription.identity) is subscription:
            for left in subscription.confirmed.gaps(*run):
                self._bury_run(destination, subscription, batch_first, batch, left, reason)

    def _gone(self, destination: Destination, ranges: list[Range], how: int) -> None:
        self._host.watching.confirmed(destination, ranges, how)
        self._host.freeing.release(destination, ranges)
        self._host.delivery.wake(destination)

    # --- back -----------------------------------------------------------------------------------------

    async def resend(self, sequences: list[int] | None, origin: str | None, to: str | None) -> int:
        """Send dead messages back where they were, or to another destination; how many."""
        host = self._host
        source = host.naming.system(DEAD)
        subscription = source.subscriptions[QUEUE_SUBSCRIPTION]
        target_named = None if to is None else host.naming.resolve(to)
        wanted = None if sequences is None else set(sequences)
        lowest, highest = subscription.confirmed.floor, source.visible
        if wanted is not None:  # not all dead messages for a few of them
            lowest, highest = max(lowest, min(wanted, default=highest)), min(highest, max(wanted, default=0) + 1)
        sent = 0
        for first, end in subscription.confirmed.gaps(lowest, highest):
            at = first
            while at < end:
                found = await host.reader.batch(source, at)
                if found is None:
                    break
                batch_first, batch = found
                stop = min(end, batch_first + batch.count)
                for sequence in range(at, stop):
                    if wanted is not None and sequence not in wanted:
                        continue
                    if subscription.confirmed.covers(sequence, sequence + 1) or not is_idle(
                        subscription, sequence, sequence + 1
                    ):
                        continue
                    if wanted is not None:
                        wanted.discard(sequence)
                    sent += self._send_back(
                        source, subscription, sequence, batch, sequence - batch_first, origin, target_named
                    )
                at = stop
                if wanted is not None and not wanted:
                    return sent
                await asyncio.sleep(0)
        return sent

    def _send_back(
        self,
        source: Destination,
        subscription: Subscription,
        sequence: int,
        batch: Batch,
        index: int,
        origin: str | None,
        target: Destination | None,
    ) -> int:
        """One message at a time: each goes to where its own story says."""
        host = self._host
        headers = decode_headers(batch.record(index)[0])
        story = headers.dead or {}
        came_from = story.get("destination")
        if origin is not None and came_from not in (origin, f"queue:{origin}", f"topic:{origin}"):
            return 0
        only = 0
        if target is None:
            if not isinstance(came_from, str):
                return 0
            target = host.naming.resolve(came_from)
            name = story.get("subscription")
            if target.kind != QUEUE and name:
                known = named(target, name, durable=True) or named(target, name, durable=False)
                if known is None:
                    raise BadArgument(
                        argument="to", detail=f"{came_from} has no subscription {name} any more; name a target"
                    )
                only = known.identity
            elif target.kind != QUEUE and not target.subscriptions:
                raise BadArgument(argument="to", detail=f"nobody subscribes to {came_from}; name a target")
        clean = msgspec.structs.replace(headers, dead=None, expires_at_ms=0)
        encoded = wire.encode(
            str(target).encode(),
            batch.id_of(index),
            [batch.record(index)[1]],
            [encode_headers(clean)],
            priority=batch.priority,
            created_ms=batch.created_ms,
        )
        entry = Transfer(
            target.identity, target.tail, 1, host.now_ms(), batch.priority, 0, 0, only,
            source.identity, subscription.identity, [(sequence, sequence + 1)],
            [(0, source.large[sequence])] if sequence in source.large else [],
        )  # fmt: skip
        host.transfer(entry, encoded)
        host.log.after(lambda: host.freeing.release(source, [(sequence, sequence + 1)]))
        return 1


def _deltas(batch: Batch, first: int, end: int) -> list[int] | None:
    """What the ids of these messages are above the first of them; None where they follow each other."""
    if not batch.flags & wire.IDS:
        return None
    deltas: list[int] = batch.id_deltas()[first:end].tolist()
    return [delta - deltas[0] for delta in deltas]


def _with_story(batch: Batch, index: int, story: dict[str, object]) -> bytes:
    """The headers of a message that dies: all it had, and its story."""
    try:
        headers = decode_headers(batch.record(index)[0])
    except BadBatch:
        headers = Headers()
    return msgspec.msgpack.encode(msgspec.structs.replace(headers, dead=story, expires_at_ms=0))


def _past(subscription: Subscription, sequence: int) -> dict[str, object]:
    """What happened to a message before, as much as fits beside the largest message."""
    count = next((count for _, _, count in subscription.counts.overlap(sequence, sequence + 1)), 0)
    history: list[tuple[int, str]] = []
    room = limits.FRAME_OVERHEAD_BYTES_MAX // 4
    for time_ms, reason in reversed(subscription.history.get(sequence, [])):
        shown = reason[: max(0, room // 4)]
        room -= len(shown.encode()) + 16
        if room < 0:
            break
        history.append((time_ms, shown))
    return {"deliveries": count, "history": history[::-1]}
