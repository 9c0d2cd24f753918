"""`make run`: the whole story, as a user sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest


@pytest.mark.timeout(700)
def test_d11_the_demonstration_loses_nothing_through_a_crash_and_draws_it(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    command = [sys.executable, "-m", "clarion", "demo", "--messages", "500", "--events", "600", "--json"]
    plot = tmp_path / "demo.png"
    done = subprocess.run(
        [*command, "--plot", str(plot)], capture_output=True, env={**clean, "TMPDIR": str(temporary)}, timeout=650
    )
    assert done.returncode == 0 and done.stderr == b"", done
    told = msgspec.json.decode(done.stdout)
    assert told["queue"]["lost"] == told["topic"]["lost"] == 0
    events = told["events"]
    total = 3 * 600 + 30
    assert events["recorded"] == events["delivered"] == events["archived"] == events["archived_ids"] == total
    assert events["counted"] == total
    assert {alert["rule"] for alert in events["alerts"]} == {"disk-full", "link-flaps"}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert not [left.name for left in temporary.iterdir() if left.name.startswith("clarion")]
