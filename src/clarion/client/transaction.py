"""The transactions of a session: one after the other, numbered from 1.

Theory of operation
    Everything sent is staged under the number of now, everything received belongs to it. `commit`,
    `rollback` and `prepare` cut: what comes later belongs to the next number. Then they ask.

    state      stimulus                    next
    OPEN       cut, commit or prepare      SETTLING   its messages are not all answered yet
    SETTLING   all are answered            ASKED
    ASKED      an answer                   over
    ASKED      connection lost             ASKED      asked again, with the same number: it is answered the same way
    OPEN       connection lost             over       rolled back, unless the broker had nothing of it yet
    SETTLING   connection lost             over       likewise

Guarantees
    1. A transaction that ended with its connection is told once, by `TransactionRolledBack`: from a send that
       waits, else from the next send, `commit` or `prepare`. What was received between the loss and
       that moment is given back as well, so that nothing is in two transactions.
    2. A send that failed and that nobody awaited makes `commit` fail, and roll back.
    3. A commit that was asked is answered, over any number of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from clarion.client.commands import Call, Restart
from clarion.client.inbox import Ranges
from clarion.errors import ClarionError, ConnectionLost, TransactionRolledBack
from clarion.wire.frames import Type

if TYPE_CHECKING:
    from clarion.client.channel import Channel
    from clarion.client.outbox import OutBatch

LOST = "the connection was lost before commit was asked"
SPARE_NUMBER = 1 << 63
"""From here on numbers are for giving back what was received, and have no messages staged."""


class PreparedHandle(str):
    """A transaction that waits for `commit(handles)`, of any session, in any process: it is its own text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"PreparedHandle({str.__repr__(self)})"


class Prepared(msgspec.Struct, frozen=True):
    """What a broker knows of a prepared transaction."""

    handle: PreparedHandle
    destinations: list[str]
    """Where its messages go …"""
    messages: int
    """… and how many there are."""
    expires_at_ms: int
    """When it is rolled back unless somebody decides, in Unix milliseconds."""


class _Ended(NamedTuple):
    """A transaction that was cut."""

    number: int
    consumed: list[tuple[int, Ranges]]
    sequences: tuple[int, int]
    """Producer sequences of its messages: from the first to before the second."""

    @property
    def empty(self) -> bool:
        return not self.consumed and self.sequences[0] == self.sequences[1]

    @property
    def arguments(self) -> dict[str, Any]:
        return {"transaction": self.number, "consumed": self.consumed}


