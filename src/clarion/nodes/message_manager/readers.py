"""Readers: destinations read by sequences, and confirmed by whoever was told that the work is done.

Theory of operation
    A reader is told which sequences there are (`reader_look`), reads them in any order, from any connection, as often
    as it likes (`read`, see `ranging`), and confirms ranges when what it made of them is safe elsewhere
    (`reader_confirm`, see `confirming`). Nothing is delivered to it, so nothing has to be given back.
    `reader_open` makes the durable subscription, of a topic or of every topic that a pattern matches, and the right of
    this session to be its only user: while it is open, consumers and other readers are refused. A queue's reader has
    the queue's own subscription. Without a subscription a topic is only looked at.

Rules
    1. The right to read ends with the session.
    2. What a reader was told of does not expire while it is open. What had expired before is set aside first, and so
       is never told of.
    3. A topic that is made later belongs to the readers of its patterns from its first message on.
    4. If one topic of a pattern cannot be had, none is.
    5. A subscription with another selector is refused, not made anew as for a consumer: nothing is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.core.destination import QUEUE, TOPIC, Destination
from clarion.core.patterns import Pattern, PatternSet, is_pattern, parse_pattern
from clarion.core.subscription import Subscription
from clarion.errors import (
    BadArgument,
    ClarionError,
    LimitReached,
    NoSuchDestination,
    SessionClosed,
    SubscriptionInUse,
    WrongKind,
)
from clarion.message import check_name, parse_destination
from clarion.nodes.message_manager.arguments import Arguments, counted, number, text
from clarion.nodes.message_manager.confirming import Confirming
from clarion.nodes.message_manager.ranging import first_kept, subscription_of
from clarion.nodes.message_manager.sessions import Session
from clarion.nodes.message_manager.subscribing import canonical, filter_of, named

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_SCANNED_MAX = 4_096
"""Names that are looked at in one turn of the event loop …"""
_CLAIMED_MAX = 256
"""… and destinations that are subscribed to in one."""
_ROWS_MAX = 4_096
"""Destinations that one answer tells of."""

Member = tuple[Destination, Subscription | None]


class Reader:
    """One reader of a session."""

    __slots__ = ("failure", "members", "number", "pattern", "ready", "session", "wanted")

    def __init__(self, session: Session, number: int, wanted: dict[str, Any]) -> None:
        self.session = session
        self.number = number
        self.wanted = wanted
        self.pattern: Pattern | None = None
        self.members: dict[int, Member] = {}
        """By the identities of destinations."""
        self.ready = asyncio.Event()
        """It is open, or cannot be."""
        self.failure: ClarionError | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.session.identity, self.number


class Readers:
    """All readers; each verb answers with a result or an error."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._by_pattern: dict[tuple[int, int], Reader] = {}
        self._patterns: PatternSet[tuple[int, int]] = PatternSet()
        self.verbs: dict[str, Callable[[Session, Arguments], Awaitable[object]]] = {
            "reader_open": self._open,
            "reader_look": self._look,
            "reader_confirm": Confirming(host).confirm,
            "reader_close": self._close,
        }

    # --- opening --------------------------------------------------------------------------------------

    async def _open(self, session: Session, arguments: Arguments) -> object:
        reader = Reader(session, counted("reader", arguments["reader"]), _wanted(arguments))
        if reader.number in session.readers:
            raise BadArgument(argument="reader", detail=f"{reader.number} is in use")
        if len(session.readers) >= limits.CONSUMERS_PER_SESSION_MAX:
            raise LimitReached(what="readers of a session", limit=limits.CONSUMERS_PER_SESSION_MAX)
        session.readers[reader.number] = reader
        try:
            self._check_there(reader)  # it may have ended in the turn in which it asked
            if is_pattern(reader.wanted["destination"]):
                await self._open_pattern(reader)
            else:
                self._open_one(reader)
        except ClarionError as error:
            reader.failure = error
            self._let_go(reader)
            raise
        finally:
            reader.ready.set()
        return {}

    def _open_one(self, reader: Reader) -> None:
        wanted = reader.wanted
        kind, name = parse_destination(wanted["destination"], system=True)
        found = self._host.state.find(name)
        if kind == QUEUE or wanted["subscription"] or (found is not None and found.kind == QUEUE):
            self._claim(reader, self._host.naming.resolve_source(wanted["destination"], reader.session))
            return
        if found is None:
            raise NoSuchDestination(destination=name)
        if kind is not None and kind != found.kind:
            raise WrongKind(destination=name, kind=found.kind, wanted=kind)
        reader.members[found.identity] = (found, None)

    def _claim(self, reader: Reader, destination: Destination) -> None:
        """The subscription, and the right to it. Raises `SubscriptionInUse` and what is wrong with what is wanted."""
        if destination.kind == QUEUE and filter_of(reader.wanted) is not None:
            detail = "what it does not select would be confirmed, and a queue's messages are others' too"
            raise BadArgument(argument="selector", detail=detail)
        wanted, name = reader.wanted, reader.wanted["subscription"]
        known = named(destination, name, durable=True) if name else None
        if known is not None:
            if known.selector != canonical(wanted):
                detail = (
                    f"{name} has the selector {known.selector!r}, and messages that are not confirmed: unsubscribe it"
                )
                raise BadArgument(argument="selector", detail=detail)
            wanted = {**wanted, "no_local": known.no_local}
        subscription, _ = self._host.subscribing.find_or_make(destination, wanted)
        self._take(reader, destination, subscription)

    @staticmethod
    def _take(reader: Reader, destination: Destination, subscription: Subscription) -> None:
        _check_free(destination, subscription)
        subscription.reader, subscription.taken = reader.session.identity, 0
        reader.members[destination.identity] = (destination, subscription)

    async def _open_pattern(self, reader: Reader) -> None:
        """Find all, then claim all; between two turns the session may have ended."""
        state, merging, wanted = self._host.state, self._host.merging, reader.wanted
        pattern = parse_pattern(wanted["destination"])
        next_destination = state.next_destination
        found = await self._matching(pattern)
        self._check_there(reader)
        made = map(state.destinations.get, range(next_destination, state.next_destination))
        found += [one for one in made if one is not None and merging.matches(pattern, one)]
        name = wanted["subscription"]
        if name and (self.reads(name) or merging.consumes(name)):  # perhaps there is no topic yet
            raise SubscriptionInUse(destination=pattern.text, subscription=name)
        for destination in found if name else ():
            known = named(destination, name, durable=True)
            if known is not None:
                _check_free(destination, known)
        durable = merging.durable_number(pattern, wanted) if name else 0
        reader.pattern = pattern
        self._by_pattern[reader.key] = reader
        self._patterns.add(reader.key, pattern)
        for at, destination in enumerate(found):
            if at and at % _CLAIMED_MAX == 0:
                await asyncio.sleep(0)
                self._check_there(reader)
            if not self._is_there(destination.identity):
                continue
            if name:
                merging.make_durable(durable, wanted, destination)
            self._join(reader, destination)

    async def _matching(self, pattern: Pattern) -> list[Destination]:
        """Every topic that matches now."""
        merging, found = self._host.merging, []
        known = list(self._host.state.destinations.values())
        for at in range(0, len(known), _SCANNED_MAX):
            if at:
                await asyncio.sleep(0)
            found += [one for one in known[at : at + _SCANNED_MAX] if merging.matches(pattern, one)]
        return found

    def _check_there(self, reader: Reader) -> None:
        if self._host.sessions.find(reader.session.identity) is not reader.session:
            raise SessionClosed()
        if reader.session.readers.get(reader.number) is not reader:
            raise BadArgument(argument="reader", detail="it was closed meanwhile")

    def _join(self, reader: Reader, destination: Destination) -> None:
        """One more topic of a pattern."""
        name = reader.wanted["subscription"]
        subscription = named(destination, name, durable=True) if name else None
        if subscription is not None:
            self._take(reader, destination, subscription)
        else:
            reader.members[destination.identity] = (destination, None)

    def reads(self, name: str) -> bool:
        """Is a durable pattern of that name read?"""
        return any(reader.wanted["subscription"] == name for reader in self._by_pattern.values())

    def created(self, destination: Destination) -> None:
        """A destination was made: the readers of patterns that it matches read it too, from its first message on."""
        if destination.kind != TOPIC or not self._by_pattern:
            return
        for key in self._patterns.matching(destination.name):
            reader = self._by_pattern[key]
            if reader.pattern is None or not self._host.merging.matches(reader.pattern, destination):
                continue
            try:
                self._join(reader, destination)
            except ClarionError as error:  # the reader's misfortune, not of whoever made the topic
                reader.failure = error
                self._let_go(reader)

    # --- looking --------------------------------------------------------------------------------------

    async def _look(self, session: Session, arguments: Arguments) -> object:
        """As many destinations as an answer holds, by identity, after the one that is named."""
        after = number(arguments, "after", 0)
        if arguments.get("reader") is None:
            members = await self._unopened(_wanted(arguments))
        else:
            members = await self._opened(session, counted("reader", arguments["reader"]))
        identities = sorted(identity for identity in members if identity > after)
        rows: list[object] = []
        for at, identity in enumerate(identities[:_ROWS_MAX]):
            if at and at % _CLAIMED_MAX == 0:
                await asyncio.sleep(0)
            destination, subscription = members[identity]
            if self._is_there(identity):
                rows.append(await self._row(session, destination, subscription))
        return {"readable": rows, "next": identities[_ROWS_MAX - 1] if len(identities) > _ROWS_MAX else None}

    async def _opened(self, session: Session, wanted: int) -> dict[int, Member]:
        reader = session.readers.get(wanted)
        if reader is None:
            raise BadArgument(argument="reader", detail=f"there is no {wanted}")
        await reader.ready.wait()
        if reader.failure is not None:
            raise reader.failure
        self._check_there(reader)
        if reader.pattern is None and not any(map(self._is_there, reader.members)):
            reader.members.clear()
            self._open_one(reader)  # it was dropped; perhaps there is another one by now
        return reader.members

    def _is_there(self, identity: int) -> bool:
        return identity in self._host.state.destinations

    async def _unopened(self, wanted: dict[str, Any]) -> dict[int, Member]:
        """What a reader would have, without making or claiming anything."""
        text, name = wanted["destination"], wanted["subscription"]
        if is_pattern(text):
            found = await self._matching(parse_pattern(text))
        else:
            kind, plain = parse_destination(text, system=True)
            known = self._host.state.find(plain)
            if known is None:
                raise NoSuchDestination(destination=plain)
            if kind is not None and kind != known.kind:
                raise WrongKind(destination=plain, kind=known.kind, wanted=kind)
            found = [known]
        return {one.identity: (one, subscription_of(one, name) if name else None) for one in found}

    async def _row(self, session: Session, destination: Destination, subscription: Subscription | None) -> object:
        end = destination.visible
        if subscription is None:
            floor, name = first_kept(destination), None
        else:
            if subscription.reader == session.identity:
                if destination.expiring:
                    await self._host.clockwork.set_aside(destination, max(subscription.taken, 1))
                subscription.taken = max(subscription.taken, end)
            floor, name = subscription.confirmed.floor, subscription.name
        return str(destination), destination.identity, floor, max(end, floor), name

    # --- ends -----------------------------------------------------------------------------------------

    async def _close(self, session: Session, arguments: Arguments) -> object:
        reader = session.readers.get(counted("reader", arguments["reader"]))
        if reader is None:
            raise BadArgument(argument="reader", detail=f"there is no {arguments['reader']}")
        self._let_go(reader)
        return None

    def ended(self, session: Session) -> None:
        """A session is over: others may read what it read."""
        for reader in list(session.readers.values()):
            self._let_go(reader)

    def _let_go(self, reader: Reader) -> None:
        reader.session.readers.pop(reader.number, None)
        if self._by_pattern.pop(reader.key, None) is not None:
            self._patterns.remove(reader.key)
        members, reader.members = reader.members, {}
        for destination, subscription in members.values():
            if subscription is not None:
                subscription.reader = subscription.taken = 0
                self._host.clockwork.released(destination)


def _wanted(arguments: Arguments) -> dict[str, Any]:
    """What a reader wants, as `Subscribing` takes it. Raises what is wrong with it."""
    wanted: dict[str, Any] = {"destination": text(arguments, "destination")}
    for name in ("subscription", "selector"):
        wanted[name] = text(arguments, name) if arguments.get(name) is not None else None
    for name in ("start", "start_ms"):
        wanted[name] = counted(name, arguments[name]) if arguments.get(name) is not None else None
    if wanted["subscription"]:
        check_name(wanted["subscription"])
        wanted["durable"] = True
    return wanted


def _check_free(destination: Destination, subscription: Subscription) -> None:
    """Nobody has messages of it: a consumer, one that left and still holds some, a prepared transaction, a reader."""
    if subscription.reader or subscription.consumers or subscription.reserved:
        raise SubscriptionInUse(destination=str(destination), subscription=subscription.name)
