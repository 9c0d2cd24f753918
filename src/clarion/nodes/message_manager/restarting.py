"""Consumers that begin again: what comes back to them comes before everything newer (JMS 6.2.7, 6.2.10).

Theory of operation
    A client that recovers or rolls back has dropped what its application never saw, and asks for it again together
    with what the application gave back. At that moment other deliveries are on their way to it. So the consumers
    that it names are stopped, all that is in flight with them is ready again, and they go on when the request is
    answered: what the client receives before the answer had left before, and it drops that; what it receives
    after the answer begins with the lowest sequence.

Rules
    1. Nobody has seen what is taken back here: it does not count as delivered. What was seen is counted by REJECT or
       `rollback`, before.
    2. Nothing is delivered to a stopped consumer, and every stopped one goes on, in the turn of its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.errors import BadArgument
from clarion.nodes.message_manager.sessions import Session

if TYPE_CHECKING:
    from clarion.core.consumer import Credit
    from clarion.nodes.message_manager.host import MessageManager


class Restarting:
    """Stops consumers, takes back, and lets them go on."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host

    def recover(self, session: Session, arguments: dict[str, Any]) -> object:
        """The verb. What the application has seen was rejected before."""
        self.restart(session, arguments)
        return {}

    def restart(self, session: Session, arguments: dict[str, Any]) -> None:
        """The consumers in `restart`, if there are any, begin again once the request is answered."""
        numbers = arguments.get("restart") or ()
        if len(numbers) > limits.CONSUMERS_PER_SESSION_MAX:
            raise BadArgument(argument="restart", detail=f"at most {limits.CONSUMERS_PER_SESSION_MAX} consumers")
        stopped: list[Credit] = []
        for number in dict.fromkeys(numbers):
            credit = session.merging.get(number)
            if credit is None and number in session.consumers:
                credit = session.consumers[number][1].credit
            if credit is not None:
                credit.stopped += 1
                stopped.append(credit)
                for child in (number, *self._host.merging.numbers_of(session, number)):
                    self._take_back(session, child)
        if stopped:
            self._host.log.after(lambda: self._go_on(stopped))

    def _take_back(self, session: Session, number: int) -> None:
        known = session.consumers.get(number)
        if known is None or not (known[1].inflight or known[1].assigned):
            return
        destination, consumer = known
        consumer.subscription.restart(consumer)
        self._host.consuming.leave_if_done(session.identity, destination, consumer)
        self._host.delivery.wake(destination)  # others may have it meanwhile

    def _go_on(self, stopped: list[Credit]) -> None:
        for credit in stopped:
            credit.stopped -= 1
            self._host.consuming.wake_starved(credit)
