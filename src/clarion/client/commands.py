"""Questions to the broker, on top of a session's channel: each has a number, and one answer.

Guarantees
    1. A repeatable command that is not answered when the connection is lost is asked again on the next
       one; whoever waits for another is told that its outcome is not known.
    2. Commands that decide a transaction are asked again before any consumer is there again: the broker
       then answers from memory, and cannot take what they name for what new consumers have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from clarion.client.host import Host
from clarion.client.outcome import Outcome, error_of
from clarion.client.publisher import Publisher
from clarion.errors import BadFrame, ClarionError, ConnectionLost
from clarion.wire import frames
from clarion.wire.frames import Type

DECIDING = frozenset({"commit", "prepare"})
_READING = {"status", "destinations", "browse", "policies", "dead", "prepared", "fragment", "lease_look", "leases"}
_READING |= {"read", "reader_look", "committed_version"}
_CHANGING = {"delete", "commit_prepared", "drop_stream", "lease_acquire", "lease_release"}
_CHANGING |= {"reader_open", "reader_confirm", "resolve"}
REPEATABLE = DECIDING | _READING | _CHANGING
"""Verbs that may be asked twice: in flight when a connection is lost, they are asked again."""
_SAID_AGAIN = {"resolve"}
"""Those of them that say so, because asked twice by two people they are two questions."""

Answer = Callable[[Any, ClarionError | None], None]


class _Reply(msgspec.Struct):
    request: int
    result: Any = None
    code: str = ""
    facts: dict[str, Any] = {}


_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class Call(Outcome):
    """A command, until it is answered."""

    __slots__ = ("arguments", "result", "times_asked", "verb")

    def __init__(self, verb: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.verb = verb
        self.arguments = arguments
        self.result: Any = None
        self.times_asked = 0

    def answered(self, result: Any, error: ClarionError | None) -> None:
        self.result = result
        self.settle(error)


class Restarts(Protocol):
    """A consumer that was stopped."""

    _number: int

    def _go_on(self) -> None:
        """It begins again."""


class Restart(Call):
    """A command whose answer lets consumers go on: between what had left before it and what begins again."""

    __slots__ = ("_stopped",)

    def __init__(self, verb: str, arguments: dict[str, Any], stopped: Sequence[Restarts]) -> None:
        super().__init__(verb, {**arguments, "restart": [one._number for one in stopped]} if stopped else arguments)
        self._stopped = stopped

    def answered(self, result: Any, error: ClarionError | None) -> None:
        for one in self._stopped:
            one._go_on()
        super().answered(result, error)


class Commander(Publisher):
    """What a session does for asking."""

    def __init__(self, host: Host, channel: int, buffer_bytes: int) -> None:
        super().__init__(host, channel, buffer_bytes)
        self._calls: dict[Call, None] = {}
        self._requests = 0
        self._answers: dict[int, Answer] = {}

    async def command(self, verb: str, arguments: dict[str, Any] | None = None) -> Any:
        """Ask the broker something: the verbs of docs/reference/requests.md."""
        return (await self._call(Call(verb, arguments or {}))).result

    async def _call(self, call: Call) -> Call:
        self._begin_call(call)
        return await self._end_call(call)

    def _begin_call(self, call: Call) -> None:
        """Ask; whoever does must see to `_end_call`, or to `_forget_call`."""
        self._check_open()
        self._calls[call] = None
        self._send_call(call)

    async def _end_call(self, call: Call) -> Call:
        """Wait for the answer. Raises what the call failed with."""
        try:
            await call.wait()
        finally:
            self._forget_call(call)
        return call

    def _forget_call(self, call: Call) -> None:
        """Nobody wants the answer any more."""
        self._calls.pop(call, None)

    def _send_call(self, call: Call) -> None:
        if self._attached:
            arguments = call.arguments
            if call.times_asked and call.verb in _SAID_AGAIN:
                arguments = {**arguments, "again": True}
            call.times_asked += 1
            self._ask(Type.REQUEST, {"verb": call.verb, "arguments": arguments}, call.answered)

    def _expect(self, answer: Answer) -> int:
        """A new request number, whose answer goes to `answer`."""
        self._requests += 1
        self._answers[self._requests] = answer
        return self._requests

    def _ask(self, kind: int, request: dict[str, Any], answer: Answer) -> None:
        request = {"request": self._expect(answer), **request}
        self._host.send(kind, self._channel, (frames.pack(request),))
        self._host.wake()

    def _replied(self, kind: int, payload: memoryview) -> None:
        if not self._attached:
            return  # CLOSE is sent: nothing may follow it, and answers to answers would
        try:
            reply = _decode_reply(payload)
        except msgspec.MsgspecError as error:
            raise BadFrame(detail=f"{Type(kind).name}: {error}") from None
        answer = self._answers.pop(reply.request, None)
        if answer is not None:
            failed = error_of({"code": reply.code, "facts": reply.facts}) if kind == Type.ERROR else None
            answer(reply.result, failed)

    def _attach_calls(self, *, deciding: bool) -> None:
        for call in list(self._calls):
            if (call.verb in DECIDING) is deciding:
                self._send_call(call)

    def _detach_calls(self) -> None:
        self._answers.clear()
        for call in list(self._calls):
            if call.times_asked and call.verb not in REPEATABLE:
                call.settle(ConnectionLost(detail=f"whether {call.verb!r} was done is not known"))
                del self._calls[call]

    def _end_calls(self, error: ClarionError) -> None:
        for call in list(self._calls):
            call.settle(error)
