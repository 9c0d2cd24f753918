"""The labelled steps of an event's way (figure 2 of the first origin) as test points, so that each can be broken.

Disarmed they cost a call; `CLARION_ARM=events.213=kill` ends a process right after its event is in persistent memory.
"""

from __future__ import annotations

from clarion.instruments import Registry, TestPoint

STEPS = {
    "211": "an event is about to be recorded",
    "212": "the section that an event goes to is chosen",
    "213": "an event is in persistent memory, and emit has not returned",
    "214": "recorded events are about to be put on the event indication queue",
    "215": "events are about to be delivered to a recipient",
    "216": "a recipient has confirmed, and that is not recorded",
    "216b": "a confirmation is recorded, and not acted on",
    "217": "events are about to leave persistent memory: all recipients have confirmed",
    "231a": "initialisation events are about to be replayed",
    "231b": "incompletely delivered events are about to be replayed",
    "231c": "a cooperating system's events are about to be replayed",
    "240": "everything was replayed",
    "251": "a multiplexer has received events, and not recorded them",
    "252": "a multiplexer has recorded events",
    "253": "a multiplexer is about to confirm that it has them",
    "254": "a multiplexer is about to deliver to one of its recipients",
    "255": "a recipient of a multiplexer has confirmed, and that is not recorded",
    "256": "a multiplexer is about to forward a confirmation",
    "271": "a multiplexer reads its memory after a crash",
    "272": "a multiplexer is about to replay",
}


class Steps:
    """The test points of one event system: `steps.at("213")` passes one."""

    __slots__ = ("_points",)

    def __init__(self, registry: Registry) -> None:
        self._points = {name: registry.test_point(f"events.{name}", meaning=meaning) for name, meaning in STEPS.items()}

    def point(self, name: str) -> TestPoint:
        """For where even a call is too much: `if point.armed: point.fire()`."""
        return self._points[name]

    def at(self, name: str) -> None:
        """An event, or a group of them, is at this step."""
        self._points[name]()
