"""Transactions: batches in the wings and consumed messages that become one entry, or nothing.

Theory of operation
    A transaction is its session's until it is decided: batches come by STAGE, `commit` names what was consumed, and
    one entry makes all of it true. `prepare` makes it independent of its session: a handle survives restarts,
    and `commit_prepared`, asked by anybody, decides any number of handles in one entry, all or none, and
    only if a version is newer than the last one under its key.

Rules
    1. One entry decides; there is no state between undecided and decided. It is answered when it is durable.
    2. An outcome is remembered: asking again gives the same answer and changes nothing.
    3. A transaction that was not prepared ends with its session, with the server, or with its time limit: rolled back.
    4. What it consumed must still be in flight with it, else it is rolled back.
    5. Whoever is told that it was rolled back need not give back what it consumed: that is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.core.consumer import Consumer
from clarion.core.destination import Destination
from clarion.core.entries import Change, Kind, Outcome, Prepared, runs_of
from clarion.core.subscription import Range
from clarion.core.transactions import KEYS_MAX
from clarion.core.two_phase import TransactionId
from clarion.errors import BadArgument, JournalFull, LimitReached, NoSuchHandle, TransactionRolledBack
from clarion.nodes.message_manager.sessions import Session

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

Arguments = dict[str, Any]
_Consumed = list[tuple[Destination, Consumer, list[Range]]]
_NUMBER_MAX = (1 << 64) - 1


class Transacting:
    """The transactions of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        registry = host.registry
        self._committed = registry.counter("mm.committed", unit="transactions", meaning="transactions committed")
        self._rolled_back = registry.counter("mm.rolled_back", unit="transactions", meaning="transactions rolled back")
        self._before_outcome = registry.test_point("mm.before_outcome", meaning="a decision is about to be logged")
        self._after_outcome = registry.test_point("mm.after_outcome", meaning="a decision is durable, not answered")
        self._before_prepared = registry.test_point(
            "mm.before_prepared", meaning="a prepared transaction is logged next"
        )
        self._after_prepared = registry.test_point(
            "mm.after_prepared", meaning="a transaction is prepared, not answered"
        )
        self.verbs: dict[str, Callable[[Session, Arguments], object]] = {
            "commit": self._commit,
            "rollback": self._roll_back,
            "prepare": self._prepare,
            "commit_prepared": self._commit_prepared,
            "committed_version": self._committed_version,
            "prepared": self._prepared,
            "resolve": self._resolve,
        }

    # --- identities -----------------------------------------------------------------------------------

    @staticmethod
    def identity(producer: int, number: int) -> bytes:
        """The transaction of this number of a producer."""
        return TransactionId.of(producer, number).encode()

    def _of(self, session: Session, arguments: Arguments) -> bytes:
        number = arguments["transaction"]
        if not isinstance(number, int) or not 0 < number <= _NUMBER_MAX:
            raise BadArgument(argument="transaction", detail="it is not a number from 1 to 2 to the power of 64")
        return self.identity(session.producer, number)

    def check_open(self, session: Session, transaction: bytes) -> None:
        """May another batch join it? Raises `TransactionRolledBack` or `BadArgument`."""
        table = self._host.state.transactions
        if transaction in table.outcomes:
            reason = table.outcomes[transaction]
            if reason is not None:
                raise TransactionRolledBack(reason=reason)
            raise BadArgument(argument="transaction", detail="it is committed")
        if transaction in table.prepared:
            raise BadArgument(argument="transaction", detail="it is prepared")
        if transaction not in session.transactions:
            limit_ms = self._host.settings.message_manager.transaction_ms
            self._host.later(limit_ms, lambda: self._time_out(session.identity, transaction))

    def _time_out(self, session: int, transaction: bytes) -> None:
        known = self._host.sessions.find(session)
        if known is not None and transaction in known.transactions:
            self._abort(known, transaction, [], "it took too long")

    # --- the session's own ----------------------------------------------------------------------------

    def _commit(self, session: Session, arguments: Arguments) -> object:
        transaction = self._of(session, arguments)
        table = self._host.state.transactions
        if transaction in table.outcomes:
            self._check_not_rolled_back(session, transaction, arguments)
            return {}
        if transaction in table.prepared:
            raise BadArgument(argument="transaction", detail="it is prepared")
        consumed, missing = self._consumed(session, arguments)
        if missing:
            reason = "a message that it consumed is no longer its own"
            self._abort(session, transaction, consumed, reason)
            raise TransactionRolledBack(reason=reason)
        changes = self._changes([transaction], committed=True)
        for destination, consumer, ranges in consumed:
            _change(changes, destination).confirmed.append((consumer.subscription.identity, ranges))
        if not changes:
            return {}
        self._decide([transaction], changes, committed=True)
        session.transactions.discard(transaction)
        for destination, consumer, ranges in consumed:
            if not consumer.subscription.durable:  # it may have ended with its last consumer, and the entry found none
                consumer.subscription.confirm(ranges, destination.tail)
            self._host.consuming.leave_if_done(session.identity, destination, consumer)
        return {}

    def _roll_back(self, session: Session, arguments: Arguments) -> object:
        transaction = self._of(session, arguments)
        consumed, _missing = self._consumed(session, arguments)
        outcomes = self._host.state.transactions.outcomes
        if transaction not in outcomes:
            self._abort(session, transaction, consumed, "rolled back")
        elif (reason := outcomes[transaction]) is not None:  # by its time limit, which did not know what it consumed
            self._bring_again(session, consumed, reason)
        self._host.restarting.restart(session, arguments)
        return {}

    def _abort(self, session: Session, transaction: bytes, consumed: _Consumed, reason: str) -> None:
        """Nothing of it happened; what it consumed comes again, except to plain subscriptions of topics."""
        session.transactions.discard(transaction)
        changes = self._changes([transaction], committed=False)
        if changes:
            self._decide([transaction], changes, committed=False, reason=reason)
        self._bring_again(session, consumed, reason)

    def _check_not_rolled_back(self, session: Session, transaction: bytes, arguments: Arguments) -> None:
        """Raises `TransactionRolledBack` if it came to nothing meanwhile; what it consumed is given back then."""
        reason = self._host.state.transactions.outcomes.get(transaction)
        if reason is not None:
            self._bring_again(session, self._consumed(session, arguments)[0], reason)
            raise TransactionRolledBack(reason=reason)

    def _bring_again(self, session: Session, consumed: _Consumed, reason: str) -> None:
        for destination, consumer, ranges in consumed:
            if consumer.subscription.durable:
                self._host.consuming.give_back(destination, consumer, ranges, reason)
            else:
                consumer.subscription.confirm(ranges, destination.tail)
                self._host.consuming.settled(destination, ranges)
            self._host.consuming.leave_if_done(session.identity, destination, consumer)
            self._host.delivery.wake(destination)

    def _consumed(self, session: Session, arguments: Arguments) -> tuple[_Consumed, bool]:
        """What of the client's list is in flight with it; and whether something is not."""
        found: _Consumed = []
        missing = False
        for number, ranges in arguments.get("consumed") or ():
            known = session.consumers.get(number)
            if known is None:
                missing = True
                continue
            destination, consumer = known
            held = [piece[:2] for first, end in ranges for piece in consumer.inflight.overlap(first, end)]
            missing |= sum(e - f for f, e in held) != sum(end - first for first, end in ranges)
            if held:
                found.append((destination, consumer, held))
        return found, missing

    def ended(self, session: Session) -> None:
        """A session is over: what it left undecided never happens."""
        for transaction in sorted(session.transactions):
            try:
                self._abort(session, transaction, [], "its session ended")
            except JournalFull:
                pass  # its batches stay in the wings until the next start, which rolls it back

    # --- prepared -------------------------------------------------------------------------------------

    def _prepare(self, session: Session, arguments: Arguments) -> object:
        transaction = self._of(session, arguments)
        table = self._host.state.transactions
        handle = format_handle(transaction)
        if transaction in table.prepared:
            return {"handle": handle}
        self._check_not_rolled_back(session, transaction, arguments)
        self.check_open(session, transaction)
        consumed, missing = self._consumed(session, arguments)
        if missing or any(not consumer.subscription.durable for _, consumer, _ in consumed):
            self._abort(session, transaction, consumed, "a message that it consumed cannot be kept for it")
            raise TransactionRolledBack(reason="a message that it consumed cannot be kept for it")
        expires_ms = arguments.get("expires_ms") or limits.PREPARED_MS_DEFAULT
        if not isinstance(expires_ms, int) or not 0 < expires_ms <= limits.PREPARED_MS_MAX:
            raise BadArgument(argument="expires_ms", detail=f"it is not between 1 and {limits.PREPARED_MS_MAX}")
        now_ms = self._host.now_ms()
        kept = [
            (destination.identity, consumer.subscription.identity, ranges) for destination, consumer, ranges in consumed
        ]
        self._before_prepared()
        self._host.log.write(Kind.PREPARED, Prepared(transaction, now_ms, now_ms + expires_ms, kept).encode())
        for destination, consumer, _ in consumed:
            self._host.consuming.leave_if_done(consumer.session, destination, consumer)
            self._host.delivery.wake(destination)
        session.transactions.discard(transaction)
        self._expire_later(transaction, expires_ms)
        self._host.log.after(self._is_prepared)
        return {"handle": handle}

    def _is_prepared(self) -> None:
        self._after_prepared()

    def _commit_prepared(self, _session: Session, arguments: Arguments) -> object:
        handles = arguments["handles"]
        key, version = _condition(arguments)
        if not isinstance(handles, list) or len(handles) > limits.HANDLES_PER_COMMIT_MAX or not (handles or key):
            raise BadArgument(argument="handles", detail=f"1 to {limits.HANDLES_PER_COMMIT_MAX} are committed at once")
        table = self._host.state.transactions
        if key:
            last = table.keys.get(key)
            if last is not None and version <= last:
                return {"committed": False, "version": last}
            if last is None and len(table.keys) >= KEYS_MAX:
                raise LimitReached(what="keys of conditional commits", limit=KEYS_MAX)
        transactions = list(dict.fromkeys(parse_handle(handle) for handle in handles))
        if not key and all(table.outcomes.get(transaction, "") is None for transaction in transactions):
            return {"committed": True, "version": None}  # it was done, and is asked again
        for transaction in transactions:
            if transaction not in table.prepared:
                raise NoSuchHandle(handle=format_handle(transaction))
        self._decide(
            transactions, self._changes(transactions, committed=True), committed=True, key=key, version=version
        )
        return {"committed": True, "version": version if key else None}

    def _committed_version(self, _session: Session, arguments: Arguments) -> object:
        """The last version that was committed under a key; what is told is durable when the answer leaves."""
        return {"version": self._host.state.transactions.keys.get(_key(arguments["key"]))}

    def _resolve(self, _session: Session, arguments: Arguments) -> object:
        table = self._host.state.transactions
        transaction = parse_handle(arguments["handle"])
        committed = bool(arguments.get("commit"))
        if transaction not in table.prepared:
            known = transaction in table.outcomes
            if arguments.get("again") and known and (table.outcomes[transaction] is None) is committed:
                return {}  # it was done, and is asked again
            raise NoSuchHandle(handle=format_handle(transaction))
        reason = "" if committed else "resolved by command"
        self._decide(
            [transaction], self._changes([transaction], committed=committed), committed=committed, reason=reason
        )
        return {}

    def _prepared(self, _session: Session, _arguments: Arguments) -> object:
        state = self._host.state
        listed: list[object] = []
        for transaction, entry in state.transactions.prepared.items():
            stages = state.transactions.stages.get(transaction, {})
            known = [(state.destinations[one], numbers) for one, numbers in stages.items() if one in state.destinations]
            messages = sum(
                staged.batch.messages
                for destination, numbers in known
                for number in numbers
                if (staged := destination.stages.get(number)) is not None
            )
            listed.append(
                {
                    "handle": format_handle(transaction),
                    "destinations": [str(destination) for destination, _ in known],
                    "messages": messages,
                    "prepared_at_ms": entry.time_ms,
                    "expires_at_ms": entry.expires_ms,
                }
            )
        return listed

    def _expire_later(self, transaction: bytes, wait_ms: int) -> None:
        self._host.later(max(wait_ms, 1), lambda: self._expire(transaction))

    def _expire(self, transaction: bytes) -> None:
        """Roll back what was prepared and not decided in time. Timers go by another clock: they may be early."""
        entry = self._host.state.transactions.prepared.get(transaction)
        if entry is None:
            return
        left_ms = entry.expires_ms - self._host.now_ms()
        if left_ms > 0:
            self._expire_later(transaction, left_ms)
            return
        try:
            changes = self._changes([transaction], committed=False)
            self._decide([transaction], changes, committed=False, reason="it expired")
        except JournalFull:
            self._expire_later(transaction, 1_000)

    def recovered(self) -> list[Callable[[], None]]:
        """After a start: what was prepared may expire; what was not has lost its session.

        The latter is to be rolled back, which needs room in the log.
        """
        table, now_ms = self._host.state.transactions, self._host.now_ms()
        for transaction, entry in table.prepared.items():
            self._expire_later(transaction, entry.expires_ms - now_ms)
        return [partial(self._orphaned, transaction) for transaction in table.undecided()]

    def _orphaned(self, transaction: bytes) -> None:
        changes = self._changes([transaction], committed=False)
        self._decide([transaction], changes, committed=False, reason="the server was started again")

    # --- the decision ---------------------------------------------------------------------------------

    def _changes(self, transactions: list[bytes], *, committed: bool) -> dict[int, Change]:
        """What the decision does to each destination, before what was consumed outside of `prepare`."""
        state, now_ms = self._host.state, self._host.now_ms()
        changes: dict[int, Change] = {}
        for transaction in transactions:
            for identity, numbers in state.transactions.stages.get(transaction, {}).items():
                destination = state.destinations.get(identity)
                if destination is None:
                    continue
                change = _change(changes, destination)
                if not committed:
                    change.dropped += runs_of(numbers)
                    continue
                change.visible += runs_of([one for one in numbers if _due_ms(destination, one) <= now_ms])
                change.delayed += runs_of([one for one in numbers if _due_ms(destination, one) > now_ms])
            prepared = state.transactions.prepared.get(transaction)
            for identity, subscription, ranges in prepared.consumed if prepared is not None else ():
                destination = state.destinations.get(identity)
                if destination is not None:
                    change = _change(changes, destination)
                    (change.confirmed if committed else change.returned).append((subscription, ranges))
        return changes

    def _decide(
        self,
        transactions: list[bytes],
        changes: dict[int, Change],
        *,
        committed: bool,
        key: str = "",
        version: int = 0,
        reason: str = "",
    ) -> None:
        """Write the one entry, and let its effects follow when it is durable."""
        host = self._host
        self._before_outcome()
        in_order = [changes[identity] for identity in sorted(changes)]
        entry = Outcome(transactions, committed, host.now_ms(), in_order, key, version, reason)
        host.log.write(Kind.OUTCOME, entry.encode())
        (self._committed if committed else self._rolled_back).add(len(transactions))
        tails = {change.destination: host.state.destinations[change.destination].tail for change in in_order}

        def durable() -> None:
            self._after_outcome()
            for change in in_order:
                destination = host.state.destinations.get(change.destination)
                if destination is not None:
                    self._apply_effects(destination, change, tails[change.destination])

        host.log.after(durable)

    def _apply_effects(self, destination: Destination, change: Change, tail: int) -> None:
        host = self._host
        if change.visible:
            host.shown(destination, tail)
        confirmed = [run for _, ranges in change.confirmed for run in ranges]
        if confirmed:
            host.consuming.settled(destination, confirmed)
        for identity, ranges in change.returned:
            subscription = destination.subscriptions.get(identity)
            if subscription is not None:
                host.consuming.bury_worn(destination, subscription, ranges)
        host.freeing.release_dropped(destination)
        host.clockwork.look(destination)
        host.delivery.wake(destination)


