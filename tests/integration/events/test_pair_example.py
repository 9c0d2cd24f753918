"""The example of a pair of hosts, run as a user runs it (A-10)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pair" / "run.py"
RUN_S_MAX = 240


def test_a10_a_pair_of_hosts_delivers_what_a_dead_one_recorded(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines() == [
        "both are up, and nobody is at the desk",
        "a recorded an event, and b has a copy",
        "a is dead, b acts for it",
        "the desk heard of it",
        "a is back, and both are empty; the desk heard 1 time",
    ]
