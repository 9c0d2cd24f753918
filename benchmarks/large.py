"""Small messages beside a large one: how long they take, and how fast the body goes with and without them.

    python -m benchmarks.large [--rounds N] [--mib N] [--cold]

Four processes, as a user would have them: a server, a sender of a file, a receiver, and others who have nothing to do
with the body and send small messages to and fro, one after the other. In every round, in turn: others alone (idle),
beside a body that is sent, alone again, beside one that is received; then a body is sent and received with nobody else
about. Ratios are of one round: p99 beside the body to the p99 of that round's idle times. Medians over the rounds are
reported.

The bodies stay until the end, so that the journal grows as it does under a body of many gigabytes. With `--cold` they
leave the system's file cache before they are read, and come from the disk, like one that is larger than memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import clarion
from benchmarks.processes import work_directory
from clarion.testing.server import ServerProcess

MIB = 1 << 20
IDLE_S = 1.0
WAIT_S = 60


class Child:
    """A process that does what it is told by lines, and answers each by a line of JSON."""

    def __init__(self, role: str, url: str) -> None:
        command = [sys.executable, "-m", "benchmarks.large", "--as", role, url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self.tell()  # an empty line: the end
        try:
            self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            self._process.communicate()

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def ask(self, *words: object) -> Any:
        self.tell(*words)
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class Figures:
    """Of all rounds: milliseconds, MiB/s, and ratios."""

    def __init__(self) -> None:
        self._rounds: list[dict[str, float]] = []

    def add(self, row: dict[str, float]) -> None:
        """One round's."""
        self._rounds.append(row)
        print(json.dumps(row), flush=True)

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(row[name] for row in self._rounds), 2) for name in self._rounds[0]}


def uncache(folder: Path) -> None:
    """What the journal has on the disk leaves the system's file cache."""
    for file in folder.rglob("*.segment"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def p(took_ms: list[float], part: float) -> float:
    return round(took_ms[int(len(took_ms) * part)], 3)


def one_round(
    others: Child, sender: Child, receiver: Child, body: Path, number: int, idle_s: float, cold: Path | None
) -> dict[str, float]:
    others.tell("talk")
    time.sleep(idle_s)
    others.ask("took")  # begun, and what the last body left to do is done
    time.sleep(idle_s)
    idle = others.ask("took")
    speeds = {"send_beside": sender.ask("send", f"queue:beside-{number}", body)}
    took = {"sending": others.ask("took")}
    time.sleep(idle_s)
    others.ask("took")
    time.sleep(idle_s)
    idle = sorted(idle + others.ask("took"))
    if cold is not None:
        uncache(cold)
    speeds["receive_beside"] = receiver.ask("receive", f"queue:beside-{number}")
    took["receiving"] = others.ask("took")
    others.ask("quiet")
    speeds["send_alone"] = sender.ask("send", f"queue:alone-{number}", body)
    if cold is not None:
        uncache(cold)
    speeds["receive_alone"] = receiver.ask("receive", f"queue:alone-{number}")
    figures = {"idle_p50": p(idle, 0.5), "idle_p99": p(idle, 0.99)}
    for what, took_ms in took.items():
        figures |= {f"{what}_p50": p(took_ms, 0.5), f"{what}_p99": p(took_ms, 0.99)}
        figures[f"{what}_ratio"] = round(p(took_ms, 0.99) / p(idle, 0.99), 2)
    return figures | speeds


def measure(rounds: int, mib: int, idle_s: float = IDLE_S, *, cold: bool = False) -> Figures:
    seen = Figures()
    with ExitStack() as stack:
        folder = stack.enter_context(work_directory())
        server = stack.enter_context(ServerProcess(folder / "server"))
        others, sender, receiver = (
            stack.enter_context(Child(role, server.url)) for role in ("others", "sender", "receiver")
        )
        body = folder / "body"
        body.write_bytes(os.urandom(mib * MIB))
        os.sync()
        sender.ask("send", "queue:warm", body)
        receiver.ask("receive", "queue:warm")
        for number in range(rounds):
            seen.add(one_round(others, sender, receiver, body, number, idle_s, folder / "server" if cold else None))
    return seen


# --- the other processes ----------------------------------------------------------------------------------


class Role:
    """What a child does."""

    def __init__(self, connection: clarion.Connection) -> None:
        self._connection = connection
        self._took_ms: list[float] = []
        self._talking: asyncio.Task[None] | None = None

    async def took(self) -> list[float]:
        found, self._took_ms = sorted(self._took_ms), []
        return found

    async def talk(self) -> None:
        self._talking = asyncio.create_task(self._talk())

    async def quiet(self) -> int:
        assert self._talking is not None
        self._talking.cancel()
        with suppress(asyncio.CancelledError):
            await self._talking
        return 0

    async def _talk(self) -> None:
        name = "queue:others"
        async with self._connection.session() as session, session.receive(name) as consumer:
            while True:
                began = time.perf_counter()
                await session.send(name, b"small")
                message = await consumer.receive()
                assert message is not None
                self._took_ms.append((time.perf_counter() - began) * 1000)
                await message.confirm()

    async def send(self, name: str, path: str) -> float:
        file = await asyncio.to_thread(open, path, "rb")
        with file:
            async with self._connection.session() as session:
                began = time.perf_counter()
                await session.send_stream(name, file)
                return round(file.tell() / MIB / (time.perf_counter() - began), 1)

    async def receive(self, name: str) -> float:
        """Read and not confirmed: it stays."""
        async with self._connection.session() as session, session.receive(name) as consumer:
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None
            size, began = 0, time.perf_counter()
            async for chunk in message.stream():
                size += len(chunk)
            assert size == message.size
            return round(size / MIB / (time.perf_counter() - began), 1)


async def serve(url: str) -> None:
    async with clarion.connect(url) as connection:
        role = Role(connection)
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            answer = await getattr(role, words[0])(*words[1:])
            if answer is not None:
                print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.large")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--as", dest="role", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.role:
        asyncio.run(serve(wanted.role[1]))
        return
    seen = measure(wanted.rounds, wanted.mib, cold=wanted.cold)
    print(json.dumps({"medians": seen.medians()}), flush=True)


if __name__ == "__main__":
    main()