class Transactions:
    """Which transaction a session is in."""

    def __init__(self, session: Channel) -> None:
        self._session = session
        self._number = 0
        self._spare = SPARE_NUMBER
        self._first_sequence = 0
        self._one_at_a_time = asyncio.Lock()
        self._settling: _Ended | None = None
        self._untold: TransactionRolledBack | None = None
        self._begin()

    # --- for applications -------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Make the transaction of now true."""
        await self._end("commit", {})

    async def prepare(self, expires_ms: int | None) -> PreparedHandle:
        """Keep the transaction of now for somebody who decides."""
        return PreparedHandle((await self._end("prepare", {"expires_ms": expires_ms}))["handle"])

    async def rollback(self) -> None:
        """Forget the transaction of now. What was lost with its connection is not told any more."""
        async with self._one_at_a_time:
            self._untold = None
            stopped = self._session._stop_seen()
            ended = self._cut()
            self._forget_unsent(ended.number, TransactionRolledBack(reason="rolled back"))
            with suppress(ClarionError):
                self._session._failures.tell()
            if not ended.empty:
                with suppress(ConnectionLost):  # the end of the connection rolled it back
                    await self._session._call(Restart("rollback", ended.arguments, stopped))

    def close(self) -> None:
        """The session ends: what is open is rolled back, without waiting."""
        ended = self._cut()
        self._forget_unsent(ended.number, TransactionRolledBack(reason="the session was closed"))
        if not ended.empty:
            self._roll_back_soon(ended.number, ended.consumed)

    async def _end(self, verb: str, more: dict[str, Any]) -> Any:
        async with self._one_at_a_time:
            self.tell()
            ended = self._cut()
            if ended.empty and verb == "commit":
                return {}
            await self._settle(ended)
            call = Call(verb, {**ended.arguments, **more})
            try:
                return (await self._session._call(call)).result
            except ClarionError as error:
                self._not_done(ended, error, asked_once=call.times_asked == 1)
                raise

    def _not_done(self, ended: _Ended, error: ClarionError, *, asked_once: bool) -> None:
        """It is refused, or rolled back: then the broker has taken back what it consumed."""
        came_back = ended.consumed if asked_once else []  # else its consumers are others now
        if isinstance(error, TransactionRolledBack):
            self._roll_back_soon(ended.number, [], came_back)
        else:
            self._roll_back_soon(ended.number, [])
            self._give_back(came_back)

    async def _settle(self, ended: _Ended) -> None:
        """All its messages are stored, or it is over."""
        session, self._settling = self._session, ended
        try:
            for batch in self._batches(ended.number):  # and not for one that was rolled back and waits for room
                with suppress(ClarionError):
                    await batch.wait()
            if self._settling is None:
                raise TransactionRolledBack(reason=LOST)
            session._failures.tell()
        except BaseException:
            if self._settling is not None:
                self._forget_unsent(ended.number, TransactionRolledBack(reason="it was not committed"))
                self._roll_back_soon(ended.number, ended.consumed)
            raise
        finally:
            self._settling = None

    # --- telling ----------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Raise that the last one was rolled back, if nobody was told.

        Another thread than the loop's may call it (while it holds the lock for sending); it has to see to
        `give_back_received` itself.
        """
        error, self._untold = self._untold, None
        if error is not None:
            if asyncio._get_running_loop() is self._session._host.loop:
                self.give_back_received()
            raise error

    def give_back_received(self) -> None:
        """What was received since the loss: whoever was told now begins anew, without it."""
        self._give_back(self._session._take_consumed())

    def _give_back(self, consumed: list[tuple[int, Ranges]]) -> None:
        if consumed:
            self._spare += 1
            self._roll_back_soon(self._spare, consumed)

    # --- numbers ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """What is sent from now on belongs to the next number."""
        self._number += 1
        self._session._begin_transaction(self._number)
        self._first_sequence = self._session._sequence

    def _cut(self) -> _Ended:
        number, first = self._number, self._first_sequence
        consumed = self._session._take_consumed()
        self._begin()
        return _Ended(number, consumed, (first, self._first_sequence))

    def _roll_back_soon(
        self, number: int, consumed: list[tuple[int, Ranges]], came_back: list[tuple[int, Ranges]] | None = None
    ) -> None:
        """Without waiting; a lost connection does it as well. What comes again comes before anything newer."""
        session = self._session
        if session._attached:
            arguments = {"transaction": number, "consumed": consumed}
            call = Restart("rollback", arguments, session._stop_of(came_back or consumed))
            session._ask(Type.REQUEST, {"verb": call.verb, "arguments": call.arguments}, call.answered)

    def _forget_unsent(self, number: int, error: ClarionError) -> None:
        """Messages that wait for the window. Not those of a refused lane: the broker waits for them to come again."""
        self._fail(number, error, lambda batch: batch.first not in batch.lane.sent and not batch.lane.refused)

    def _fail(self, number: int, error: ClarionError, which: Callable[[OutBatch], bool]) -> bool:
        """Fail messages of a transaction; whether somebody waits for one, and so is told."""
        session, watched = self._session, False
        with session.lock:
            for batch in self._batches(number):
                if which(batch):
                    watched |= batch.watched
                    batch.claimed = batch.count  # nobody need be told of each
                    session._settle(batch.first, batch.first + batch.count, error)
            session._answered()
        return watched

    # --- connections come and go ------------------------------------------------------------------------

    def detach(self) -> None:
        """The connection is lost; sending knows it already, receiving does not yet."""
        lost = TransactionRolledBack(reason=LOST)
        settling = self._settling
        if settling is not None and (settling.consumed or not self._is_unsent(settling.number, settling.sequences)):
            self._fail(settling.number, lost, lambda _: True)
            self._settling = None
        self._session._begin_transaction(self._number)  # seals what is open
        sequences = (self._first_sequence, self._session._sequence)
        consumed = any(receiver._seen() for receiver in self._session._receivers.values())
        if consumed or not self._is_unsent(self._number, sequences):
            ended = self._cut()
            if not self._fail(ended.number, lost, lambda _: True):
                self._untold = lost

    def _is_unsent(self, number: int, sequences: tuple[int, int]) -> bool:
        """The broker never heard of these messages, if there are any: nothing is lost."""
        unsent = sum(batch.count for batch in self._batches(number) if not batch.resend)
        return unsent == sequences[1] - sequences[0]

    def _batches(self, number: int) -> list[OutBatch]:
        """The messages of a transaction that are not answered yet."""
        return [batch for batch in self._session._by_first.values() if batch.transaction == number]
