"""Threads of the daemons have address space of their own, whatever the environment says (A-03)."""

from __future__ import annotations

import platform
import re
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.events.test_examples import running_example

HEAP_BYTES = 64 << 20
"""What the C library reserves for an arena, at a multiple of it."""
SETTINGS = '[events]\ncapacity = 10\ninitialisation_capacity = 10\n[[events.recipients]]\ntype = "log"\npath = "log"\n'


def heaps(pid: int) -> Iterator[int]:
    """Where arenas of threads are: the part in use, and behind it the one that is only reserved."""
    rows = re.findall(r"^(\w+)-(\w+) (....)", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    places = [(int(first, 16), int(end, 16), str(access)) for first, end, access in rows]
    for (first, end, access), (following, until, reserved) in pairwise(places):
        is_heap = first % HEAP_BYTES == 0 and (end, until) == (following, first + HEAP_BYTES)
        if is_heap and (access, reserved) == ("rw-p", "---p"):
            yield first


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no arenas")
@pytest.mark.parametrize("verb", ["serve", "multiplex"])
def test_a03_threads_of_a_daemon_have_arenas_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    (tmp_path / "events.toml").write_text(SETTINGS)
    command = [sys.executable, "-m", "clarion", "events", verb, "--dir", "host", "--config", "events.toml"]
    if verb == "multiplex":
        command += ["--listen", "127.0.0.1:0"]
    with running_example(command, tmp_path) as daemon:
        daemon.until("ready ")
        assert list(heaps(daemon.process.pid))
        assert daemon.end(signal.SIGTERM) == 0, daemon.said()
