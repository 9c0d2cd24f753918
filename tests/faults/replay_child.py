"""A replay in a process of its own, so that a test can kill it at any step."""

from __future__ import annotations

import os

from clarion.pipelines.replay import Settings, replay


def live(url: str, settings: Settings, arm: str) -> None:
    """Run a job, with test points armed."""
    os.environ["CLARION_ARM"] = arm
    replay(url, settings)
