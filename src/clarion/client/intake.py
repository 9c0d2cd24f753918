"""What a consumer was delivered, and how far the application has taken it.

Guarantees
    1. Messages are taken in the order of their deliveries, and from the topics of a pattern in turns.
    2. What was seen and what was not is known to the message, at any moment: confirmed, committed, claimed or
       given back is always the one or the other.
"""

from __future__ import annotations

from typing import Protocol

from clarion.client.acknowledging import ClientInbox, TransactedInbox
from clarion.client.inbox import Credit, Inbox, Part, Ranges
from clarion.client.merged import Merged
from clarion.client.outcome import Outcome
from clarion.client.subscription import Subscription
from clarion.core.spans import Spans
from clarion.errors import BadArgument, ClarionError
from clarion.wire.frames import Slice


class Hand(Protocol):
    """Somebody who takes whole parts, and hands out their messages himself: the blocking twin."""

    def taken(self, part: Part) -> int:
        """How many messages of `part` were handed out."""
        ...

    def cut(self, part: Part) -> int:
        """The same; and no more of them are handed out from now on."""
        ...


class Intake:
    """The receiving end of a consumer, without the broker."""

    def __init__(self, number: int, wanted: Subscription) -> None:
        self._number = number
        self._wanted = wanted
        self._credit = Credit(wanted.prefetch_messages, wanted.prefetch_bytes)
        self._inbox = self._make_inbox(wanted.destination, number)
        self._merged = Merged(self._make_inbox) if wanted.pattern else None
        self._current: Part | None = None
        """The part that the application takes messages from."""
        self._hand: Hand | None = None
        self._seen_end = 0
        """One more than the highest sequence that the application has seen; only kept for one that starts somewhere."""

    def _make_inbox(self, destination: str, number: int = 0) -> Inbox:
        match self._wanted.ack:
            case "client":
                return ClientInbox(self, number, destination)
            case None:
                return TransactedInbox(self, number, destination)
        return Inbox(self, number, destination)

    def _mark(self, inbox: Inbox) -> None:
        """Something is to be sent."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raises when the session is over."""
        raise NotImplementedError

    def _confirm_received(self) -> Outcome:
        """Confirm all that the session has received in mode `client`."""
        raise NotImplementedError

    def _only_inbox(self) -> Inbox:
        if self._merged is not None:
            raise BadArgument(argument="first", detail="every topic of a pattern has sequences of its own")
        return self._inbox

    # --- parts ----------------------------------------------------------------------------------------

    def _take_in(self, inbox: Inbox, delivered: Slice) -> None:
        """A slice arrived."""
        part = Part(inbox, delivered, self._credit)
        if self._merged is None:
            inbox.parts.append(part)
        else:
            self._merged.deliver(part)

    def _pass_by(self, inbox: Inbox, delivered: Slice) -> None:
        """A slice arrived that comes again: nothing but its credit counts."""
        part = Part(inbox, delivered, self._credit)
        part.index = part.count
        self._give_credit(part)

    def _part(self) -> Part | None:
        """The part that has the next message; None when there is none."""
        current = self._current
        if current is not None and current.index < current.count:
            return current
        if self._merged is not None:
            part = self._merged.next_part()
        else:
            part = self._inbox.next_part() if self._inbox.parts else None
        if part is not None:
            self._note_seen()
            self._current = part
        return part

    def _give_credit(self, part: Part) -> None:
        """The application has taken `part` up to its index."""
        if self._credit.add(part):
            self._mark(self._inbox)

    # --- what the application has ---------------------------------------------------------------------

    def _inboxes(self) -> list[Inbox]:
        return [self._inbox] if self._merged is None else list(self._merged.by_name.values())

    @property
    def _idle(self) -> bool:
        return all(inbox.idle for inbox in self._inboxes())

    def _seen(self) -> list[tuple[Inbox, Ranges]]:
        """What the application was handed and has not confirmed."""
        seen: list[tuple[Inbox, Ranges]] = []
        current = self._current
        for inbox in self._inboxes():
            held = inbox.held
            if current is not None and inbox is current.inbox:
                taken = current.index if self._hand is None else self._hand.taken(current)
                if taken < current.count:  # of the present part it has seen the beginning only
                    held = Spans(list(held))
                    held.take(current.first + taken, current.first + current.count)
            ranges = [(first, end) for first, end, _ in held]
            if ranges:
                seen.append((inbox, ranges))
        return seen

    def _take_seen(self) -> list[tuple[int, Ranges]]:
        """The same, by consumer number; and it is not the application's any more."""
        seen = self._seen()
        for inbox, ranges in seen:
            for first, end in ranges:
                inbox.held.take(first, end)
        return [(inbox.number, ranges) for inbox, ranges in seen]

    def _drop_unseen(self) -> list[tuple[Inbox, Ranges]]:
        """Forget what the application never saw: these ranges."""
        unseen: list[tuple[Inbox, Ranges]] = []
        current = self._current
        if current is not None:
            taken = current.index if self._hand is None else self._hand.cut(current)
            if taken < current.count:
                rest = (current.first + taken, current.first + current.count)
                unseen.append((current.inbox, [rest]))
                current.inbox.held.take(*rest)
                current.index = current.count = taken
        if self._merged is not None:
            return unseen + self._merged.drop_parts()
        return [*unseen, (self._inbox, self._inbox.drop_parts())]

    def _return_unseen(self) -> None:
        """Forget what the application never saw, and give its credit back: it comes again."""
        for part in (self._current, *(part for inbox in self._inboxes() for part in inbox.parts)):
            if part is not None:
                index, part.index = part.index, part.count
                self._give_credit(part)
                part.index = index
        self._drop_unseen()

    def _note_seen(self) -> None:
        current = self._current
        if current is not None and (self._wanted.start is not None or self._wanted.start_ms is not None):
            self._seen_end = max(self._seen_end, current.first + current.count)

    def _abandon_topic(self, inbox: Inbox, error: ClarionError) -> None:
        """A topic of the pattern is no more: what was delivered of it used up credit that is given back at once."""
        assert self._merged is not None
        current, taken = self._current, 0
        if current is not None and current.inbox is inbox:
            taken = current.index if self._hand is None else self._hand.cut(current)
            inbox.parts.appendleft(current)
        for part in inbox.parts:
            part.index = part.count
            self._give_credit(part)
            part.index = part.count = taken if part is current else 0
        self._merged.remove(inbox)
        inbox.abandon(error)
