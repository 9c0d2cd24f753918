"""Never mute: no memory, no descriptor and no byte on the disk, all at once, and every event is recorded (A-03)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.small_disk import fill, mounted

EVENTS = 10_000
DISK_BYTES = 80 << 20
RUN_S_MAX = 900


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, on a file: with durability "power" its syncs are real ones."""
    with mounted(tmp_path, DISK_BYTES) as point:
        yield point


def starve(
    disk: Path,
    durability: str,
    count: int,
    *,
    before: Callable[[], object] = lambda: None,
    way: str = "section",
    log: Path | None = None,
) -> dict[str, Any]:
    """What a process says that recorded `count` events while it had nothing. `before` is called when it is ready."""
    command = [sys.executable, "-m", "tests.faults.events_memory_child", str(disk), durability, str(count), way]
    environment = {**os.environ, "CLARION_TEST_LOG": str(log)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            before()
            answer, _ = child.communicate("\n", timeout=RUN_S_MAX)
        except BaseException:
            child.kill()
            raise
    assert child.returncode == 0
    result: dict[str, Any] = json.loads(answer)
    return result


def check(result: dict[str, Any], count: int) -> None:
    """All of them, in order and byte for byte."""
    assert result["failed"] == 0, result
    assert result["good"] == count
    assert result["lost"] == [] and result["next"] == count + 1
    assert result["rounds"] > 0 and result["alive"]  # somebody did take what was free, until the end
    used_up = result["ballast"] - result["left"]
    assert used_up <= count * result["ballast"] // EVENTS, f"{used_up} units for {count} events: it would not last"


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.timeout(RUN_S_MAX + 60)
@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("way", ["section", "process", "library"])
def test_a03_ten_thousand_events_are_recorded_without_memory_descriptors_and_disk_space(
    disk: Path, tmp_path: Path, durability: str, way: str
) -> None:
    check(starve(disk, durability, EVENTS, before=partial(fill, disk), way=way, log=tmp_path / "log"), EVENTS)


@pytest.mark.root
@pytest.mark.parametrize(("way", "durability"), [("process", "power"), ("library", "process")])
def test_a03_events_are_recorded_without_memory_descriptors_and_disk_space(
    disk: Path, tmp_path: Path, durability: str, way: str
) -> None:
    check(starve(disk, durability, 150, before=partial(fill, disk), way=way, log=tmp_path / "log"), 150)


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a03_events_are_recorded_without_memory(tmp_path: Path, durability: str) -> None:
    check(starve(tmp_path, durability, 150), 150)
