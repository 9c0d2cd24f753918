"""Requests: what administrators ask for and change, and what a session asks for itself.

Each verb is one method; each answers exactly once, with a result or an error. docs/reference/requests.md
describes the results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.destination import Destination
from clarion.core.entries import Kind, Ranges, SetPolicy
from clarion.core.patterns import is_pattern
from clarion.core.policies import parse_policy
from clarion.core.subscription import Range
from clarion.core.wellknown import is_temporary
from clarion.errors import BadArgument, ClarionError, UnknownVerb
from clarion.message import parse_destination
from clarion.nodes.message_manager.arguments import Arguments, find, number, text, told
from clarion.nodes.message_manager.sessions import Session
from clarion.wire import frames
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager


class Requests:
    """The administration side of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._verbs: dict[str, Callable[[Arguments], Awaitable[object]]] = {
            **host.looking.verbs,
            **host.leasing.verbs,
            "purge": self._purge,
            "delete": self._delete,
            "create": self._create,
            "drop": self._drop,
            "unsubscribe": self._unsubscribe,
            "set_policy": self._set_policy,
            "remove_policy": self._remove_policy,
            "resend": self._resend,
        }
        self._session_verbs = {
            **host.transacting.verbs,
            **host.streaming.verbs,
            "recover": host.restarting.recover,
            "temporary": host.temporary.make,
        }
        """Verbs that act for the session that asks; done at once, in the order of its commands."""
        self._reading = {"fragment": host.streaming.reading.ask, "read": host.ranging.ask}
        """Verbs that are answered in the session's turn, when its connection takes more."""

    def handle(self, command: Command) -> None:
        """One REQUEST."""
        wanted = frames.unpack(command.payload)
        request, verb, arguments = wanted["request"], wanted["verb"], wanted.get("arguments") or {}
        at_once = self._session_verbs.get(verb)
        if verb in self._reading:
            self._ask(self._reading[verb], command.session, request, arguments)
            return
        if verb in self._host.readers.verbs:
            session = self._host.sessions.get(command.session)
            self._host.spawn(self._answer_reader(session, request, verb, arguments))
            return
        if at_once is None:
            self._host.spawn(self._answer(command.session, request, verb, arguments))
            return
        session = self._host.sessions.get(command.session)
        try:
            with told():
                result = at_once(session, arguments)
        except ClarionError as error:
            # A rollback that the error speaks of is durable first.
            self._host.log.after(lambda error=error: self._host.fail(command.session, request, error))  # type: ignore[misc]
        else:
            self._host.log.after(lambda: self._host.reply(command.session, request, result))

    def _ask(
        self, ask: Callable[[Session, int, Arguments], None], session: int, request: int, arguments: Arguments
    ) -> None:
        try:
            with told():
                ask(self._host.sessions.get(session), request, arguments)
        except ClarionError as error:
            self._host.fail(session, request, error)

    async def _answer_reader(self, session: Session, request: int, verb: str, arguments: Arguments) -> None:
        try:
            with told():
                result = await self._host.readers.verbs[verb](session, arguments)
        except ClarionError as error:
            self._host.fail(session.identity, request, error)
        else:
            self._host.log.after(lambda: self._host.reply(session.identity, request, result))

    async def _answer(self, session: int, request: int, verb: str, arguments: Arguments) -> None:
        try:
            work = self._verbs.get(verb)
            if work is None:
                raise UnknownVerb(verb=verb)
            with told():
                result = await work(arguments)
        except ClarionError as error:
            self._host.fail(session, request, error)
        else:
            self._host.log.after(lambda: self._host.reply(session, request, result))

    # --- changing -------------------------------------------------------------------------------------

    async def _purge(self, arguments: Arguments) -> object:
        destination = find(self._host.state, arguments)
        removed = destination.depth()
        self._discard(destination, [(1, destination.tail)])
        return {"removed": removed}

    async def _delete(self, arguments: Arguments) -> object:
        destination = find(self._host.state, arguments)
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
        self._host.log.after(lambda: self._host.freeing.release(destination, ranges))

    async def _create(self, arguments: Arguments) -> object:
        kind, name = parse_destination(text(arguments, "destination"))
        if self._host.state.find(name) is not None:
            raise BadArgument(argument="destination", detail=f"{name} exists")
        quota = number(arguments, "quota_bytes", 0)
        return self._host.looking.describe(self._host.naming.create(kind or "queue", name, quota or None))

    async def _drop(self, arguments: Arguments) -> object:
        destination = find(self._host.state, arguments)
        if destination.has_consumers() or any(one.reader for one in destination.subscriptions.values()):
            raise BadArgument(argument="destination", detail=f"{destination} has consumers, or a reader")
        if destination.name.startswith("_") and not is_temporary(destination.name):
            raise BadArgument(argument="destination", detail=f"{destination} belongs to the system")
        self._host.naming.drop(destination)
        self._host.temporary.dropped(destination)
        return {"dropped": str(destination)}

    async def _unsubscribe(self, arguments: Arguments) -> object:
        name = text(arguments, "subscription")
        if is_pattern(text(arguments, "destination")):
            self._host.merging.delete_by_name(text(arguments, "destination"), name)
        else:
            self._host.subscribing.delete_by_name(find(self._host.state, arguments), name)
        return None

    # --- policies -------------------------------------------------------------------------------------

    async def _set_policy(self, arguments: Arguments) -> object:
        pattern, said = text(arguments, "pattern"), arguments["policy"]
        if not isinstance(said, dict) or not said:
            raise BadArgument(argument="policy", detail="it names no field")
        policy = parse_policy(said)
        self._host.state.policies.check(pattern)
        self._host.log.write(Kind.POLICY, SetPolicy(pattern, policy.said()).encode())
        await self._host.retention.look_at_all()
        return policy.said()

    async def _remove_policy(self, arguments: Arguments) -> object:
        pattern = text(arguments, "pattern")
        if pattern not in dict(self._host.state.policies.rules()):
            raise BadArgument(argument="pattern", detail=f"no policy was set for {pattern}")
        self._host.log.write(Kind.POLICY, SetPolicy(pattern, None).encode())
        await self._host.retention.look_at_all()
        return None

    # --- dead messages --------------------------------------------------------------------------------

    async def _resend(self, arguments: Arguments) -> object:
        sequences, origin, to = arguments.get("sequences"), arguments.get("destination"), arguments.get("to")
        if sequences is not None and not all(isinstance(one, int) and one > 0 for one in sequences):
            raise BadArgument(argument="sequences", detail="they are numbers above 0")
        for argument, named in (("destination", origin), ("to", to)):
            if named is not None and not isinstance(named, str):
                raise BadArgument(argument=argument, detail="it is not text")
        return {"resent": await self._host.dead.resend(sequences, origin, to)}
