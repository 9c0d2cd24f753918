"""Marks on the way of one message, for `benchmarks.latency`: the product's own code, with a stamp at some of its doors.

    python -m benchmarks.latency_marks stages|calls REPORT serve …      # `clarion serve`, instrumented

A mark is a method and the moment of its entry or exit. Stamps are `perf_counter_ns`, which all processes of one
machine share, so client and server fall on one line. A mark costs about 0.4 us: stages say where time goes, not how
much there is of it. With one message at a time each mark is passed once for each message; messages for which that
is not so (a heartbeat came between) are left out. Sending is stamped before it is done: the other side may have it
before the call returns.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contestant import percentile


class Mark(NamedTuple):
    """Where a stamp is made, and what the stage is called that ends there."""

    stage: str
    module: str
    method: str
    at_exit: bool = False
    when: Callable[[Any], bool] | None = None
    """Only when this holds of `self`, looked at before the call."""


SERVER = (
    Mark("client to server", "clarion.nodes.connection", "Connection.data_received"),
    Mark("client manager", "clarion.bus.loopback", "LoopbackBus.publish"),
    Mark("bus", "clarion.nodes.message_manager.host", "MessageManager._receive"),
    Mark("message manager", "clarion.journal.journal", "Journal._flush"),
    Mark("seal, and to the writer or in place", "clarion.journal.writer", "Writer.run"),
    Mark("writer, before the disk", "clarion.journal.file_store", "FileStore.write"),
    Mark("write", "clarion.journal.file_store", "FileStore.write", at_exit=True),
    Mark("between write and sync", "clarion.journal.file_store", "FileStore.sync"),
    Mark("sync", "clarion.journal.file_store", "FileStore.sync", at_exit=True),
    Mark("after the disk; loop wakes, or is awake", "clarion.journal.journal", "Journal._written"),
    Mark("effects and reply", "clarion.nodes.connection", "Connection.flush", when=lambda self: self.engine.outgoing),
)
CLIENT = (
    Mark("client, sending", "clarion.client.link", "Link.flush", when=lambda self: self.native.outgoing),
    Mark("server to client", "clarion.client.link", "Link.data_received"),
)
LAST = "client, receiving"


class Recorder:
    """All stamps of one process, as (stage, nanoseconds)."""

    def __init__(self) -> None:
        self._stamps: list[tuple[str, int]] = []

    def wrap(self, mark: Mark) -> None:
        owner: Any = importlib.import_module(mark.module)
        *path, name = mark.method.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, name, self._wrapped(getattr(owner, name), mark))

    def _wrapped(self, method: Callable[..., Any], mark: Mark) -> Callable[..., Any]:
        stamps, now, stage, when = self._stamps, time.perf_counter_ns, mark.stage, mark.when

        @functools.wraps(method)
        def at_entry(self: Any, *arguments: Any, **named: Any) -> Any:
            if when is None or when(self):
                stamps.append((stage, now()))
            return method(self, *arguments, **named)

        @functools.wraps(method)
        def at_exit(self: Any, *arguments: Any, **named: Any) -> Any:
            wanted = when is None or when(self)
            result = method(self, *arguments, **named)
            if wanted:
                stamps.append((stage, now()))
            return result

        return at_exit if mark.at_exit else at_entry

    def take(self) -> list[tuple[str, int]]:
        taken = self._stamps.copy()
        self._stamps.clear()
        return taken


def install(marks: Sequence[Mark]) -> Recorder:
    """Put the marks in. Before the objects are made, because bound methods are kept."""
    recorder = Recorder()
    for mark in marks:
        recorder.wrap(mark)
    return recorder


class Stage(NamedTuple):
    name: str
    p25_us: float
    p50_us: float


DISK = ("write", "between write and sync", "sync")


def stages(answers: list[dict[str, Any]], served: dict[str, Any]) -> list[Stage]:
    """The time of each stage, over the messages that passed every mark in its order."""
    order = [CLIENT[0].stage, *(mark.stage for mark in SERVER), CLIENT[1].stage]
    stamps = sorted(
        ((at, stage) for answer in [*answers, served] for stage, at in answer["marks"]), key=lambda stamp: stamp[0]
    )
    durations: dict[str, list[float]] = {stage: [] for stage in [*order, LAST]}
    at = 0
    for answer in answers:
        for began, took in zip(answer["began"], answer["samples"], strict=True):
            while at < len(stamps) and stamps[at][0] < began:
                at += 1
            seen = []
            while at < len(stamps) and stamps[at][0] < began + took:
                seen.append(stamps[at])
                at += 1
            way = _way(seen, order)
            if way is not None:
                for stage, start, end in zip([*order, LAST], [began, *way], [*way, began + took], strict=True):
                    durations[stage].append((end - start) / 1000)
    if not durations[LAST]:
        raise SystemExit("no message passed all marks: has the code moved?")
    messages = list(zip(*durations.values(), strict=True))
    disk = [list(durations).index(stage) for stage in DISK]
    durations["all"] = [sum(times) for times in messages]
    durations["all but the disk"] = [sum(times) - sum(times[index] for index in disk) for times in messages]
    return [Stage(name, percentile(times, 0.25), percentile(times, 0.5)) for name, times in durations.items()]


def table(seen: dict[str, list[Stage]]) -> str:
    """Stages as rows, versions as columns."""
    head = f"{'stage, us':36}" + "".join(f"{name + ' p25':>14}{'p50':>7}" for name in seen)
    rows = (
        f"{row[0].name:36}" + "".join(f"{stage.p25_us:14.1f}{stage.p50_us:7.1f}" for stage in row)
        for row in zip(*seen.values(), strict=True)
    )
    return "\n".join([head, *rows])


def _way(seen: list[tuple[int, str]], order: list[str]) -> list[int] | None:
    """When each mark of `order` was passed: the first time after the one before it."""
    way: list[int] = []
    for at, stage in seen:
        if len(way) < len(order) and stage == order[len(way)]:
            way.append(at)
    return way if len(way) == len(order) else None


# --- calls -----------------------------------------------------------------------------------------------------------

_calls = {"python": 0, "c": 0}


def _count(_frame: object, event: str, _argument: object) -> None:
    if event == "call":
        _calls["python"] += 1
    elif event == "c_call":
        _calls["c"] += 1


def count_calls() -> None:
    """From now on, in this thread and in those that start."""
    _calls.update(python=0, c=0)
    threading.setprofile(_count)
    sys.setprofile(_count)


def counted_calls() -> dict[str, int]:
    sys.setprofile(None)
    return dict(_calls)


def _serve(what: str, report: Path, arguments: list[str]) -> None:
    from clarion.cli.main import main

    answer: dict[str, Any] = {}
    recorder: Recorder | None = None
    messages = 0
    if what == "stages":
        recorder = install(SERVER)
    else:
        count_calls()
        from clarion.nodes.connection import Connection

        method = Connection.data_received

        def received(self: Connection, data: bytes) -> None:
            nonlocal messages
            if messages == 0 and self.sessions:
                _calls.update(python=0, c=0)
            messages += bool(self.sessions)
            answer.update(_calls, messages=messages)
            method(self, data)

        Connection.data_received = received  # type: ignore[method-assign]
    try:
        sys.argv = ["clarion", *arguments]
        main()
    finally:
        sys.setprofile(None)
        if recorder is not None:
            answer["marks"] = recorder.take()
        report.write_text(json.dumps(answer))


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
