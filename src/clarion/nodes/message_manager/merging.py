"""Consumers of patterns: one consumer of every matching topic, present and future (B-15).

Theory of operation
    A consumer of `glob:…` or `regex:…` becomes one consumer of each matching topic, with a number of its own that the
    client is told by MERGED, and one credit for all. A topic that is made later is merged while it is made, before
    its first message: nothing is missed. A durable pattern is an entry of the log; a topic that is made later has
    its subscription in the entry that makes it, also while nobody is connected.

Rules
    1. A pattern over many topics takes many turns of the event loop, each of bounded work; SUBSCRIBE is answered after
       the last one. A topic that is made between two turns is merged while it is made, like any later one.
    2. MERGED leaves before the first delivery under its number, whatever is still on its way to the disk.
    3. If one topic cannot be had, nothing is: the consumer is taken from all that it was merged with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.core.consumer import Consumer
from clarion.core.destination import TOPIC, Destination
from clarion.core.entries import Kind, SetPattern
from clarion.core.patterns import Pattern, PatternSet, parse_pattern
from clarion.core.subscription import Range
from clarion.errors import BadArgument, ClarionError, LimitReached, NoSuchSubscription, SubscriptionInUse
from clarion.message import check_name
from clarion.nodes.message_manager.consuming import credit_of
from clarion.nodes.message_manager.sessions import Session
from clarion.nodes.message_manager.subscribing import canonical, named, no_local_of, start_of
from clarion.wire import frames

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_SCANNED_MAX = 4_096
"""Names that are looked at in one turn of the event loop …"""
_MERGED_MAX = 256
"""… and destinations that are merged in one, and told by one MERGED: 10 to 20 ms of either."""
Answer = Callable[[dict[str, object] | ClarionError], None]
_Steps = Generator[None, None, dict[str, object]]


class _Merge:
    """One consumer of a pattern."""

    __slots__ = ("credit", "durable", "number", "numbers", "pattern", "session", "wanted")

    def __init__(self, session: Session, pattern: Pattern, wanted: dict[str, Any]) -> None:
        self.session = session
        self.number: int = wanted["consumer"]
        self.pattern = pattern
        self.wanted = wanted
        self.credit = credit_of(wanted)
        self.durable = 0
        """Number of the durable pattern; 0 for none."""
        self.numbers: dict[int, int] = {}
        """Destination → number of its consumer."""

    @property
    def key(self) -> tuple[int, int]:
        return self.session.identity, self.number


class Merging:
    """All consumers of patterns."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._live: dict[tuple[int, int], _Merge] = {}
        self._live_patterns: PatternSet[tuple[int, int]] = PatternSet()
        self._durable: PatternSet[int] = PatternSet()
        self._next_number = frames.MERGED_NUMBER_MIN

    def recovered(self) -> None:
        """The durable patterns are known."""
        for number, entry in self._host.state.patterns.items():
            self._durable.add(number, parse_pattern(entry.pattern))

    # --- subscribing ----------------------------------------------------------------------------------

    def subscribe(self, session: Session, wanted: dict[str, Any], answer: Answer) -> None:
        """SUBSCRIBE with a pattern: `answer` is called once, now or in a later turn. Raises `BadPattern`."""
        merge = _Merge(session, parse_pattern(wanted["destination"]), wanted)
        self._live[merge.key] = merge
        session.merging[merge.number] = merge.credit
        self._go_on(merge, self._steps(merge), answer)

    def _go_on(self, merge: _Merge, steps: _Steps, answer: Answer) -> None:
        try:
            next(steps)
        except StopIteration as done:
            answer(done.value)
        except ClarionError as error:
            self._abandon(merge)
            answer(error)
        else:
            self._host.soon(lambda: self._go_on(merge, steps, answer))

    def _steps(self, merge: _Merge) -> _Steps:
        """Find all, then merge all; between two turns it may have ended."""
        state, pattern, wanted = self._host.state, merge.pattern, merge.wanted
        known, next_destination = list(state.destinations.values()), state.next_destination
        found: list[Destination] = []
        for at in range(0, len(known), _SCANNED_MAX):
            if at:
                yield
            found += [one for one in known[at : at + _SCANNED_MAX] if self.matches(pattern, one)]
        result: dict[str, object] = {"destination": pattern.text, "kind": TOPIC, "held_merged": [], "destinations": 0}
        if merge.key not in self._live:
            return result
        made = map(state.destinations.get, range(next_destination, state.next_destination))
        found += [one for one in made if one is not None and self.matches(pattern, one)]
        self._check(found, wanted)
        if wanted.get("durable") and self._host.readers.reads(wanted.get("subscription") or ""):
            raise SubscriptionInUse(destination=pattern.text, subscription=wanted["subscription"])
        if wanted.get("durable"):
            merge.durable = self.durable_number(pattern, wanted)
        self._live_patterns.add(merge.key, pattern)
        held = dict(wanted.get("held_merged") or ())
        claimed: list[object] = []
        for at in range(0, len(found), _MERGED_MAX):
            if at:
                yield
                if merge.key not in self._live:
                    break
            there = [one for one in found[at : at + _MERGED_MAX] if state.destinations.get(one.identity) is one]
            for destination in there:
                self.make_durable(merge.durable, wanted, destination)
            self._tell(merge, [self._merge(merge, one, held.get(str(one)) or (), claimed) for one in there])
        return {**result, "held_merged": claimed, "destinations": len(found)}

    @staticmethod
    def matches(pattern: Pattern, destination: Destination) -> bool:
        """Is it a topic that somebody who names the pattern gets?"""
        name = destination.name
        return destination.kind == TOPIC and (not name.startswith("_") or pattern.is_system) and pattern.matches(name)

    @staticmethod
    def _check(found: list[Destination], wanted: dict[str, Any]) -> None:
        """Nothing is changed if one of them cannot be had."""
        no_local_of(wanted)  # may be refused, also where there is no topic yet
        name = wanted.get("subscription")
        if not name or wanted.get("shared"):
            return
        for destination in found:
            known = named(destination, name, durable=bool(wanted.get("durable")))
            if known is not None and known.in_use:
                raise SubscriptionInUse(destination=str(destination), subscription=name)

    def durable_number(self, pattern: Pattern, wanted: dict[str, Any]) -> int:
        """The durable pattern that is wanted, made on first use: topics that come later are subscribed when made."""
        state = self._host.state
        name, shared, selector = wanted.get("subscription"), bool(wanted.get("shared")), canonical(wanted)
        no_local = no_local_of(wanted)
        if not name:
            raise BadArgument(argument="subscription", detail="a durable subscription needs a name")
        check_name(name)
        known = next((entry for entry in state.patterns.values() if entry.name == name), None)
        if known is not None:
            same = (known.pattern, known.shared, known.selector) == (pattern.text, shared, selector)
            if not same or known.no_local not in (None, no_local):
                raise BadArgument(argument="subscription", detail=f"{name} is of {known.pattern}, with other options")
            return known.number
        if len(state.patterns) >= limits.PATTERNS_DURABLE_MAX:
            raise LimitReached(what="durable patterns", limit=limits.PATTERNS_DURABLE_MAX)
        number = state.next_pattern
        self._host.log.write(Kind.PATTERN, SetPattern(number, pattern.text, name, shared, selector, no_local).encode())
        self._durable.add(number, pattern)
        return number

    def make_durable(self, number: int, wanted: dict[str, Any], destination: Destination) -> None:
        """The subscription of a durable pattern: also where a crash came between its entry and this one."""
        name: str = wanted.get("subscription") or ""
        pattern = self._host.state.patterns.get(number)
        if number and named(destination, name, durable=True) is None:
            self._host.subscribing.make(
                destination,
                name,
                durable=True,
                shared=bool(wanted.get("shared")),
                start=start_of(destination, wanted),
                selector=canonical(wanted),
                pattern=number,
                no_local=no_local_of(wanted) if pattern is None else pattern.no_local,
            )

    def _merge(
        self, merge: _Merge, destination: Destination, held: list[Range] | tuple[Range, ...], claimed: list[object]
    ) -> tuple[int, str]:
        number = self._next_number
        self._next_number += 1
        if self._next_number >= 1 << 32:
            self._next_number = frames.MERGED_NUMBER_MIN
        got = self._host.consuming.attach(merge.session, destination, number, merge.wanted, merge.credit, held)
        merge.numbers[destination.identity] = number
        if got:
            claimed.append((str(destination), got))
        return number, str(destination)

    def _tell(self, merge: _Merge, told: list[tuple[int, str]]) -> None:
        said = frames.pack({"consumer": merge.number, "merged": told})
        self._host.send(merge.session.identity, frames.Type.MERGED, [said])

    # --- destinations come ----------------------------------------------------------------------------

    def durable_for(self, name: str) -> list[int]:
        """The durable patterns that a new topic matches."""
        patterns = self._host.state.patterns
        return [
            number
            for number in self._durable.matching(name)
            if not name.startswith("_") or parse_pattern(patterns[number].pattern).is_system
        ]

    def created(self, destination: Destination) -> None:
        """A topic was made: whoever consumes a pattern that it matches consumes it too, from its first message."""
        if destination.kind != TOPIC or not self._live:
            return
        for key in self._live_patterns.matching(destination.name):
            merge = self._live[key]
            if destination.name.startswith("_") and not merge.pattern.is_system:
                continue
            try:
                self._tell(merge, [self._merge(merge, destination, (), [])])
            except ClarionError as error:
                said = [frames.CLOSED.pack(merge.number, 0), frames.pack(frames.error_facts(error))]
                self._host.send(merge.session.identity, frames.Type.CONSUMER_CLOSED, said)
                self._abandon(merge)

    # --- ends -----------------------------------------------------------------------------------------

    def unsubscribe(self, session: Session, number: int, wanted: dict[str, Any]) -> None:
        """UNSUBSCRIBE of a pattern's consumer."""
        merge = self._forget(session, number)
        if merge is None:
            raise BadArgument(argument="consumer", detail="there is none of this number")
        merge.credit.detached = True
        unseen = dict(wanted.get("unseen_merged") or ())
        self.take_back(session, [(child, unseen.get(child) or []) for child in merge.numbers.values()])
        if wanted.get("delete") and merge.durable:
            self.delete(merge.durable)

    def consumes(self, name: str) -> bool:
        """Has a durable pattern of that name a consumer?"""
        return any(merge.durable and merge.wanted.get("subscription") == name for merge in self._live.values())

    def numbers_of(self, session: Session, number: int) -> Collection[int]:
        """The consumers that the consumer of a pattern is made of; none if it is not one."""
        merge = self._live.get((session.identity, number))
        return () if merge is None else merge.numbers.values()

    def topics_of(
        self, session: Session, number: int, identities: Iterable[int]
    ) -> Iterator[tuple[Destination, Consumer]]:
        """Those of the consumers that a pattern's consumer is made of whose destinations are named."""
        merge = self._live.get((session.identity, number))
        for identity in identities if merge is not None else ():
            known = session.consumers.get(merge.numbers.get(identity, 0)) if merge is not None else None
            if known is not None:
                yield known

    def take_back(self, session: Session, unseen: list[tuple[int, list[Range]]]) -> None:
        """Consumers of a pattern that has ended give back what nobody saw; also what crossed their end."""
        for child, ranges in unseen:
            known = session.consumers.get(child)
            if known is not None:
                back = [(first, end) for first, end in ranges]
                self._host.consuming.part(session.identity, known[0], known[1], back)

    def delete_by_name(self, pattern: str, name: str) -> None:
        """Remove a durable pattern by its name."""
        found = next((one for one in self._host.state.patterns.values() if one.name == name), None)
        if found is None or found.pattern != pattern:
            raise NoSuchSubscription(destination=pattern, subscription=name)
        self.delete(found.number)

    def delete(self, number: int) -> None:
        """Remove a durable pattern, and its subscriptions everywhere."""
        state = self._host.state
        entry = state.patterns[number]
        theirs = [
            (destination, subscription)
            for destination in state.destinations.values()
            for subscription in destination.subscriptions.values()
            if subscription.pattern == number
        ]
        if self._host.readers.reads(entry.name):
            raise SubscriptionInUse(destination=entry.pattern, subscription=entry.name)
        for destination, subscription in theirs:
            if subscription.in_use:
                raise SubscriptionInUse(destination=str(destination), subscription=subscription.name)
        self._host.log.write(Kind.PATTERN, SetPattern(number, entry.pattern, "", entry.shared).encode())
        self._durable.remove(number)
        for destination, subscription in theirs:
            self._host.subscribing.delete(destination, subscription)

    def _abandon(self, merge: _Merge) -> None:
        """It cannot be had, or no longer: all that it has got goes back."""
        self._forget(merge.session, merge.number)
        merge.credit.detached = True
        children = [(child, merge.session.consumers.get(child)) for child in merge.numbers.values()]
        held = [(child, [piece[:2] for piece in known[1].inflight]) for child, known in children if known is not None]
        self.take_back(merge.session, held)

    def ended(self, session: Session) -> None:
        """A session is over. Its consumers are taken care of like all others."""
        for number in list(session.merging):
            self._forget(session, number)

    def _forget(self, session: Session, number: int) -> _Merge | None:
        session.merging.pop(number, None)
        key = (session.identity, number)
        merge = self._live.pop(key, None)
        if merge is not None:
            self._live_patterns.remove(key)
        return merge
