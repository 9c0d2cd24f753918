"""The labelled steps of a job as test points, so that a process of it can be broken at each.

For jobs that run in processes which somebody else starts (Spark's workers, a command line): they are armed by the
environment that the process was started with, `CLARION_ARM=spark.prepared=kill@2`. Disarmed a step costs a call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from clarion.instruments.points import TestPoint
from clarion.instruments.registry import Registry


class JobSteps:
    """What a job passes, by name, and what it means to be there; its test points are called `prefix` + name."""

    def __init__(self, meanings: Mapping[str, str], prefix: str = "") -> None:
        self._meanings = meanings
        self._prefix = prefix
        self._points: dict[str, TestPoint] | None = None

    def at(self, name: str) -> None:
        """The process is at this step."""
        self.point(name)()

    def point(self, name: str) -> TestPoint:
        """The test point of a step, to arm it from within the process."""
        points = self._points
        if points is None:
            points = self._points = self._armed()
        return points[name]

    def _armed(self) -> dict[str, TestPoint]:
        registry = Registry()
        points = {
            name: registry.test_point(f"{self._prefix}{name}", meaning=meaning)
            for name, meaning in self._meanings.items()
        }
        registry.arm_from(os.environ)
        return points
