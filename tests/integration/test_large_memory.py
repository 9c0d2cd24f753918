"""Bodies from process to process, up to 20 GiB: nobody grows, and small messages pass them by (B-12)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clarion
from tests.integration.helpers import WAIT_S, run
from tests.integration.large_bodies import BODY, is_free
from tests.integration.large_process import MIB, Expected, Growth
from tests.integration.topologies import Single, Split, Topology, started

GROWN_MIB_MAX = 50
IDLE_MESSAGES = 1_000
"""Before and after: how long small messages take when there is no large one."""
IDLE_MESSAGES_LONG = 5_000
"""The same for bodies of gigabytes: a p99 of half a second says little of one of minutes."""
DISK_EXTRA_BYTES = 1 << 30
"""Beside a body: the journal's spare and reserved segments, and what other tests write meanwhile."""


def worker(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.integration.large_process", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def result_of(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    try:
        printed, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(printed)
    return found


class Others:
    """A process that has nothing to do with the body: how long its messages take."""

    def __init__(self, url: str, name: str) -> None:
        command = [sys.executable, "-m", "tests.integration.large_process", "others", url, f"queue:{name}-others"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def took(self, messages: int = 0) -> list[float]:
        """Milliseconds since the last call, sorted; of so many messages at least."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"%d\n" % messages)
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate(timeout=WAIT_S)
        assert self._process.returncode == 0


def told_of(took_ms: list[float], idle_ms: list[float]) -> str:
    p50, p99 = took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100]
    idle = idle_ms[len(idle_ms) * 99 // 100]
    return f"{len(took_ms)} messages of others, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {p99 / idle:.1f} x idle"


def through(server: Topology, name: str, size: int, seconds: float, idle: int = IDLE_MESSAGES) -> None:
    """A body from a process to another; nobody grows, and small messages pass it by."""
    others = Others(server.url, name)
    others.took(100)  # begun
    idle_ms = others.took(idle)
    grown = {f"server {process.data.name}": Growth(process.pid) for process in server.processes}
    sent = result_of(worker("send", server.url, f"queue:{name}", str(size)), seconds)
    sending_ms = others.took(1)
    received = result_of(worker("receive", server.url, f"queue:{name}"), seconds)
    receiving_ms = others.took(1)
    idle_ms = sorted(idle_ms + others.took(idle))
    others.close()
    assert sent["bytes"] == received["bytes"] == size
    assert received["is_equal"], "every byte is the one that was sent"
    assert sent["wire_bytes"] == received["wire_bytes"] == size, "every byte went over the wire once"
    peaks = {who: growth.mib for who, growth in grown.items()}
    peaks |= {"sender": sent["grown_mib"], "receiver": received["grown_mib"]}
    print(f"\n{size // MIB} MiB through {type(server).__name__}: grown by MiB {peaks}")
    print(f"  idle: {told_of(idle_ms, idle_ms)}")
    for what, seen, took_ms in (("sending", sent, sending_ms), ("receiving", received, receiving_ms)):
        rate = size / MIB / seen["seconds"]
        print(f"  {what}: {seen['seconds']} s, {rate:.0f} MiB/s; on the same connection {seen['small_messages']} small "
              f"messages, p99 {seen['small_p99_ms']} ms; {told_of(took_ms, idle_ms)}")  # fmt: skip
    assert max(peaks.values()) < GROWN_MIB_MAX, peaks
    assert sent["small_messages"] > 5 and received["small_messages"] > 5, "small messages pass between fragments"


@pytest.mark.parametrize("piece", [1_000, 240 * 1024, 3 * MIB])
def test_b12_a_wrong_byte_would_be_seen(piece: int) -> None:
    def compared(body: bytes) -> Expected:
        expected = Expected()
        for at in range(0, len(body), piece):
            expected.take(body[at : at + piece])
        return expected

    seen = compared(BODY)
    assert (seen.size, seen.is_equal) == (len(BODY), True)
    for at in (0, 7, 8, MIB - 1, MIB + 7, len(BODY) - 1):
        assert not compared(BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :]).is_equal


def test_b12_a_large_body_passes_every_process_in_little_memory(server: Topology, name: str) -> None:
    if isinstance(server, Split):
        # The bus has pools of shared memory, 16 MiB for each direction, which fill with the first traffic, and stay.
        for verb, *size in (("send", str(40 * MIB)), ("receive",)):
            result_of(worker(verb, server.url, f"queue:{name}", *size), WAIT_S * 3)
    through(server, name, 64 * MIB, WAIT_S * 3)
    run(_freed(server, name))


async def _freed(server: Topology, name: str) -> None:
    async with clarion.connect(server.url) as connection:
        await is_free(connection, name)


@pytest.mark.timeout(900)
def test_b12_two_gibibytes(tmp_path: Path) -> None:
    _through_own_server(tmp_path, 2 << 30, 400)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_b12_twenty_gibibytes(tmp_path: Path) -> None:
    """About as much as the memory of a large machine."""
    _through_own_server(tmp_path, 20 << 30, 1700)


def _through_own_server(tmp_path: Path, size: int, seconds: float) -> None:
    needed, free = size + DISK_EXTRA_BYTES, shutil.disk_usage(tmp_path).free
    if free < needed:
        pytest.skip(f"{needed / 1e9:.1f} GB of disk are needed in {tmp_path}, {free / 1e9:.1f} are free")
    try:
        with started(Single(tmp_path, {"CLARION_JOURNAL_SEGMENT_BYTES": "64MiB"})) as server:
            through(server, "large", size, seconds, IDLE_MESSAGES_LONG)
            server.check_alive()
            server.stop()
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)  # pytest would keep it, and that of the last runs
