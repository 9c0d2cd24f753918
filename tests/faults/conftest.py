"""What several files of fault tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.pair_harness import Networks


@pytest.fixture(scope="module")
def networks() -> Iterator[Networks]:
    with Networks() as made:
        yield made
