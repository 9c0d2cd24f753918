"""A command as a recipient: run for each event, or for each delivery.

    Command(["/usr/local/bin/page", "--quiet"], filter="severity = 'emergency'")

The command finds events on its standard input, each as one line of CloudEvents JSON, and the attributes of the event
(of the first one) in its environment: CLARION_EVENT_ID, _TYPE, _SOURCE, _SEVERITY, _TIME, _CONTENT_TYPE, and
CLARION_EVENT_ATTRIBUTE_<NAME> for each of its own; CLARION_EVENT_COUNT says how many lines there are.

Guarantees
    1. Exit status 0 confirms; any other, a signal, or a command that cannot be started, does not.
    2. After `timeout_s` the process and everything it started in its group is killed, as it is by `close`.
    3. What it prints never fills anything: standard output is discarded, the end of standard error is the reason.

Never through a shell: nothing of an event becomes program text.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from clarion import limits
from clarion.errors import BadArgument, NotDelivered
from clarion.events.recipients.base import Blocking, Progress
from clarion.events.recipients.log_lines import json_line

if TYPE_CHECKING:
    from clarion.events.event import Event

COMPLAINT_BYTES_MAX = 2_000
"""How much of the end of standard error becomes the reason of a failure."""


class Command(Blocking):
    """Runs `command` with `per="event"` for each event, with `per="batch"` for each delivery."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        filter: str = "",
        per: Literal["event", "batch"] = "event",
        timeout_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
        directory: Path | str | None = None,
        batch_events_max: int = limits.EVENT_BATCH_EVENTS_DEFAULT,
    ) -> None:
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            raise BadArgument(argument="command", detail="it is a list of words; a shell is one too: ['sh', '-c', …]")
        if per not in ("event", "batch"):
            raise BadArgument(argument="per", detail=f"{per!r} is neither event nor batch")
        if not timeout_s > 0:
            raise BadArgument(argument="timeout_s", detail=f"{timeout_s} is not more than 0")
        super().__init__(name if name is not None else Path(command[0]).name, filter, batch_events_max)
        self._command = list(command)
        self._per = per
        self._timeout_s = timeout_s
        self._environment = dict(environment or {})
        self._directory = directory
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        """Over `_running`: the other thread kills only what is not yet waited for, so never a stranger's number."""
        self._closing = False

    def start(self) -> None:
        self._closing = False

    def process(self, events: Sequence[Event]) -> None:
        if self._per == "batch":
            self._run(events)
            return
        progress = Progress(events)
        for index, event in enumerate(events):
            if progress.due(index):
                try:
                    self._run([event])
                except NotDelivered as error:
                    progress.failed(index, error)
                else:
                    progress.done(index)
        progress.finish()

    def abort(self) -> None:
        with self._lock:
            self._closing = True
            self._kill()

    def _run(self, events: Sequence[Event]) -> None:
        lines = b"".join(json_line(event) + b"\n" for event in events)
        try:
            with self._lock:
                if self._closing:
                    raise NotDelivered(reason=f"{self.name} is closing")
                self._running = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    cwd=self._directory,
                    env={**os.environ, **_described(events), **self._environment},
                    start_new_session=True,
                )
            process = self._running
        except (OSError, ValueError) as error:
            raise NotDelivered(reason=f"{self._command[0]} cannot be started: {error}") from error
        try:
            complaint, in_time = _talk(process, lines, self._timeout_s)
        finally:
            with self._lock:
                if process.returncode is None and not _has_ended(process):
                    self._kill()
                status = process.wait()
                self._running = None
            for pipe in (process.stdin, process.stderr):
                assert pipe is not None
                with suppress(OSError):  # what it did not read
                    pipe.close()
        if not in_time:
            raise NotDelivered(reason=f"{self.name} was killed after {self._timeout_s} s{complaint}")
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise NotDelivered(reason=f"{self.name} {how}{complaint}")

    def _kill(self) -> None:
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """It has ended; nobody has waited for it, so its number is still its own."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _talk(process: subprocess.Popen[bytes], lines: bytes, timeout_s: float) -> tuple[str, bool]:
    """Write `lines` and read the complaints until it ends: their end, and whether it ended in time.

    Its end is seen by a pidfd, not by the end of its pipes, which whatever it left in the background may hold open.
    """
    assert process.stdin is not None and process.stderr is not None
    deadline = time.monotonic() + timeout_s
    rest = memoryview(lines)
    complaint = b""
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as waiting:
            os.set_blocking(process.stdin.fileno(), False)
            os.set_blocking(process.stderr.fileno(), False)
            waiting.register(ended, selectors.EVENT_READ)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
            waiting.register(process.stderr, selectors.EVENT_READ)
            in_time = True
            while True:
                ready = {key.fileobj for key, _ in waiting.select(max(0.0, deadline - time.monotonic()))}
                if process.stdin in ready:
                    rest = _written(process.stdin, rest)
                    if not rest:
                        waiting.unregister(process.stdin)
                        with suppress(BrokenPipeError):
                            process.stdin.close()
                if process.stderr in ready:
                    more = _read(process.stderr)
                    if not more:
                        waiting.unregister(process.stderr)
                    complaint = (complaint + more)[-COMPLAINT_BYTES_MAX:]
                if ended in ready:
                    break
                if time.monotonic() >= deadline:
                    in_time = False
                    break
            complaint = (complaint + _read(process.stderr))[-COMPLAINT_BYTES_MAX:]
    finally:
        os.close(ended)
    text = " ".join(complaint.decode("utf-8", "replace").split())
    return (f": {text}" if text else ""), in_time


def _written(pipe: IO[bytes], rest: memoryview) -> memoryview:
    """What is left to write. A command that does not want to read decides by its exit status, not by that."""
    try:
        return rest[os.write(pipe.fileno(), rest[: 1 << 16]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]


def _read(pipe: IO[bytes]) -> bytes:
    try:
        return os.read(pipe.fileno(), 1 << 16)
    except BlockingIOError:
        return b""


def _described(events: Sequence[Event]) -> dict[str, str]:
    """The environment of a command; what no environment can hold (a zero character) is left out of it."""
    event = events[0]
    described = {
        "CLARION_EVENT_ID": event.id,
        "CLARION_EVENT_TYPE": event.type,
        "CLARION_EVENT_SOURCE": event.source,
        "CLARION_EVENT_SEVERITY": event.severity.text,
        "CLARION_EVENT_TIME": event.time,
        "CLARION_EVENT_CONTENT_TYPE": event.content_type,
        "CLARION_EVENT_COUNT": str(len(events)),
    }
    for name, value in event.attributes.items():
        word = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper()
        if value is not None and not isinstance(value, bytes):
            described[f"CLARION_EVENT_ATTRIBUTE_{word}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return {name: value for name, value in described.items() if "\0" not in value}
