"""One message at a time: how long from `send` to its confirmation, beside the limits of the same moment.

    python -m benchmarks.latency                       # the ratio, median of 60 rounds
    python -m benchmarks.latency --stages --counts     # where the time goes; calls and system calls per message
    python -m benchmarks.latency --beside OTHER/src    # another version of the code, in the same rounds

Theory of operation
    Every round is one short burst of each: `pwrite` + `fdatasync` of 4 KiB, a loopback echo, the bare path, Clarion.
    Bursts take some 20 ms and follow each other, so that a slow moment of the machine slows all of them. A round's
    ratio is Clarion's p50 divided by the sum of sync and echo; what is printed is the median over the rounds. Every
    contestant has its servers and its client for the whole run; between its bursts it does nothing.

    Stages are measured in a run of their own (`latency_marks`), because marks cost time; so are calls
    (`sys.setprofile`) and system calls (`strace -c`), which need no quiet machine to be compared.

Reading it
    The echo is the part that varies most: 24 us where the scheduler puts both ends on one core, 70 where it wakes an
    idle one each time. The bare path, which has no semantics, shows in the same rounds how near one can come.

    Most of what is above the bare path are wake-ups: who wakes a thread on a core that sleeps pays 20 to 60 us on a
    virtual machine, and so does who is woken. Tried in vain, each measured beside the code as it is: all hot modules
    compiled by Cython (14 % slower: more memory to fetch after every sleep), huge pages (nothing), a server on one
    core (3 %), somebody who spins so that no core sleeps (syncs then end with the clock's tick, after 4 ms; with a
    yield in the spin nothing is gained), io_uring instead of the writer thread (its workers are threads too). What
    helped: a Python built with profile-guided optimisation (half the time in Python), and, where chosen, lone commits
    in the loop's own thread (docs/adr/0015). Idle cores that look out for work before they sleep (haltpoll) make
    everything 10 to 30 % faster, syncs too, so the ratio stays (docs/operating/running.md).

    A sync that follows the last one at once is quicker than one after a pause: 74 us at once, 100 after 200 us, 148
    after 400, where this was measured. The limit is measured at once; a message has its pause.

    Two servers of the same code differed by 6 % in one run (`--beside`), so less than that in a run says nothing. One
    reason is where the scheduler leaves their threads: on a machine of two cores whose disk interrupts only one of
    them, a sync took some 60 us longer on the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from benchmarks import latency_marks
from benchmarks.contestant import percentile
from benchmarks.processes import HOST, Server, Worker, free_ports, work_directory
from benchmarks.worker import Gate

ROUNDS = 60
BURST = 40
COUNTED = 200
"""Messages over which calls are counted."""
BODY_BYTES = 100
SYNC_BYTES = 4096
SYNC_FILE_BYTES = 16 << 20
ECHO_BYTES = 64
RUN_S_MAX = 600
SYSTEM_CALLS_MIN = 0.05
"""Rarer ones are not of a message."""
RATIO_MAX = 2.5
"""What is promised: p50 of send to confirmation, in units of one sync and one loopback echo."""

# --- workers: each measures one burst whenever it is told to go ------------------------------------------------------


def _serve_bursts(gate: Gate, burst: Callable[[], list[int]]) -> dict[str, Any]:
    """Until the parent closes the pipe."""
    while True:
        gate.wait()
        gate.say(json.dumps({"samples": burst()}))


def sync_bursts(gate: Gate, *, directory: str, count: int) -> dict[str, Any]:
    path = Path(directory) / "sync"
    block = os.urandom(SYNC_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    for offset in range(0, SYNC_FILE_BYTES, SYNC_BYTES):
        os.pwrite(descriptor, block, offset)
    os.fsync(descriptor)
    at = 0

    def burst() -> list[int]:
        nonlocal at
        samples = []
        for _ in range(count):
            at = (at + SYNC_BYTES) % SYNC_FILE_BYTES
            before = time.perf_counter_ns()
            os.pwrite(descriptor, block, at)
            os.fdatasync(descriptor)
            samples.append(time.perf_counter_ns() - before)
        return samples

    return _serve_bursts(gate, burst)


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Pings(asyncio.Protocol):
    """One ping after the other, when asked."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def burst(self, count: int) -> list[int]:
        self._left, self._samples = count, list[int]()
        self._done = asyncio.get_running_loop().create_future()
        self._ping()
        await self._done
        return self._samples

    def _ping(self) -> None:
        self._missing = ECHO_BYTES
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(bytes(ECHO_BYTES))

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing > 0:
            return
        self._samples.append(time.perf_counter_ns() - self._sent_ns)
        self._left -= 1
        if self._left:
            self._ping()
        else:
            self._done.set_result(None)


