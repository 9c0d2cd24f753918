"""The sending half of a session, as applications see it: messages one by one or by the list, and flow control.

Guarantees
    1. Messages for one destination keep the order of sending, whatever their priorities and times are.
    2. A wrong argument raises before anything changes.
    3. `send` and `send_many` wait for room; the forms with `nowait` raise `Blocked`, `try_send` returns None.

Threads: `send_nowait`, `try_send`, `send_many_nowait`, `send_packed` and `is_blocked` may be called by other threads
than the loop's while they hold `lock` (the blocking twin does); everything else only in the loop's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Unpack

from clarion import limits
from clarion.client.lanes import MESSAGE_WEIGHT_BYTES, Lane
from clarion.client.many import Many, Part, Sending, as_bodies
from clarion.client.options import NO_OPTIONS, Choice, SendOptions, chosen, only_properties
from clarion.client.outbox import BatchTicket, Body, Ticket, as_bytes
from clarion.client.prepacked import Packed
from clarion.client.sender import Sender
from clarion.errors import BadArgument, Blocked
from clarion.ids import format_id

MANY_WINDOWS = 2
"""How many producer windows `send_many` encodes ahead of the answers; the rest stays in the caller's list."""


class Publisher(Sender):
    """What a session offers for sending."""

    def send_nowait(self, destination: str, body: Body, **options: Unpack[SendOptions]) -> Ticket:
        """Queue a message; the ticket can be awaited for its id. Raises `Blocked` when the buffer is full.

        Options are described at `SendOptions`. Hot: 0.3 µs with only a destination and bytes, where the last message
        had the same destination (benchmark: tests/unit/client/cost.py).
        """
        batch = self._recent
        if batch is not None and batch.destination == destination and type(body) is bytes and not options:
            weight = batch.weight + len(body) + MESSAGE_WEIGHT_BYTES
            if weight < batch.easy_weight_max:
                batch.weight = weight
                bodies = batch.bodies
                index = len(bodies)
                bodies.append(body)
                return Ticket(batch, index)
        lane = self._lanes.get(destination)
        if lane is None:
            lane = self._lane(destination)
        ticket = self._put(lane, as_bytes(body), self._chosen(options) if options else NO_OPTIONS)
        self._recent = lane.open
        return ticket

    async def send(self, destination: str, body: Body, **options: Unpack[SendOptions]) -> str:
        """Send a message and return its id once it is durable, or, with `until`, delivered. Waits for room."""
        lane = self._lanes.get(destination)
        if lane is not None and lane.lone and not options and body.__class__ is bytes:
            with self.lock:
                alone = self._send_alone(lane, body)
            if alone is not None:
                await alone.wait()
                return format_id(alone.first_id)
        while True:
            try:
                with self.lock:
                    ticket = self.send_nowait(destination, body, **options)
            except Blocked:
                await self.writable()
            else:
                return await ticket

    def try_send(self, destination: str, body: Body, **options: Unpack[SendOptions]) -> Ticket | None:
        """As `send_nowait`, but None instead of `Blocked`, and for a refused destination that has enough waiting.

        Enough is a producer window: more would not be sent sooner.
        """
        lane = self._lanes.get(destination)
        if lane is not None and lane.blocked:
            waiting = lane.unanswered_bytes + (lane.open.weight if lane.open is not None else 0)
            if waiting >= self._host.welcome.producer_window_bytes:
                return None
        try:
            return self.send_nowait(destination, body, **options)
        except Blocked:
            return None

    def is_blocked(self, destination: str | None = None) -> bool:
        """The buffer is full, or the broker has refused messages for `destination` and not yet told us to go on."""
        if self._buffered >= self._buffer_bytes:
            return True
        lane = self._lanes.get(destination) if destination is not None else None
        return lane is not None and lane.blocked != 0

    def send_many_nowait(self, destination: str, bodies: Iterable[Body], **options: Unpack[SendOptions]) -> None:
        """Queue a message for each body, all with the same options: 0.15 µs a message.

        Takes all of them, or raises: `Blocked` when the buffer is full already, `MessageTooLarge` with the index
        of a body. Failures later on are told by `flush`, so `until` has no use here.
        """
        choice = self._chosen(options) if options else NO_OPTIONS
        if choice.terms.until:
            raise BadArgument(argument="until", detail="nobody could wait for it: send_many does")
        lane = self._lane(destination)
        checked = as_bodies(bodies)
        if not self._put_few(lane, checked, choice):
            many = Many(lane, checked, choice)
            self._check_room(lane)
            self._put_many(lane, many, 0, None)

    async def send_many(self, destination: str, bodies: Iterable[Body], **options: Unpack[SendOptions]) -> None:
        """Send a message for each body; return when all are durable, or, with `until`, delivered.

        Waits for room as needed. If some fail, the first failure is raised when all that were sent are answered,
        with a note of how many; nothing is sent after a failure was seen.
        """
        choice = self._chosen(options) if options else NO_OPTIONS
        checked = as_bodies(bodies)
        with self.lock:
            lane = self._lane(destination)
        many = Many(lane, checked, choice)
        window = self._host.welcome.producer_window_bytes
        step = max(limits.BATCH_BYTES_TARGET, window // 4)
        sending = Sending(many, MANY_WINDOWS * window)
        while sending.taken < len(many) and sending.error is None:
            await self.writable()
            with self.lock:
                sending.add(self._put_many(self._lane(destination), many, sending.taken, step))
            await asyncio.sleep(0)  # the connection writes
            await sending.keep_pace()
        await sending.finish()

    def send_packed(self, destination: str, packed: Packed) -> BatchTicket:
        """Queue a batch whose messages are encoded already; the ticket can be awaited for the id of the first.

        It is one batch on the wire and in the broker, in the order of everything else that is sent to its
        destination, in the transaction of now if there is one. Nothing is done for a single message. Raises
        `Blocked` when the buffer is full, and `BadArgument` or `MessageTooLarge` if it is no batch that the
        broker takes; then nothing has changed.
        """
        lane = self._lane(destination)
        packed.check(lane.weight_max)
        self._check_room(lane)
        if lane.open is not None:
            self._seal(lane)
        batch = self._begin(lane, packed.terms)
        lane.open = None
        batch.seal_packed(self._producer + self._sequence, packed)
        self._sealed(lane, batch)
        return BatchTicket(batch)

    async def writable(self) -> None:
        """Return when a quarter of the buffer is free: so much `send_nowait` takes without being asked again."""
        while self._buffered >= self._room_bytes and not self._closed:
            waiter = self._host.loop.create_future()
            self._room.append(waiter)
            await waiter
        self._check_open()

    @property
    def buffered_bytes(self) -> int:
        """What sealed batches cost that are kept for the broker; beyond the buffer `send_nowait` raises `Blocked`."""
        return self._buffered

    # --- into batches -------------------------------------------------------------------------------

    def _chosen(self, options: SendOptions) -> Choice:
        if len(options) == 1 and (properties := options.get("properties")):
            return only_properties(properties)
        choice = chosen(time.time_ns() // 1_000_000, **options)
        if choice.terms.until and self._transaction:
            detail = "within a transaction messages are delivered after its commit: only stored can be waited for"
            raise BadArgument(argument="until", detail=detail)
        return choice

    def _put(self, lane: Lane, body: bytes, choice: Choice) -> Ticket:
        """One message, whatever it needs: another batch, or one of its own."""
        data_bytes = len(body) + len(choice.headers)
        # A large message goes in a batch of its own, so that no batch can exceed the limit.
        alone = data_bytes + MESSAGE_WEIGHT_BYTES >= lane.weight_target
        if alone:
            lane.check_size(len(body), len(choice.headers), choice.group_hash > 0)
        batch = lane.open
        if batch is not None and (alone or batch.terms != choice.terms):
            self._seal(lane)
            self._host.wake()
            batch = None
        if batch is None:
            self._check_room(lane)
            batch = self._begin(lane, choice.terms)
        index = len(batch.bodies)
        if choice is NO_OPTIONS and batch.plain:
            batch.bodies.append(body)
            batch.weight += data_bytes + MESSAGE_WEIGHT_BYTES
        else:
            batch.add(body, data_bytes, choice)
        if batch.weight >= lane.weight_target:
            self._seal(lane)
            self._host.wake()
        return Ticket(batch, index)

    def _put_few(self, lane: Lane, bodies: list[bytes], choice: Choice) -> bool:
        """A list that the open batch holds, or a new one, without filling it: False if it does not."""
        count = len(bodies)
        if count > limits.BATCH_MESSAGES_TARGET:
            return False
        data_bytes = sum(map(len, bodies)) + count * len(choice.headers)
        weight = data_bytes + count * MESSAGE_WEIGHT_BYTES
        batch = lane.open
        if batch is not None and batch.terms != choice.terms:
            return False
        if weight + (batch.weight if batch is not None else 0) >= lane.weight_target:
            return False
        if count:
            if batch is None:
                self._check_room(lane)
                batch = self._begin(lane, choice.terms)
            batch.add_list(bodies, data_bytes, choice)
        return True

    def _put_many(self, lane: Lane, many: Many, first: int, weight_max: int | None) -> list[Part]:
        """Messages from `first` on: all, or whole batches until they weigh `weight_max`.

        The loop runs once per batch, not per message.
        """
        parts: list[Part] = []
        target, terms = lane.weight_target, many.choice.terms
        start, count = first, len(many)
        while first < count and (weight_max is None or many.weight(start, first) < weight_max):
            batch = lane.open
            if batch is not None and batch.terms != terms:
                self._seal(lane)
                batch = None
            end, is_full = many.fit(first, target - batch.weight if batch is not None else target)
            if many.weight(end - 1, end) >= target:  # a large one: alone, as in `_put`
                if end - 1 > first:
                    end -= 1
                elif batch is not None:
                    self._seal(lane)
                    batch = None
            offsets = many.offsets(first, end) if batch is None and is_full else None
            if batch is None:
                batch = self._begin(lane, terms)
            parts.append(Part(batch, len(batch.bodies), end - first))
            many.put(batch, first, end)
            if is_full:
                self._seal(lane, offsets)
            first = end
        self._host.wake()
        return parts
