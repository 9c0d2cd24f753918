"""`clarion bench`: how fast is a server, here, with messages like mine? Checks what it measures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli import show
from clarion.cli.options import URL_VARIABLE, Json

if TYPE_CHECKING:
    from clarion.cli.bench_worker import Task

LATENCY_MESSAGES_MAX = 1_000


def bench(
    messages: Annotated[int, typer.Option("--messages", metavar="N", min=1, help="Messages in all.")] = 200_000,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", min=8, max=1 << 20, help="Bytes of a body.")] = 100,
    producers: Annotated[int, typer.Option("--producers", metavar="N", min=1, max=64, help="Processes that send.")] = 1,
    destinations: Annotated[
        int, typer.Option("--destinations", metavar="N", min=1, max=1_000, help="Queues to spread the messages over.")
    ] = 1,
    properties: Annotated[
        int, typer.Option("--properties", metavar="N", min=0, max=256, help="Properties of each message.")
    ] = 0,
    url: Annotated[
        str | None,
        typer.Option("--url", envvar=URL_VARIABLE, metavar="URL", help="A running server; else a temporary one."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure messages per second and latency of a server.

    Counts messages that were published, confirmed, consumed and acknowledged. Starts a consumer process and producer
    processes, checks that every message came exactly once, and removes its queues. Latency is that of single
    messages, each sent when the one before is confirmed.
    """
    from clarion.cli.bench_worker import Task
    from clarion.cli.own_server import OwnServer

    with ExitStack() as stack:
        is_own = url is None
        where = url if url is not None else stack.enter_context(OwnServer()).url
        names = [f"bench.{os.getpid()}.{number}" for number in range(destinations)]
        task = Task("consume", where, names, messages, size, properties=properties)
        stack.callback(_drop, where, names)
        result = _throughput(task, producers)
        result |= _latency(task)
        left = sum(found["depth"] for found in _ask(where, "destinations") if found["name"] in names)
    _check(result, messages, left)
    if json:
        show.json({**result, "size": size, "producers": producers, "destinations": destinations, "own_server": is_own})
        return
    show.table(
        ("measured", ">value", ""),
        [
            ("messages, each checked", messages, f"of {size:,} bytes, {properties} properties"),
            ("through all four stages", round(result["messages_per_s"]), "messages/s"),
            ("published and confirmed", round(result["published_per_s"]), "messages/s"),
            ("latency, median", round(result["latency_us_p50"]), "µs, sent to received"),
            ("latency, 99 of 100", round(result["latency_us_p99"]), "µs, sent to received"),
        ],
        title=f"{producers} producer(s), 1 consumer, {destinations} queue(s), "
        + ("a temporary server" if is_own else where.rpartition("@")[2]),
    )


def _throughput(task: Task, producers: int) -> dict[str, Any]:
    from msgspec.structs import replace

    shares = [task.messages // producers + (number < task.messages % producers) for number in range(producers)]
    firsts = [sum(shares[:number]) for number in range(producers)]
    tasks = [
        replace(task, role="produce", messages=share, first=first) for share, first in zip(shares, firsts, strict=True)
    ]
    with show.progress("measuring throughput", task.messages) as advance:
        consumed, produced = _run(task, tasks, advance)
    started = min(one["started_ns"] for one in produced)
    confirmed = max(one["ended_ns"] for one in produced)
    return {
        "messages": consumed["consumed"],
        "missing": consumed["missing"],
        "doubled": consumed["doubled"],
        "messages_per_s": task.messages * 1e9 / max(1, max(consumed["ended_ns"], confirmed) - started),
        "published_per_s": task.messages * 1e9 / max(1, confirmed - started),
    }


def _latency(task: Task) -> dict[str, Any]:
    from msgspec.structs import replace

    task = replace(task, messages=min(task.messages, LATENCY_MESSAGES_MAX), latency=True)
    with show.progress("measuring latency", task.messages) as advance:
        consumed, _ = _run(task, [replace(task, role="produce")], advance)
    return {
        "latency_messages": consumed["consumed"],
        "latency_missing": task.messages - consumed["consumed"],
        "latency_us_p50": consumed["p50_us"],
        "latency_us_p99": consumed["p99_us"],
    }


def _run(consumer: Task, producers: list[Task], advance: Callable[[int], None]) -> tuple[dict[str, Any], list[Any]]:
    """One consumer and producers as processes; their results."""
    with ExitStack() as stack:
        consuming = stack.enter_context(Worker(consumer))
        producing = [stack.enter_context(Worker(task)) for task in producers]
        for worker in (consuming, *producing):
            worker.hear()
        for worker in producing:
            worker.go()
        seen = 0
        while "ended_ns" not in (said := consuming.hear()):
            advance(said["count"] - seen)
            seen = said["count"]
        # A consumer that has too little waited long enough: only producers that ended have something to say.
        is_short = said["consumed"] < consumer.messages
        results = [worker.hear() for worker in producing if not is_short or worker.ended]
        return said, results or [{"started_ns": 0, "ended_ns": said["ended_ns"]}]


class Worker:
    """One process of the measurement; ended on leaving."""

    def __init__(self, task: Task) -> None:
        import msgspec

        self._process = subprocess.Popen(
            [sys.executable, "-m", "clarion.cli.bench_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._tell(msgspec.json.encode(task))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def go(self) -> None:
        self._tell(b"go")

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def hear(self) -> dict[str, Any]:
        """What it says next. Raises the error that it died of."""
        import msgspec

        from clarion.errors import InternalFault, from_code

        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise InternalFault(detail=f"a process of the measurement ended with status {self._process.wait()}")
        said: dict[str, Any] = msgspec.json.decode(line)
        if "code" in said:
            raise from_code(said["code"], said["facts"])
        return said


def _check(result: dict[str, Any], messages: int, left: int) -> None:
    from clarion.errors import InternalFault

    wrong = {name: result[name] for name in ("missing", "doubled", "latency_missing") if result[name]}
    if left:
        wrong["left in the queues"] = left
    if wrong or result["messages"] != messages:
        said = ", ".join(f"{count} {name}" for name, count in wrong.items())
        raise InternalFault(detail=f"{result['messages']} of {messages} messages came, {said}")


def _ask(url: str, verb: str, **arguments: object) -> Any:
    from clarion.cli.admin import request

    return request(url, verb, **arguments)


def _drop(url: str, names: list[str]) -> None:
    from clarion.errors import ClarionError

    for name in names:
        try:
            _ask(url, "drop", destination=name)
        except ClarionError:  # the measurement tells what went wrong; this only tidies up
            return
