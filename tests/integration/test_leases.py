"""Leases of a real server: granted to one, renewed, fenced by epochs, durable before they are answered (A-10)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clarion
from clarion import limits
from clarion.errors import BadArgument, BadName
from clarion.testing.server import ServerProcess
from tests.integration.helpers import run, until
from tests.integration.topologies import SEGMENT_BYTES, Topology

LONG_MS, SHORT_MS = 60_000, 200
SMALL = {"CLARION_JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES)}


async def acquire(connection: clarion.Connection, name: str, holder: str, ttl_ms: int = LONG_MS) -> dict[str, Any]:
    result: dict[str, Any] = await connection.command(
        "lease_acquire", {"name": name, "holder": holder, "ttl_ms": ttl_ms}
    )
    return result


async def look(connection: clarion.Connection, name: str) -> dict[str, Any]:
    result: dict[str, Any] = await connection.command("lease_look", {"name": name})
    return result


def test_a10_a_lease_has_one_holder_and_an_epoch_that_grows(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection:
            assert await look(connection, name) == {
                "name": name, "held": False, "holder": None, "epoch": 0, "ttl_ms": 0, "expires_in_ms": 0
            }  # fmt: skip
            first = await acquire(connection, name, "one:1")
            assert first["granted"] and first["holder"] == "one:1" and first["expires_in_ms"] == LONG_MS
            refused = await acquire(connection, name, "two")
            assert not refused["granted"] and (refused["holder"], refused["epoch"]) == ("one:1", first["epoch"])
            assert 0 < refused["expires_in_ms"] <= LONG_MS
            renewed = await acquire(connection, name, "one:1", 2 * LONG_MS)
            assert renewed["granted"] and renewed["epoch"] == first["epoch"]
            assert (await look(connection, name))["ttl_ms"] == 2 * LONG_MS
            for holder, epoch in (("two", first["epoch"]), ("one:1", first["epoch"] + 1)):
                wrong = {"name": name, "holder": holder, "epoch": epoch}
                assert await connection.command("lease_release", wrong) == {"released": False}
            mine = {"name": name, "holder": "one:1", "epoch": first["epoch"]}
            assert await connection.command("lease_release", mine) == {"released": True}
            assert await connection.command("lease_release", mine) == {"released": False}
            second = await acquire(connection, name, "two")
            assert second["granted"] and second["epoch"] > first["epoch"]

    run(scenario())


def test_a10_a_lease_that_is_not_renewed_goes_to_another(server: Topology, name: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with clarion.connect(server.url) as connection:
            asked = loop.time()
            first = await acquire(connection, name, "one", SHORT_MS)
            other: dict[str, Any] = {}

            async def is_granted() -> bool:
                other.update(await acquire(connection, name, "two", SHORT_MS))
                return bool(other["granted"])

            await until(is_granted, "the other one gets it")
            assert loop.time() - asked >= SHORT_MS / 1000
            assert other["epoch"] > first["epoch"]

    run(scenario())


def test_a10_arguments_of_leases_are_checked(server: Topology, name: str) -> None:
    async def scenario() -> None:
        usual = {"name": name, "holder": "one", "ttl_ms": LONG_MS}
        wrong: list[dict[str, object]] = [
            {"ttl_ms": limits.LEASE_MS_MIN - 1},
            {"ttl_ms": limits.LEASE_MS_MAX + 1},
            {"ttl_ms": "1 s"},
            {"ttl_ms": None},
            {"holder": ""},
            {"holder": 5},
            {"holder": "x" * 256},
            {"name": 5},
        ]
        async with clarion.connect(server.url) as connection:
            for change in wrong:
                with pytest.raises(BadArgument):
                    await connection.command("lease_acquire", {**usual, **change})
            for bad in ("", "a b", "x" * 256, "a:b"):
                with pytest.raises(BadName):
                    await connection.command("lease_acquire", {**usual, "name": bad})
            with pytest.raises(BadArgument):
                await connection.command("lease_release", {"name": name, "holder": "one"})
            assert not (await look(connection, name))["held"]

    run(scenario())


@pytest.mark.parametrize("point", ["mm.before_lease", "mm.before_leased", "cm.before_reply"])
def test_a10_a_kill_between_acquiring_and_the_answer_gives_it_to_nobody_else(tmp_path: Path, point: str) -> None:
    """The client asks again; whether the first time was durable or not, the answer is the same."""

    async def scenario(server: ServerProcess) -> None:
        async with clarion.connect(server.url) as connection, clarion.connect(server.url) as other:
            before = await acquire(connection, "before", "one")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start, {"CLARION_ARM": f"{point}=kill"})
            asking = asyncio.create_task(acquire(connection, "right", "one"))
            assert await asyncio.to_thread(server.wait) == -signal.SIGKILL
            assert not asking.done()
            await asyncio.to_thread(server.start)
            first = await asking
            assert first["granted"] and first["epoch"] > before["epoch"]
            refused = await acquire(other, "right", "two")
            assert not refused["granted"] and (refused["holder"], refused["epoch"]) == ("one", first["epoch"])
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            held = await look(other, "right")
            assert (held["held"], held["holder"], held["epoch"]) == (True, "one", first["epoch"])
            released = {"name": "right", "holder": "one", "epoch": first["epoch"]}
            assert await connection.command("lease_release", released) == {"released": True}
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            second = await acquire(other, "right", "two")
            assert second["granted"] and second["epoch"] > first["epoch"]

    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        run(scenario(server))


def test_a10_after_a_restart_every_lease_has_all_of_its_time(tmp_path: Path) -> None:
    async def scenario(server: ServerProcess) -> None:
        loop = asyncio.get_running_loop()
        async with clarion.connect(server.url) as connection:
            first = await acquire(connection, "right", "one", 1_000)

            async def is_over() -> bool:
                return not (await look(connection, "right"))["held"]

            await until(is_over, "its time is over")
            await asyncio.to_thread(server.kill)
            started = loop.time()
            await asyncio.to_thread(server.start)
            refused = await acquire(connection, "right", "two", 1_000)
            assert not refused["granted"] and refused["epoch"] == first["epoch"]
            await until(is_over, "its time is over again")
            assert loop.time() - started >= 1.0
            assert (await acquire(connection, "right", "two"))["epoch"] == first["epoch"] + 1

    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        run(scenario(server))


def test_a10_administrators_see_leases(server: Topology, name: str) -> None:
    async def scenario() -> dict[str, Any]:
        async with clarion.connect(server.url) as connection:
            return await acquire(connection, name, "one")

    granted = run(scenario())
    command = [sys.executable, "-m", "clarion", "admin", "leases", "--url", server.url]
    listed = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=60).stdout)
    mine = [one for one in listed if one["name"] == name]
    assert [(one["holder"], one["epoch"], one["held"]) for one in mine] == [("one", granted["epoch"], True)]
    shown = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout
    assert "expires in" in shown and "one" in shown
