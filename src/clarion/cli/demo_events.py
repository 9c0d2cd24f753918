"""The second part of `clarion demo`: the events of a host, a crash, and pipelines that go on.

    a server starts, and pipelines on Spark: archive, statistics, alerts
    programs on a host record events; a daemon of that host delivers them to the server
    the server is killed; the programs do not notice; it comes back, and everything arrives
    every event is in the archive once, and counted once; what was wrong has raised alerts

Rule: every step waits for what happened, never for a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import typer

from clarion.cli.demo_pipelines import ALERTS, EVENTS, NAMES, STATISTICS
from clarion.cli.demo_plot import Samples
from clarion.cli.own_server import OwnServer
from clarion.client import connect
from clarion.errors import InternalFault, Timeout

LIMIT_S = 570.0
PROGRAMS = 3
SECONDS = 15.0
"""So long the programs record, if the disk keeps up."""
WARM = 30
"""Events that come first, one by one: Spark is slow at first."""
_QUERIES = {"archive": "archive.archive", "statistics": "statistics.events", "alerts": "alerts.alerts"}


class EventStory:
    """One run. `facts` is what came of it."""

    def __init__(self, events: int, quiet: bool = False) -> None:
        self._events = events
        self._rate = events / SECONDS
        self._quiet = quiet
        self._recorded: dict[int, Counter[str]] = {}
        self._changed = asyncio.Condition()
        self._ended: set[asyncio.Future[None]] = set()
        self._processed = dict.fromkeys(NAMES, 0)
        self._status: dict[str, Any] = {}
        self.delivered = 0
        self.began = 0.0
        self.curves: dict[str, Samples] = {"recorded": [], "delivered": [], **{name: [] for name in NAMES}}
        self.down: tuple[float, float] | None = None
        self.archived: Counter[str] = Counter()
        self.archived_ids = 0
        self.counted: Counter[str] = Counter()
        self.delay_ms: dict[str, float] = {}
        self.alerts: list[dict[str, Any]] = []

    @property
    def recorded(self) -> Counter[str]:
        return sum(self._recorded.values(), Counter())

    def facts(self) -> list[dict[str, Any]]:
        """For each type: how many were recorded, delivered, archived, counted."""
        return [
            {
                "type": name,
                "recorded": count,
                "archived": self.archived[name],
                "counted": self.counted[name],
                "delay_p50_ms": self.delay_ms.get(name),
            }
            for name, count in sorted(self.recorded.items())
        ]

    @property
    def is_right(self) -> bool:
        total = self.recorded
        return total == self.archived == self.counted and self.archived_ids == total.total() == self.delivered

    def alert_moments(self) -> list[tuple[float, str]]:
        """When each rule was broken for the first time."""
        first: dict[str, float] = {}
        for alert in self.alerts:
            at = self.moment(datetime.fromisoformat(alert["since"]).timestamp())
            first[alert["rule"]] = min(at, first.get(alert["rule"], at))
        return [(at, rule) for rule, at in first.items()]

    def moment(self, at: float | None = None) -> float:
        """Seconds since the programs began."""
        return (time.time() if at is None else at) - self.began

    def _sample(self, curve: str, count: int, at: float | None = None) -> None:
        """So many until now; what comes before the programs begin is their begin."""
        if self.began:
            self.curves[curve].append((max(0.0, self.moment(at)), count))

    def _say(self, who: str, what: str) -> None:
        if not self._quiet:
            typer.echo(f"{who:<10}  {what}")

    # --- the story ----------------------------------------------------------------------------------

    async def run(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
        try:
            async with asyncio.timeout(LIMIT_S):
                with TemporaryDirectory(prefix="clarion-demo-") as folder, OwnServer(environment) as server:
                    await self._tell(server, Path(folder), environment)
        except TimeoutError:
            raise Timeout(limit_ms=int(LIMIT_S * 1000), detail="the demonstration did not come to its end") from None

    async def _tell(self, server: OwnServer, folder: Path, environment: dict[str, str]) -> None:
        self._say("server", f"{server.url} (process {server.pid}) is ready")
        async with connect(server.url, name="demo") as connection, connection.session() as session:
            for name in NAMES:  # as the pipelines would: so that nothing is missed before they are there
                async with session.receive(EVENTS, durable=f"pipeline.{name}"):
                    pass
        config = folder / "events.toml"
        config.write_text(f'[events]\n[[events.recipients]]\ntype = "clarion"\nurl = "{server.url}"\n', "utf-8")
        events = folder / "events"
        spark = await self._start(
            "-m", "clarion", "pipeline", "run", "clarion.cli.demo_pipelines:PIPELINE", "--url", server.url, "--json",
            "--checkpoint", str(folder / "pipelines"), "--set", f"folder={folder}", environment=environment,
        )  # fmt: skip
        daemon = await self._start(
            "-m", "clarion", "events", "serve", "--dir", str(events), "--config", str(config), environment=environment
        )
        tasks: list[asyncio.Task[None]] = []
        try:
            await _line(daemon)
            self._say("host", f"(process {daemon.pid}) delivers what its programs record")
            self._say("pipelines", f"(process {spark.pid}) Spark starts: archive, statistics, alerts")
            tasks.append(self._watcher(self._watch_pipelines(spark)))
            await self._record(events, environment, PROGRAMS, WARM, 10.0)
            await self._until(lambda: all(count >= WARM for count in self._processed.values()), tasks)
            self._say("pipelines", f"are at work: each has processed the first {WARM} events")
            delivery = self._watcher(self._watch_delivery(events))
            await self._live(server, events, environment, [*tasks, delivery])
            delivery.cancel()
            await self._end(spark, "the pipelines")
            await self._end(daemon, "the daemon of the host")
            await self._collect(server, folder)
        finally:
            for task in tasks:
                task.cancel()
            for process in (spark, daemon):
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def _live(
        self, server: OwnServer, events: Path, environment: dict[str, str], tasks: list[asyncio.Task[None]]
    ) -> None:
        total = WARM + PROGRAMS * self._events
        self._say(
            "programs", f"{PROGRAMS} of them record {total - WARM:,} events, {self._rate * PROGRAMS:,.0f} a second"
        )
        async with asyncio.TaskGroup() as programs:
            for number in range(PROGRAMS):
                programs.create_task(self._record(events, environment, number, self._events, self._rate))
            await self._until(lambda: self.recorded.total() > total * 0.3, tasks)
            died = self.moment()
            await asyncio.to_thread(server.kill)
            before = self.recorded.total()
            self._say("server", f"killed with SIGKILL after {before:,} recorded events")
            await self._until(lambda: self.recorded.total() > total * 0.5, tasks)
            self._say("programs", f"have recorded {self.recorded.total() - before:,} more: they do not need it")
            await asyncio.to_thread(server.start)
            self.down = (died, self.moment())
            self._say("server", f"back with the same data (process {server.pid}) after {self.down[1] - died:.1f} s")
        self._say("programs", f"have recorded all {total:,} events, and are gone")
        await self._until(lambda: self.delivered >= total, tasks)
        self._say("host", "has every event confirmed by the server")
        await self._until(lambda: all(count >= total for count in self._processed.values()), tasks)
        self._say("pipelines", f"have processed all of them, {self.moment():.0f} s after the first")

    async def _until(self, is_so: Callable[[], bool], tasks: list[asyncio.Task[None]]) -> None:
        """Wait for it; a watcher that fails ends the waiting."""
        async with self._changed:
            while not is_so():
                for task in tasks:
                    if task.done():
                        await task
                        raise InternalFault(detail="a process of the demonstration ended by itself")
                await self._changed.wait()

    def _watcher(self, watching: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose end is noticed by whoever waits."""
        task = asyncio.create_task(watching)
        task.add_done_callback(lambda _task: self._ended.add(asyncio.ensure_future(self._note())))
        return task

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # --- processes ----------------------------------------------------------------------------------

    async def _start(self, *arguments: str, environment: dict[str, str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=environment, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=1 << 20,
        )  # fmt: skip

    async def _record(self, events: Path, environment: dict[str, str], number: int, count: int, rate: float) -> None:
        """One program, until it has recorded everything."""
        process = await self._start(
            "-m", "clarion.cli.demo_host", str(events), str(number), str(count), str(rate), environment=environment
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                said = msgspec.json.decode(line)
                if not self.began and number < PROGRAMS:
                    self.began = said["at"]
                self._recorded[number] = Counter(said["counts"])
                self._sample("recorded", self.recorded.total(), said["at"])
                await self._note()
            if await process.wait():
                raise InternalFault(detail=f"a program of the host ended with status {process.returncode}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _watch_pipelines(self, process: asyncio.subprocess.Process) -> None:
        """Count what each pipeline says that it has processed."""
        assert process.stdout is not None and process.stderr is not None
        async for line in process.stdout:
            self._status = msgspec.json.decode(line)
            rows = {query["name"]: query["rows"] for query in self._status["queries"]}
            for name in NAMES:
                self._processed[name] = rows.get(_QUERIES[name], 0)
                self._sample(name, self._processed[name])
            await self._note()
        if await process.wait():
            said = (await process.stderr.read()).decode("utf-8", "replace").strip()
            raise InternalFault(detail=f"the pipelines ended with status {process.returncode}: {said}")

    async def _watch_delivery(self, events: Path) -> None:
        from clarion.events.shell import look

        while True:
            found = await asyncio.to_thread(look, events)
            self.delivered = sum(one["confirmed"] for one in found["recipients"])
            self._sample("delivered", self.delivered)
            await self._note()
            await asyncio.sleep(0.1)

    async def _end(self, process: asyncio.subprocess.Process, who: str) -> None:
        process.send_signal(signal.SIGTERM)
        status = await process.wait()
        if status:
            raise InternalFault(detail=f"{who} ended with status {status}")

    # --- what came of it ------------------------------------------------------------------------------

    async def _collect(self, server: OwnServer, folder: Path) -> None:
        import pyarrow.dataset as ds

        table = ds.dataset(folder / "archive" / "data", format="parquet").to_table(columns=["id", "type"])
        self.archived = Counter(table["type"].to_pylist())
        self.archived_ids = len(set(table["id"].to_pylist()))
        windows: dict[tuple[str, str], dict[str, Any]] = {}
        async with connect(server.url, name="demo") as connection, connection.session() as session:
            async for message in session.browse(STATISTICS):
                row = msgspec.json.decode(message.body)
                windows[row["window_start"], row["type"]] = row  # the newest of a window counts
            async for message in session.browse(ALERTS):
                self.alerts.append(msgspec.json.decode(message.body))
        for (begin, type_), row in windows.items():
            self.counted[type_] += row["events"]
            if datetime.fromisoformat(begin).timestamp() >= self.began:  # before, Spark was starting
                self.delay_ms[type_] = max(self.delay_ms.get(type_, 0.0), row["delay_p50_ms"])


async def _line(process: asyncio.subprocess.Process) -> str:
    """The first line that a process prints: it is ready then."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    if not line:
        raise InternalFault(detail=f"a process of the demonstration did not start (status {await process.wait()})")
    return line
