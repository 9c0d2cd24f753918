"""What several files of fault tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.pair_networks import Networks, WitnessServer


@pytest.fixture(scope="module")
def networks() -> Iterator[Networks]:
    with Networks() as made:
        yield made


@pytest.fixture(scope="module")
def server(networks: Networks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WitnessServer]:
    with WitnessServer(tmp_path_factory.mktemp("witness") / "data", networks) as made:
        yield made  # type: ignore[misc]
