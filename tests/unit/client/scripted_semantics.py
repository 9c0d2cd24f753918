"""The scripted broker with transactions, patterns and temporary destinations: as much of them as the client can see."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from clarion.errors import BadArgument, ClarionError, NoSuchDestination, NoSuchHandle, TransactionRolledBack
from clarion.ids import producer_of
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Frame, Type
from tests.unit.client.scripted_broker import Broker, ServerEnd, Subscriber

Session = tuple[ServerEnd, int]
Transaction = tuple[int, int]


@dataclass
class Pattern:
    """A consumer of a pattern: its credit, which its topics share."""

    end: ServerEnd
    channel: int
    number: int
    pattern: str
    credit_messages: int
    credit_bytes: int
    request: dict[str, Any]
    numbers: dict[str, int] = field(default_factory=dict)


class Merged(Subscriber):
    """One topic of a pattern."""

    def __init__(self, parent: Pattern, number: int, destination: str) -> None:
        self.parent = parent
        self.end, self.channel, self.number, self.destination = parent.end, parent.channel, number, destination
        self.request = parent.request
        self.inflight = set()

    @property
    def credit_messages(self) -> int:
        return self.parent.credit_messages

    @credit_messages.setter
    def credit_messages(self, value: int) -> None:
        self.parent.credit_messages = value

    @property
    def credit_bytes(self) -> int:
        return self.parent.credit_bytes

    @credit_bytes.setter
    def credit_bytes(self, value: int) -> None:
        self.parent.credit_bytes = value


class FullBroker(Broker):
    """A queue is a list, a topic is one as well; a transaction is a list of batches that are not in it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.deciding = True
        """Answer `commit` and `prepare`; else they are only noted."""
        self.staged: dict[Transaction, list[Batch]] = {}
        self.staging: Transaction | None = None
        """The transaction of the batch that has just come."""
        self.outcomes: dict[Transaction, bool] = {}
        self.prepared: dict[Transaction, list[tuple[str, list[int]]]] = {}
        self.keys: dict[str, int] = {}
        self.asked: list[tuple[int, str, dict[str, Any]]] = []
        self.sessions: dict[Session, int] = {}
        self.patterns: list[Pattern] = []
        self.next_number = frames.MERGED_NUMBER_MIN
        self.temporaries: dict[str, ServerEnd] = {}
        self.dropped: set[str] = set()
        """Topics that are no more."""

    def verbs(self, verb: str) -> list[dict[str, Any]]:
        """The arguments of every command of this verb, in order."""
        return [arguments for _, asked, arguments in self.asked if asked == verb]

    # --- sessions -------------------------------------------------------------------------------------

    def _open(self, end: ServerEnd, frame: Frame) -> None:
        super()._open(end, frame)
        producer = frames.unpack(frame.payload)["producer"]
        self.sessions[end, frame.channel] = int.from_bytes(producer, "big") if producer else self.producers << 48

    def _close(self, end: ServerEnd, frame: Frame) -> None:
        self._session_ended((end, frame.channel))
        super()._close(end, frame)

    def ended(self, end: ServerEnd) -> None:
        for session in [one for one in self.sessions if one[0] is end]:
            self._session_ended(session)
        for name in [name for name, owner in self.temporaries.items() if owner is end]:
            del self.temporaries[name]
            for table in (self.stored, self.confirmed, self.returned):
                table.pop(f"queue:{name}", None)
        super().ended(end)

    def _session_ended(self, session: Session) -> None:
        producer = self.sessions.pop(session, 0)
        for transaction in list(self.staged):
            if transaction[0] == producer and transaction not in self.prepared:
                del self.staged[transaction]
                self.outcomes[transaction] = False
        self.patterns = [one for one in self.patterns if (one.end, one.channel) != session]

    def restart(self, session: Session, arguments: dict[str, Any]) -> None:
        named = arguments.get("restart", ())
        children = [n for one in self.patterns if (one.end, one.channel) == session for n in one.numbers.values()
                    if one.number in named]  # fmt: skip
        super().restart(session, {"restart": [*named, *children]})

    # --- transactions ---------------------------------------------------------------------------------

    def _stage(self, end: ServerEnd, frame: Frame) -> None:
        number, floor = frames.STAGED.unpack_from(frame.payload)
        batch = Batch.parse(bytes(frame.payload[frames.STAGED.size :]))
        transaction = self.staging = (producer_of(batch.first_id), number)
        if self.admits(end, frame, batch, floor):
            self.staged.setdefault(transaction, []).append(batch)
            if self.answering:
                self.answer(self.published[-1])
        self.staging = None

    def failure_of(self, batch: Batch) -> ClarionError | None:
        if self.staging in self.outcomes:
            return TransactionRolledBack(reason="it is over")
        return super().failure_of(batch)

    def _request(self, end: ServerEnd, frame: Frame) -> None:
        request = frames.unpack(frame.payload)
        verb, arguments = request["verb"], request["arguments"]
        self.asked.append((end.number, verb, arguments))
        handler = getattr(self, f"_do_{verb}", None)
        if handler is None:
            super()._request(end, frame)
            return
        try:
            said = {"request": request["request"], "result": handler((end, frame.channel), arguments)}
        except ClarionError as error:
            said = {"request": request["request"], **frames.error_facts(error)}
        self.restart((end, frame.channel), arguments)
        if said.get("result") is not ...:
            end.send(Type.REPLY if "result" in said else Type.ERROR, frame.channel, frames.pack(said))
        for name in list(self.stored):
            self.dispatch(name)

    def _of(self, session: Session, arguments: dict[str, Any]) -> Transaction:
        return self.sessions[session], arguments["transaction"]

    def _consumed(self, session: Session, arguments: dict[str, Any]) -> list[tuple[Subscriber, list[int]]]:
        found: list[tuple[Subscriber, list[int]]] = []
        for number, ranges in arguments["consumed"]:
            wanted = [sequence for first, end in ranges for sequence in range(first, end)]
            one = next((s for s in self.subscribers if (s.end, s.channel, s.number) == (*session, number)), None)
            if one is None or not one.inflight.issuperset(wanted):
                raise TransactionRolledBack(reason="a message that it consumed is no longer its own")
            found.append((one, wanted))
        return found

    def _do_commit(self, session: Session, arguments: dict[str, Any]) -> Any:
        if not self.deciding:
            return ...
        transaction = self._of(session, arguments)
        if transaction in self.outcomes:
            if not self.outcomes[transaction]:
                raise TransactionRolledBack(reason="its session ended")
            return {}
        try:
            consumed = self._consumed(session, arguments)
        except TransactionRolledBack:
            self.staged.pop(transaction, None)
            self.outcomes[transaction] = False
            raise
        self.outcomes[transaction] = True
        for one, sequences in consumed:
            one.inflight.difference_update(sequences)
            self.confirmed.setdefault(one.destination, set()).update(sequences)
        self._show(transaction)
        return {}

    def _show(self, transaction: Transaction) -> None:
        for batch in self.staged.pop(transaction, []):
            self.store(batch.destination.decode(), batch)

    def _do_rollback(self, session: Session, arguments: dict[str, Any]) -> Any:
        transaction = self._of(session, arguments)
        if transaction not in self.outcomes:
            for one, sequences in self._consumed(session, arguments):
                one.inflight.difference_update(sequences)
                for sequence in sequences:
                    self.come_back(one.destination, sequence)
            if self.staged.pop(transaction, None) is not None:
                self.outcomes[transaction] = False
        return {}

    def _do_prepare(self, session: Session, arguments: dict[str, Any]) -> Any:
        if not self.deciding:
            return ...
        transaction = self._of(session, arguments)
        if self.outcomes.get(transaction) is False:
            raise TransactionRolledBack(reason="its session ended")
        if transaction not in self.prepared:
            consumed = self._consumed(session, arguments)
            for one, sequences in consumed:
                one.inflight.difference_update(sequences)
                self.confirmed.setdefault(one.destination, set()).update(sequences)  # not delivered to anybody now
            self.prepared[transaction] = [(one.destination, sequences) for one, sequences in consumed]
        return {"handle": _handle(transaction)}

    def _decide(self, transaction: Transaction, committed: bool) -> None:
        kept = self.prepared.pop(transaction, None)
        if kept is None:
            raise NoSuchHandle(handle=_handle(transaction))
        self.outcomes[transaction] = committed
        if committed:
            self._show(transaction)
            return
        self.staged.pop(transaction, None)
        for name, sequences in kept:
            self.confirmed[name].difference_update(sequences)
            for sequence in sequences:
                self.come_back(name, sequence)

    def _do_commit_prepared(self, session: Session, arguments: dict[str, Any]) -> Any:
        key, version = arguments["key"], arguments["version"]
        known = {_handle(transaction): transaction for transaction in [*self.prepared, *self.outcomes]}
        if key is not None and self.keys.get(key, -1) >= version:
            return {"committed": False, "version": self.keys[key]}
        missing = [handle for handle in arguments["handles"] if known.get(handle) not in self.prepared]
        if missing:
            raise NoSuchHandle(handle=missing[0])
        for handle in arguments["handles"]:
            self._decide(known[handle], True)
        if key is not None:
            self.keys[key] = version
        return {"committed": True, "version": version} if self.deciding else ...

    def _do_prepared(self, session: Session, arguments: dict[str, Any]) -> Any:
        return [
            {
                "handle": _handle(transaction),
                "destinations": sorted({batch.destination.decode() for batch in self.staged.get(transaction, [])}),
                "messages": sum(batch.count for batch in self.staged.get(transaction, [])),
                "prepared_at_ms": 1,
                "expires_at_ms": 2,
            }
            for transaction in self.prepared
        ]

    def _do_resolve(self, session: Session, arguments: dict[str, Any]) -> Any:
        known = {_handle(transaction): transaction for transaction in self.prepared}
        if arguments["handle"] not in known:
            raise NoSuchHandle(handle=arguments["handle"])
        self._decide(known[arguments["handle"]], arguments["commit"])
        return {}

    # --- temporary destinations -----------------------------------------------------------------------

    def _do_temporary(self, session: Session, arguments: dict[str, Any]) -> Any:
        name = arguments["name"]
        if not name.startswith(f"_temp.{self.sessions[session]:032x}."):
            raise BadArgument(argument="name", detail=f"{name} is not this session's")
        self.temporaries[name] = session[0]
        return {"destination": f"{arguments['kind']}:{name}"}

    # --- patterns -------------------------------------------------------------------------------------

    def _subscribe(self, end: ServerEnd, frame: Frame) -> None:
        request = frames.unpack(frame.payload)
        name = request["destination"]
        if "_temp." in name and self.temporaries.get(name.partition(":")[2]) is not end:
            said = frames.error_facts(NoSuchDestination(destination=name))
            end.send(Type.ERROR, frame.channel, frames.pack({"request": request["request"], **said}))
            return
        if not name.startswith("glob:"):
            super()._subscribe(end, frame)
            return
        parent = Pattern(
            end, frame.channel, request["consumer"], name.removeprefix("glob:"),
            request["credit_messages"], request["credit_bytes"], request,
        )  # fmt: skip
        self.patterns.append(parent)
        for destination, ranges in request["held_merged"]:
            if destination in self.dropped:
                continue
            one = self._merge(parent, destination)
            returned = self.returned.get(destination, [])
            for sequence in [s for first, last in ranges for s in range(first, last)]:
                if sequence in returned:
                    returned.remove(sequence)
                    one.inflight.add(sequence)
        result = {"destination": name, "kind": "topic", "held": []}
        end.send(Type.REPLY, frame.channel, frames.pack({"request": request["request"], "result": result}))
        for destination in list(self.stored):
            self.dispatch(destination)

    def _merge(self, parent: Pattern, destination: str) -> Merged:
        number = parent.numbers[destination] = self.next_number
        self.next_number += 1
        one = Merged(parent, number, destination)
        self.subscribers.append(one)
        said = {"consumer": parent.number, "merged": [[number, destination]]}
        parent.end.send(Type.MERGED, parent.channel, frames.pack(said))
        return one

    def dispatch(self, name: str) -> None:
        for parent in self.patterns:
            matches = fnmatch.fnmatchcase(name.removeprefix("topic:"), parent.pattern)
            new = name not in parent.numbers and name not in self.dropped
            if matches and new and name.startswith("topic:"):
                self._merge(parent, name)
        super().dispatch(name)

    def _credit(self, end: ServerEnd, frame: Frame) -> None:
        number, messages, size = frames.CREDIT.unpack(frame.payload)
        for parent in self.patterns:
            if (parent.end, parent.channel, parent.number) == (end, frame.channel, number):
                parent.credit_messages += messages
                parent.credit_bytes += size
                self.credits.append((number, messages, size))
                for name in list(parent.numbers):
                    self.dispatch(name)
                return
        super()._credit(end, frame)

    def _unsubscribe(self, end: ServerEnd, frame: Frame) -> None:
        request = frames.unpack(frame.payload)
        for parent in list(self.patterns):
            if (parent.end, parent.channel, parent.number) == (end, frame.channel, request["consumer"]):
                parent.credit_messages = 0
                self.patterns.remove(parent)
        for number, ranges in request.get("unseen_merged", []):
            one = next(s for s in self.subscribers if (s.end, s.channel, s.number) == (end, frame.channel, number))
            for sequence in [s for first, last in ranges for s in range(first, last)]:
                one.inflight.discard(sequence)
                self.returned.setdefault(one.destination, []).append(sequence)
        super()._unsubscribe(end, frame)


def _handle(transaction: Transaction) -> str:
    return f"{transaction[0]:032x}-{transaction[1]:x}"


@contextlib.asynccontextmanager
async def full_broker() -> AsyncIterator[FullBroker]:
    """A running one."""
    made = FullBroker()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