def _run(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    import uvloop

    return uvloop.run(work)  # type: ignore[arg-type]


def echo_bursts(gate: Gate, *, port: int, count: int) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        _, pings = await asyncio.get_running_loop().create_connection(_Pings, HOST, port)
        while True:
            gate.wait()
            gate.say(json.dumps({"samples": await pings.burst(count)}))

    return _run(work())


def bare_bursts(gate: Gate, *, port: int, count: int) -> dict[str, Any]:
    from benchmarks import bare

    link = bare._connect(port, bare.PRODUCER)
    confirmations = bare._Confirmations(link)
    body = bytes(BODY_BYTES)

    def burst() -> list[int]:
        samples = []
        for _ in range(count):
            before = time.perf_counter_ns()
            bare._send(link, body, 1)
            confirmations.wait_until(confirmations.messages + 1)
            samples.append(time.perf_counter_ns() - before)
        return samples

    return _serve_bursts(gate, burst)


def clarion_bursts(gate: Gate, *, source: str, port: int, count: int, marks: str = "") -> dict[str, Any]:
    """`source` comes before the installed package, so that two versions can be measured side by side."""
    sys.path.insert(0, source)
    import clarion

    recorder = latency_marks.install(latency_marks.CLIENT) if marks == "stages" else None

    async def work() -> dict[str, Any]:
        body = os.urandom(BODY_BYTES)
        async with clarion.connect(f"clarion://{HOST}:{port}") as connection, connection.session() as session:
            for _ in range(count):
                await session.send("latency", body)
            while True:
                gate.wait()
                if marks == "calls":
                    latency_marks.count_calls()
                samples, began = [], []
                for _ in range(count):
                    before = time.perf_counter_ns()
                    await session.send("latency", body)
                    samples.append(time.perf_counter_ns() - before)
                    began.append(before)
                answer: dict[str, Any] = {"samples": samples, "began": began}
                if recorder is not None:
                    answer["marks"] = recorder.take()
                if marks == "calls":
                    answer["calls"] = latency_marks.counted_calls()
                gate.say(json.dumps(answer))

    return _run(work())


# --- a run -----------------------------------------------------------------------------------------------------------


class Contestants:
    """Servers and burst workers of one run."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._workers: dict[str, Worker] = {}
        self.servers: dict[str, Server] = {}

    def server(self, name: str, command: list[str], port: int, environment: dict[str, str] | None = None) -> None:
        server = self.servers[name] = Server(command, self._directory / f"{name}.log", environment)
        self._stack.callback(server.stop)
        server.wait_for_port(port)

    def worker(self, name: str, target: str, **arguments: Any) -> None:
        log = self._directory / f"worker-{len(self._workers)}.log"
        worker = Worker(Path(sys.executable), f"benchmarks.latency:{target}", arguments, log, RUN_S_MAX)
        self._stack.callback(worker.stop)
        self._workers[name] = worker

    def clarion(self, name: str, source: Path, burst: int, marks: str = "") -> Path:
        """A server and a client of one version of the code. Returns the file that an instrumented server leaves."""
        port = free_ports(1)[0]
        data, report = self._directory / f"data-{name}", self._directory / f"marks-{name}.json"
        serve = ["serve", "--data", str(data), "--listen", f"{HOST}:{port}"]
        command = [sys.executable, "-m", "clarion", *serve]
        if marks:
            command = [sys.executable, "-m", "benchmarks.latency_marks", marks, str(report), *serve]
        self.server(name, command, port, {"PYTHONPATH": str(source)})
        self.worker(name, "clarion_bursts", source=str(source), port=port, count=burst, marks=marks)
        return report

    def burst(self, name: str) -> dict[str, Any]:
        worker = self._workers[name]
        worker.until_ready()
        worker.go()
        return worker.answer()

    def p50_us(self, name: str) -> float:
        return percentile(self.burst(name)["samples"], 0.50) / 1000


def _limits(run: Contestants, directory: Path, burst: int) -> None:
    echo, bare = free_ports(2)
    run.server("echo", [sys.executable, "-m", "benchmarks.latency", "--echo-server", str(echo)], echo)
    run.server(
        "bare", [sys.executable, "-m", "benchmarks.bare_server", str(bare), str(directory / "bare-journal")], bare
    )
    run.worker("sync", "sync_bursts", directory=str(directory), count=burst)
    run.worker("echo", "echo_bursts", port=echo, count=burst)
    run.worker("bare", "bare_bursts", port=bare, count=burst)


def measure(sources: dict[str, Path], rounds: int, burst: int) -> dict[str, list[float]]:
    """p50 in microseconds of each burst, by contestant: sync, echo, bare, and the given versions of Clarion."""
    with work_directory() as directory, ExitStack() as stack:
        run = Contestants(directory, stack)
        _limits(run, directory, burst)
        for name, source in sources.items():
            run.clarion(name, source, burst)
        names = ["sync", "echo", "bare", *sources]
        seen: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds + 2):
            # The order changes, so that nobody always follows the same one.
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                p50 = run.p50_us(name)
                if turn >= 2:  # the first ones warm up
                    seen[name].append(p50)
        return seen


def measure_stages(sources: dict[str, Path], rounds: int, burst: int) -> dict[str, list[latency_marks.Stage]]:
    """The stages of each version, in the order of a message's way; their bursts take turns."""
    with work_directory() as directory:
        reports, answers = {}, {name: list[dict[str, Any]]() for name in sources}
        with ExitStack() as stack:
            run = Contestants(directory, stack)
            for name, source in sources.items():
                reports[name] = run.clarion(name, source, burst, marks="stages")
            for _ in range(rounds):
                for name in sources:
                    answers[name].append(run.burst(name))
        return {name: latency_marks.stages(answers[name], json.loads(reports[name].read_text())) for name in sources}


def measure_calls(source: Path, burst: int) -> dict[str, float]:
    """Python and C functions called per message, by process."""
    with work_directory() as directory:
        with ExitStack() as stack:
            run = Contestants(directory, stack)
            report = run.clarion("calls", source, burst, marks="calls")
            run.burst("calls")
            client = run.burst("calls")["calls"]
        served = json.loads(report.read_text())
        return {
            "server, Python": served["python"] / served["messages"],
            "server, C": served["c"] / served["messages"],
            "client, Python": client["python"] / burst,
            "client, C": client["c"] / burst,
        }


def measure_system_calls(source: Path, burst: int) -> dict[str, float]:
    """System calls of the server per message, as `strace -c` counts them; none where it cannot attach."""

    with work_directory() as directory:
        trace = directory / "strace"
        with ExitStack() as stack:
            run = Contestants(directory, stack)
            run.clarion("traced", source, burst)
            run.burst("traced")
            command = ["strace", "-f", "-c", "-o", str(trace), "-p", str(run.servers["traced"]._process.pid)]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
                assert strace.stderr is not None
                attached = "attached" in strace.stderr.readline()
                run.burst("traced")
                strace.send_signal(signal.SIGINT)
                strace.stderr.read()
        if not attached:
            return {}
        rows = [line.split() for line in trace.read_text().splitlines()]
        calls = {row[-1]: int(row[3]) / burst for row in rows if len(row) >= 5 and row[3].isdigit()}
        return {name: count for name, count in calls.items() if name != "total" and count >= SYSTEM_CALLS_MIN}


def report(seen: dict[str, list[float]], versions: list[str]) -> str:
    """The medians, and the ratios: to the limits, and between two versions."""
    lines = [
        f"{name:14} p50 {statistics.median(p50s):7.1f} us   lowest burst {min(p50s):7.1f} us"
        for name, p50s in seen.items()
    ]
    floor = [sync + echo for sync, echo in zip(seen["sync"], seen["echo"], strict=True)]
    for name in ["bare", *versions]:
        ratios = sorted(p50 / limit for p50, limit in zip(seen[name], floor, strict=True))
        low, middle, high = (percentile(ratios, part) for part in (0.25, 0.5, 0.75))
        promise = f", promised {RATIO_MAX}" if name in versions else ""
        lines.append(f"{name:14} / (sync + echo): {middle:.2f}   (quartiles {low:.2f} to {high:.2f}{promise})")
    if len(versions) > 1:
        pairs = sorted(a / b for a, b in zip(seen[versions[0]], seen[versions[1]], strict=True))
        lines.append(f"{versions[0]} / {versions[1]}: {percentile(pairs, 0.5):.3f}")
    return "\n".join(lines)


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--burst", type=int, default=BURST, help="messages in a burst")
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parent.parent / "src")
    parser.add_argument("--beside", type=Path, help="the src directory of another version")
    parser.add_argument("--stages", action="store_true", help="where the time goes")
    parser.add_argument("--counts", action="store_true", help="calls and system calls per message")
    parser.add_argument("--echo-server", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.echo_server is not None:
        return _serve_echo(arguments.echo_server)
    sources = {"clarion": arguments.source}
    if arguments.beside is not None:
        sources["beside"] = arguments.beside
    if arguments.stages:
        print(latency_marks.table(measure_stages(sources, arguments.rounds, arguments.burst)))
    if arguments.counts:
        for name, source in sources.items():
            print(f"per message of {name}")
            counts = measure_calls(source, COUNTED)
            if shutil.which("strace"):
                counts |= measure_system_calls(source, COUNTED)
            for what, count in counts.items():
                print(f"  {what:34} {count:7.2f}")
    print(report(measure(sources, arguments.rounds, arguments.burst), list(sources)))
    return 0


def _serve_echo(port: int) -> int:
    import uvloop

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Echo, HOST, port)
        await server.serve_forever()

    uvloop.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
