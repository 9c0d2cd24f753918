"""Programs that block are interrupted wherever they are, and end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.topologies import Topology

TIMES = 200


@pytest.mark.parametrize("seed", [1, 2])
def test_b21_an_interruption_at_any_moment_is_not_lost_and_nothing_hangs(server: Topology, seed: int) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.integration.interrupted_process"]
    done = subprocess.run([*command, server.url, str(TIMES), str(seed)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{TIMES}\n", done.stderr
