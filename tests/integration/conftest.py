"""Fixtures of tests that run the command `clarion` in their process, against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clarion import sync
from clarion.testing.server import ServerProcess
from tests.integration.clarion_command import DEAD, Clarion


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("semantics") / "data") as server:
        yield server


@pytest.fixture
def connection(broker: ServerProcess) -> Iterator[sync.Connection]:
    """To a server without dead messages and policies."""
    with sync.connect(broker.url) as connected:
        connected.command("purge", {"destination": DEAD})
        for pattern, _ in connected.command("policies")["set"]:
            connected.command("remove_policy", {"pattern": pattern})
        yield connected


@pytest.fixture
def clarion(
    broker: ServerProcess, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Clarion:
    monkeypatch.setenv("CLARION_URL", broker.url)
    monkeypatch.setenv("COLUMNS", "80")
    return Clarion(capsysbinary)
