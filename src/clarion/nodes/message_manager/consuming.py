"""Consuming: consumers, credit, confirmations, returns, and sessions that end.

Rules
    1. A confirmation of a durable subscription is logged; its answer leaves, and its pages are freed,
       when it is durable. Plain subscriptions are soft: their confirmations cost no entry.
    2. Whatever a session has in flight when it ends comes back, counted and flagged.
    3. Only what was delivered can be confirmed: ranges are cut at the subscription's cursor.
    4. What came back waits as long as the destination's policy says, and dies when it came back too often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.core.consumer import Consumer, Credit
from clarion.core.destination import TOPIC, Destination
from clarion.core.entries import Kind, Ranges, Returned
from clarion.core.patterns import is_pattern
from clarion.core.subscription import Range, Subscription
from clarion.errors import BadArgument, ClarionError, JournalFull, LimitReached, NoSuchDestination
from clarion.nodes.message_manager.sessions import Session
from clarion.wire import frames
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

TOO_OFTEN = "it was delivered too often"


class Consuming:
    """The consuming side of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        registry = host.registry
        self._confirmed = registry.counter("mm.confirmed", unit="messages", meaning="messages confirmed by consumers")
        self._returned = registry.counter("mm.returned", unit="messages", meaning="messages that came back")
        self._before = registry.test_point("mm.before_confirm", meaning="a confirmation is about to be logged")
        self._durable = registry.test_point("mm.before_confirmed", meaning="a confirmation is durable, not answered")

    # --- consumers ------------------------------------------------------------------------------------

    def subscribe(self, command: Command) -> None:
        """SUBSCRIBE: attach a consumer, answered when what it needs is durable."""
        wanted = frames.unpack(command.payload)
        request = wanted["request"]
        session = self._host.sessions.get(command.session)
        try:
            number = wanted["consumer"]
            if number in session.consumers or number in session.merging:
                raise BadArgument(argument="consumer", detail=f"{number} is in use")
            if len(session.consumers) >= limits.CONSUMERS_PER_SESSION_MAX and not session.merging:
                raise LimitReached(what="consumers of a session", limit=limits.CONSUMERS_PER_SESSION_MAX)
            if is_pattern(wanted["destination"]):
                self._host.merging.subscribe(session, wanted, lambda how: self._answer(session, request, how))
            else:
                self._answer(session, request, self._subscribe(session, wanted))
        except ClarionError as error:
            self._answer(session, request, error)

    def _answer(self, session: Session, request: int, result: dict[str, object] | ClarionError) -> None:
        if isinstance(result, ClarionError):
            self._host.fail(session.identity, request, result)
        else:
            self._host.log.after(lambda: self._host.reply(session.identity, request, result))

    def _subscribe(self, session: Session, wanted: dict[str, Any]) -> dict[str, object]:
        destination = self._host.naming.resolve_source(wanted["destination"], session)
        held = self.attach(
            session, destination, wanted["consumer"], wanted, credit_of(wanted), wanted.get("held") or ()
        )
        return {"destination": str(destination), "kind": destination.kind, "held": held}

    def attach(
        self,
        session: Session,
        destination: Destination,
        number: int,
        wanted: dict[str, Any],
        credit: Credit,
        held: list[Range] | tuple[Range, ...],
    ) -> list[Range]:
        """A consumer under `number`; what of `held` is again in flight with it."""
        policy = self._host.policy(destination)
        present = sum(len(subscription.consumers) for subscription in destination.subscriptions.values())
        if policy.consumers_max and present >= policy.consumers_max:
            raise LimitReached(what=f"consumers of {destination}", limit=policy.consumers_max)
        subscription, selector = self._host.subscribing.find_or_make(destination, wanted)
        consumer = Consumer(
            session.identity,
            number,
            subscription,
            credit,
            visibility_ms=wanted.get("visibility_ms") or policy.visibility_ms,
            ignores=self._ignores(session) if wanted.get("no_local") else None,
        )
        credit.paused = session.paused
        claimed = subscription.attach(consumer, held, selector, self._host.now_ms())
        session.consumers[number] = (destination, consumer)
        self._host.delivery.wake(destination)
        return claimed

    def _ignores(self, session: Session) -> Any:
        """No-local: what the own connection has published."""
        sessions, connection = self._host.sessions, session.connection
        return lambda producer: connection != 0 and sessions.connection_of(producer) == connection

    def unsubscribe(self, command: Command) -> None:
        """UNSUBSCRIBE: what was prefetched and not seen goes back; the rest stays with the session."""
        wanted = frames.unpack(command.payload)
        session, request, number = command.session, wanted["request"], wanted["consumer"]
        known_session = self._host.sessions.find(session)
        try:
            if known_session is not None and number in known_session.merging:
                self._host.merging.unsubscribe(known_session, number, wanted)
            elif known_session is not None and wanted.get("unseen_merged"):
                self._host.merging.take_back(known_session, wanted["unseen_merged"])
            else:
                self._unsubscribe(session, number, wanted)
        except ClarionError as error:
            self._host.fail(session, request, error)
        else:
            self._host.log.after(lambda: self._host.reply(session, request, None))

    def _unsubscribe(self, session: int, number: int, wanted: dict[str, Any]) -> None:
        known = self._find(session, number)
        if known is None:
            raise BadArgument(argument="consumer", detail="there is none of this number")
        destination, consumer = known
        consumer.credit.detached = True
        self.part(session, destination, consumer, [(first, end) for first, end in wanted.get("unseen") or ()])
        if wanted.get("delete") and destination.kind == TOPIC and consumer.subscription.durable:
            self._host.subscribing.delete(destination, consumer.subscription)

    def part(self, session: int, destination: Destination, consumer: Consumer, unseen: list[Range]) -> None:
        """A consumer takes no more; it stays while it holds something."""
        subscription = consumer.subscription
        subscription.take_back(consumer, unseen)
        subscription.leave(consumer)
        self.leave_if_done(session, destination, consumer)
        if consumer.inflight:
            self._host.subscribing.forget_plain(destination, subscription)
        self._host.delivery.wake(destination)

    # --- credit, confirmation, return -----------------------------------------------------------------

    def credit(self, command: Command) -> None:
        """CREDIT."""
        number, messages, size = frames.CREDIT.unpack_from(command.payload)
        session = self._host.sessions.find(command.session)
        if session is None:
            return
        known = session.consumers.get(number)
        credit = known[1].credit if known is not None else session.merging.get(number)
        if credit is not None:
            credit.add(messages, size)
            self.wake_starved(credit)

    def wake_starved(self, credit: Credit) -> None:
        """There is room again: whatever waited for it has its turn."""
        if not credit.starved:
            return
        starved, credit.starved = credit.starved, set()
        for identity in sorted(starved):
            destination = self._host.state.destinations.get(identity)
            if destination is not None:
                self._host.delivery.wake(destination)

    def flow(self, command: Command) -> None:
        """SESSION_FLOW: the session's connection is full, or has drained."""
        session = self._host.sessions.get(command.session)
        session.paused = bool(frames.unpack(command.payload)["paused"])
        for destination, consumer in session.consumers.values():
            consumer.credit.paused = session.paused
            self._host.delivery.wake(destination)

    def confirm(self, command: Command) -> None:
        """CONFIRM."""
        number, request, ranges = frames.unpack_ack(command.payload)
        known = self._find(command.session, number)
        if known is None:
            self._unknown(command.session, request, number)
            return
        destination, consumer = known
        subscription = consumer.subscription
        ranges = cut(ranges, subscription)
        subscription.hint = consumer
        if ranges:
            try:
                self.log_confirm(destination, subscription, ranges)
            except JournalFull as error:
                self._host.fail(command.session, request, error)
                return
        session = command.session

        def durable() -> None:
            self._durable()
            self.settled(destination, ranges)
            if request:
                self._host.reply(session, request, None)

        self._host.log.after(durable) if subscription.durable else durable()
        self.wake_starved(consumer.credit)  # others of a pattern may have waited for its bound on the unconfirmed
        self.leave_if_done(session, destination, consumer)
        self._host.delivery.wake(destination)

    def log_confirm(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        """Confirm ranges of a subscription, by an entry if it is durable. Raises `JournalFull`."""
        self._before()
        self._confirmed.add(sum(end - first for first, end in ranges))
        if subscription.durable:
            entry = Ranges(destination.identity, subscription.identity, ranges)
            self._host.log.write(Kind.CONFIRM, entry.encode(), others=not destination.large)
        else:
            subscription.confirm(ranges, destination.tail)

    def settled(self, destination: Destination, ranges: list[Range]) -> None:
        """Confirmations are durable: free what nobody needs, and tell who wants to know."""
        self._host.watching.confirmed(destination, ranges)
        self._host.freeing.release(destination, ranges)

    def reject(self, command: Command) -> None:
        """REJECT: they come again, to whoever is next."""
        number, request, ranges = frames.unpack_ack(command.payload)
        self._reject(command.session, number, request, ranges, "", None)

    def reject_with_reason(self, command: Command) -> None:
        """RETURN: the same, with a reason and a delay of its own."""
        wanted = frames.unpack(command.payload)
        ranges = [(first, end) for first, end in wanted["ranges"]]
        reason = (wanted.get("reason") or "")[: limits.REASON_CHARACTERS_MAX]
        self._reject(command.session, wanted["consumer"], wanted["request"], ranges, reason, wanted.get("delay_ms"))

    def _reject(
        self, session: int, number: int, request: int, ranges: list[Range], reason: str, delay_ms: int | None
    ) -> None:
        known = self._find(session, number)
        if known is None:
            self._unknown(session, request, number)
            return
        destination, consumer = known
        try:
            self.give_back(destination, consumer, ranges, reason, delay_ms)
        except JournalFull as error:
            self._host.fail(session, request, error)
        else:
            if request:
                self._host.log.after(lambda: self._host.reply(session, request, None))
        self.leave_if_done(session, destination, consumer)
        self._host.delivery.wake(destination)

    def give_back(
        self,
        destination: Destination,
        consumer: Consumer,
        ranges: list[Range],
        reason: str = "",
        delay_ms: int | None = None,
    ) -> None:
        """Take back from a consumer what it has of `ranges`: counted, delayed, or dead, as the policy says."""
        subscription = consumer.subscription
        now_ms = self._host.now_ms()
        policy = self._host.policy(destination)
        back: list[Range] = []
        for first, end in ranges:
            for piece_first, piece_end, count in list(subscription.counts.pieces(first, end)):
                wait_ms = policy.redelivery_delay_ms(count + 1) if delay_ms is None else delay_ms
                due_ms = now_ms + wait_ms if wait_ms else 0
                back += subscription.take_back(consumer, [(piece_first, piece_end)], due_ms)
        self.count(destination, subscription, back, now_ms, reason)

    def count(
        self, destination: Destination, subscription: Subscription, back: list[Range], now_ms: int, reason: str
    ) -> None:
        """Log that these came back; bury what came back too often."""
        if not back:
            return
        self._returned.add(sum(end - first for first, end in back))
        if not subscription.durable:
            subscription.count_return(back, now_ms, reason)
        elif reason:
            entry = Returned(destination.identity, subscription.identity, back, now_ms, reason)
            self._host.log.write(Kind.RETURNED, entry.encode())
        else:
            self._host.log.write(Kind.RETURN, Ranges(destination.identity, subscription.identity, back).encode())
        self.bury_worn(destination, subscription, back)
        self._host.clockwork.look(destination)

    def bury_worn(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        """What came back as often as the policy allows becomes a dead message."""
        deliveries_max = self._host.policy(destination).deliveries_max
        if deliveries_max and destination.subscriptions.get(subscription.identity) is subscription:
            worn = [
                (first, end)
                for run in ranges
                for first, end, count in subscription.counts.overlap(*run)
                if count >= deliveries_max
            ]
            if worn:
                self._host.dead.bury(destination, subscription, worn, TOO_OFTEN)

    def _find(self, session: int, number: int) -> tuple[Destination, Consumer] | None:
        known = self._host.sessions.find(session)
        return None if known is None else known.consumers.get(number)

    def _unknown(self, session: int, request: int, number: int) -> None:
        if request:
            self._host.fail(session, request, BadArgument(argument="consumer", detail=f"there is no {number}"))

    # --- ends -----------------------------------------------------------------------------------------

    def ended(self, session: Session) -> None:
        """All consumers of a session are gone."""
        self._host.merging.ended(session)
        for destination, consumer in session.consumers.values():
            consumer.credit.detached = True
            subscription = consumer.subscription
            everything = [(first, end) for first, end, _ in consumer.inflight]
            try:
                self.give_back(destination, consumer, everything)
            except JournalFull:
                pass  # the mark flags them after a crash all the same
            subscription.detach(consumer)
            self._host.subscribing.forget_plain(destination, subscription)
            self._host.delivery.wake(destination)
        session.consumers.clear()

    def dropped(self, destination: Destination) -> None:
        """A destination is gone: whoever consumed from it is told."""
        said = frames.pack(frames.error_facts(NoSuchDestination(destination=str(destination))))
        for subscription in destination.subscriptions.values():
            for consumer in subscription.consumers:
                session = self._host.sessions.find(consumer.session)
                if session is not None and session.consumers.pop(consumer.number, None) is not None:
                    consumer.credit.held -= consumer.held
                    payload = [frames.CLOSED.pack(consumer.number, 0), said]
                    self._host.send(consumer.session, frames.Type.CONSUMER_CLOSED, payload)

    def leave_if_done(self, session: int, destination: Destination, consumer: Consumer) -> None:
        """A detached consumer that holds nothing any more is forgotten."""
        if not consumer.detached or consumer.inflight:
            return
        consumer.subscription.detach(consumer)
        known = self._host.sessions.find(session)
        if known is not None:
            known.consumers.pop(consumer.number, None)
        self._host.subscribing.forget_plain(destination, consumer.subscription)


def credit_of(wanted: dict[str, Any]) -> Credit:
    """What a new consumer may be sent."""
    return Credit(
        min(wanted["credit_messages"], limits.CONSUMER_CREDIT_MESSAGES_MAX),
        min(wanted["credit_bytes"], limits.CONSUMER_CREDIT_BYTES_MAX),
        wanted["unconfirmed_max"],
    )


def cut(ranges: list[Range], subscription: Subscription) -> list[Range]:
    """Only what was delivered and is not confirmed."""
    floor, cursor = subscription.confirmed.floor, subscription.cursor
    within = [(max(first, floor), min(end, cursor)) for first, end in ranges]
    return [(first, end) for first, end in within if first < end and not subscription.confirmed.covers(first, end)]
