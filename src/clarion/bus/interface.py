"""The bus: how nodes talk to each other, whatever carries it (B-05).

Guarantees of every implementation (checked by `clarion.testing.bus_conformance`)
    1. What one endpoint publishes arrives at every subscriber of the channel, once, in the order of
       publishing, over all channels of that endpoint, as long as both are connected. Nothing is kept
       for subscribers that come later.
    2. `publish` never blocks and never calls back; callbacks run on the event loop's thread, never
       within a call to the bus other than `release`, and one wake of the loop serves a whole burst.
    3. A callback that raises harms no other callback and no later message.
    4. A watcher hears of every member that is there or comes, and of everyone that leaves or dies,
       itself included. After a broken connection it hears that the others left and came again.
    5. What waits inside is visible (`waiting_bytes`), so that a sender that can refuse does so.

What a broken connection loses is not repaired here: whoever sees a member leave and come again must
take everything without an answer for lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Receive = Callable[[bytes], None]
Watch = Callable[[str, bool], None]
"""A member's name, and whether it is there (True) or gone (False)."""


class Subscription(Protocol):
    """Something that lasts until it is closed: a subscription, a membership, a watch."""

    def close(self) -> None:
        """End it; closing twice is allowed. No callback runs afterwards."""


class Bus(Protocol):
    """One endpoint. Everything is called on the event loop's thread."""

    after_burst: Callable[[], None] | None
    """Called when a burst of this endpoint's messages has been handed out: the moment to pass on, together,
    what they led to."""

    @property
    def waiting_bytes(self) -> int:
        """What `publish` took and the transport has not yet."""

    def publish(self, channel: str, data: bytes) -> None:
        """Send to all who subscribed `channel` (words separated by `/`)."""

    def hold(self) -> None:
        """Whoever calls this is about to publish, and says by `release` when it is done."""

    def release(self) -> None:
        """Only from the end of a callback of the loop: what was held may be handed out before this returns."""

    def subscribe(self, channel: str, callback: Receive) -> Subscription:
        """Call back for everything that is published to `channel` from now on, also by this endpoint."""

    def join(self, name: str) -> Subscription:
        """Be a member `name` until closed. A name belongs to one endpoint at a time."""

    def watch(self, callback: Watch) -> Subscription:
        """Call back for each member that is there now, and whenever one comes or goes."""

    def close(self) -> None:
        """Leave: what was published before is still sent, nothing is called back any more."""
