"""Every test of the asyncio client runs on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tests.unit.client import scripted_broker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "blocking" not in metafunc.module.__name__:
        metafunc.parametrize("loop", ["asyncio", "uvloop"], indirect=True)


@pytest.fixture(autouse=True)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of `scripted_broker.run`."""
    if getattr(request, "param", "asyncio") == "uvloop":
        monkeypatch.setattr(scripted_broker, "loop_factory", uvloop.new_event_loop)
    else:
        monkeypatch.setattr(scripted_broker, "loop_factory", asyncio.new_event_loop)
