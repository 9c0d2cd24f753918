"""One broker for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.topologies import Single, Topology, started


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """`clarion serve`."""
    with started(Single(tmp_path_factory.mktemp("conformance"))) as topology:
        yield topology


@pytest.fixture
def broker(shared_broker: Topology) -> Iterator[Topology]:
    """The same for all; whatever a test did, it must be well afterwards."""
    yield shared_broker
    shared_broker.check_alive()
