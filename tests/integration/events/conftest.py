"""Fixtures of tests with event systems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.events.systems import Systems


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[Systems]:
    systems = Systems(tmp_path / "events")
    try:
        yield systems
    finally:
        systems.close()
