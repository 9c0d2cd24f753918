"""Message groups of one subscription: the messages of a group are with one consumer at a time.

Theory of operation
    Each view has an owner for every group that it has seen; what comes next of the group goes to it, or waits for it
    (`Consumer.assigned`). Two things part a group from its owner: a consumer that leaves and keeps what it has seen,
    and one that claims what it holds from an earlier life. Whoever so holds messages of a group without owning it is
    bound to it: it gets the next ones when nobody owns the group, and if it has left, they wait until it holds none.

Rules
    1. Soft: nothing here is logged. What was handed out before a restart is not known to be of a group.
    2. Consumers with different selectors have owners of their own for each group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clarion.core.spans import Spans

if TYPE_CHECKING:
    from clarion.core.consumer import Consumer
    from clarion.core.view import View


class Groups:
    """Who holds messages of which group."""

    __slots__ = ("_put_back", "bound", "known", "left")

    def __init__(self, put_back: Callable[[int, int], None]) -> None:
        self._put_back = put_back
        self.known = Spans()
        """The group of each unconfirmed message that was handed out for its group."""
        self.bound: dict[int, list[Consumer]] = {}
        """Who holds messages of a group without owning it."""
        self.left: list[Consumer] = []
        """Who takes no more and still holds something."""

    def holder(self, group: int, view: View) -> Consumer | None:
        """Who must have the next message of a group that nobody owns, because it holds earlier ones.

        It may have left: then the message is assigned to it all the same, and waits. Those who have left come first: a
        claim may have parted the group, and who claimed a part of it gets no more while they hold another.
        """
        if group not in self.bound:
            return None
        holding = [consumer for consumer in self.bound[group] if self._holds(consumer, group)]
        if holding:
            self.bound[group] = holding
        else:
            del self.bound[group]
        left = next((consumer for consumer in holding if consumer.view is None), None)
        return left or next((consumer for consumer in holding if consumer.view is view), None)

    def _holds(self, consumer: Consumer, group: int) -> bool:
        return any(of == group for first, end, _ in consumer.inflight for _, _, of in self.known.overlap(first, end))

    def _of(self, spans: Spans) -> list[int]:
        return sorted({group for first, end, _ in spans for _, _, group in self.known.overlap(first, end)})

    def take_over(self, consumer: Consumer, view: View, claimed: Spans) -> None:
        """Whoever claims messages of a group is its owner, as soon as nobody else holds some."""
        for group in self._of(claimed):
            owner = view.owners.get(group)
            if self.holder(group, view) is not None or (owner is not None and self._holds(owner, group)):
                self.bound.setdefault(group, []).append(consumer)
                continue
            view.owners[group] = consumer
            if owner is not None:
                self.unassign(owner, group)
        self.let_go()

    def unassign(self, consumer: Consumer, group: int = 0) -> None:
        """What waits for a consumer (of one group, or all) is ready for others."""
        for first, end, _ in list(consumer.assigned):
            for piece_first, piece_end, of in list(self.known.pieces(first, end)):
                if of == group or not group:
                    consumer.assigned.take(piece_first, piece_end)
                    self._put_back(piece_first, piece_end)

    def leave(self, consumer: Consumer) -> None:
        """A consumer takes no more: it is bound to the groups of what it keeps."""
        if consumer.inflight:
            self.left.append(consumer)
            for group in self._of(consumer.inflight):
                self.bound.setdefault(group, []).append(consumer)

    def let_go(self) -> None:
        """Consumers that have left hold less than they did: what waits for them is looked at again."""
        for consumer in self.left:
            if consumer.assigned:
                self.unassign(consumer)

    def gone(self, consumer: Consumer) -> None:
        """A consumer holds nothing any more."""
        if consumer in self.left:
            self.left.remove(consumer)
        if self.bound:
            others = {group: [one for one in known if one is not consumer] for group, known in self.bound.items()}
            self.bound = {group: known for group, known in others.items() if known}
