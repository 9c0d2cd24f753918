"""Test points: named places in the product's own code where a fault test can insert logic (C-01, C-11).

Guarantees
    1. Disarmed, `point()` is one call and one test of an attribute; where even the call is too much, write
       `if point.armed: point.fire()`.
    2. Armed, each passing is counted once, whatever thread passes: of several threads exactly one makes the
       N-th passing. Actions run in the passing thread and hold no lock, so a delayed thread delays no other.
    3. A point whose armings are used up is disarmed again by itself.
"""

from __future__ import annotations

from threading import Lock
from typing import ClassVar

from .arming import Arming
from .declaration import Declaration


class TestPoint:
    """Shows how often it has acted. Passing returns what the last action that was due returned, else None."""

    __test__: ClassVar[bool] = False  # its name is not an invitation to pytest
    __slots__ = ("_armings", "_fired", "_lock", "armed", "declaration")

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.armed = False
        self._armings: list[_Armed] = []
        self._lock = Lock()
        self._fired = 0

    def __call__(self) -> object:
        if self.armed:
            return self.fire()
        return None

    def fire(self) -> object:
        """One passing of an armed point."""
        result: object = None
        for arming, passing in self._pass():
            result = arming.action.run(self.declaration.name, passing)
        return result

    def arm(self, arming: Arming) -> None:
        """Adds `arming` to what the point does; its passings are counted from now on."""
        with self._lock:
            self._armings.append(_Armed(arming))
            self.armed = True

    def disarm(self) -> None:
        with self._lock:
            self._armings.clear()
            self.armed = False

    def armings(self) -> list[Arming]:
        """What the point is still armed with."""
        with self._lock:
            return [armed.arming for armed in self._armings]

    def read(self) -> int:
        return self._fired

    def _pass(self) -> list[tuple[Arming, int]]:
        """Count one passing; the armings due at it, each with its own number of the passing."""
        with self._lock:
            due = [(armed.arming, armed.passings) for armed in self._armings if armed.passes()]
            self._fired += len(due)
            self._armings = [armed for armed in self._armings if not armed.used_up()]
            self.armed = bool(self._armings)
        return due


class _Armed:
    """An arming and how often its point was passed since."""

    __slots__ = ("arming", "passings")

    def __init__(self, arming: Arming) -> None:
        self.arming = arming
        self.passings = 0

    def passes(self) -> bool:
        self.passings += 1
        return self.passings >= self.arming.after

    def used_up(self) -> bool:
        times = self.arming.times
        return times is not None and self.passings >= self.arming.after + times - 1