def _change(changes: dict[int, Change], destination: Destination) -> Change:
    change = changes.get(destination.identity)
    if change is None:
        change = changes[destination.identity] = Change(destination.identity, first=destination.tail)
    return change


def _due_ms(destination: Destination, number: int) -> int:
    staged = destination.stages.get(number)
    return 0 if staged is None else staged.due_ms


def _condition(arguments: Arguments) -> tuple[str, int]:
    key, version = arguments.get("key"), arguments.get("version")
    if key is None and version is None:
        return "", 0
    key = _key(key)
    if not isinstance(version, int) or not 0 <= version < 1 << 63:
        raise BadArgument(argument="version", detail="it is a number from 0 to 2 to the power of 63")
    return key, version


def _key(key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= limits.NAME_BYTES_MAX:
        raise BadArgument(argument="key", detail=f"it is text of 1 to {limits.NAME_BYTES_MAX} characters")
    return key


def format_handle(transaction: bytes) -> str:
    """A prepared transaction as text."""
    return str(TransactionId.decode(transaction))


def parse_handle(text: object) -> bytes:
    """The inverse of `format_handle`. Raises `BadArgument`."""
    if not isinstance(text, str):
        raise BadArgument(argument="handle", detail="it is not text")
    return TransactionId.parse(text).encode()
