"""Fixtures of tests that need real servers: one broker per topology for all of them, or one of a test's own."""

from __future__ import annotations

import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.integration.topologies import TOPOLOGIES, Split, Topology, started

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit it, and some are to be interrupted

settings.register_profile("clarion", deadline=None)  # a busy machine is no fault of what is tested
settings.load_profile("clarion")


@pytest.fixture(scope="session", params=list(TOPOLOGIES))
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """One broker in each topology, for every test that does not harm it."""
    with started(TOPOLOGIES[request.param](tmp_path_factory.mktemp(request.param))) as topology:
        yield topology


@pytest.fixture
def server(shared_server: Topology) -> Iterator[Topology]:
    """The shared broker; whatever a test did, it must be well afterwards."""
    shared_server.check_alive()
    yield shared_server
    shared_server.check_alive()


@pytest.fixture(params=list(TOPOLOGIES))
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Topology]:
    """A broker that the test may kill."""
    with started(TOPOLOGIES[request.param](tmp_path)) as topology:
        yield topology


@pytest.fixture
def split_server(tmp_path: Path) -> Iterator[Split]:
    """A client manager and a message manager of the test's own."""
    with started(Split(tmp_path)) as topology:
        yield topology


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A destination that no other test uses."""
    test = re.sub(r"\W+", "-", request.node.name)[:100].strip("-")
    return f"{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def begun() -> Callable[[str], list[str]]:
    """The threads of that name, or of names that begin so, that began in this test and live; never those of another."""
    others = set(threading.enumerate())

    def named(prefix: str) -> list[str]:
        mine = set(threading.enumerate()) - others
        return sorted(thread.name for thread in mine if thread.name.startswith(prefix))

    return named
