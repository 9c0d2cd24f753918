"""The examples, run and killed as a user's programs are, and judged by what arrives (A-02, A-04, A-08, A-10)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import clarion
from clarion.events.look import status
from clarion.testing.server import ServerProcess
from tests.integration.helpers import IDLE_S, WAIT_S, drain, run

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = {"CLARION_JOURNAL_SEGMENT_BYTES": str(8 << 20)}


class Example:
    """A running example, and what it says on stdout."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._log = folder / "example.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0
            )
        self._pending = b""

    def until(self, beginning: str) -> str:
        """The next line, which must begin so."""
        assert self.process.stdout is not None
        deadline_s = time.monotonic() + WAIT_S
        while b"\n" not in self._pending:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0 and select.select([self.process.stdout], [], [], left_s)[0], self.said()
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, self.said()
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        assert line.decode().startswith(beginning), line
        return line.decode()

    def end(self, number: int) -> int:
        """Its exit code, after a signal."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")[-2000:]


@contextmanager
def example(name: str, *arguments: str, folder: Path) -> Iterator[Example]:
    with running_example([sys.executable, str(EXAMPLES / name), *arguments], folder) as started:
        yield started


@contextmanager
def running_example(command: Sequence[str], folder: Path) -> Iterator[Example]:
    started = Example(command, folder)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
        for pipe in (started.process.stdin, started.process.stdout):
            assert pipe is not None
            pipe.close()


def get(url: str) -> tuple[int, str]:
    """Status and text; status 0 if the service hung up, as it does when a handler fails."""
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return 0, ""


def until(look: Callable[[], Any], what: str) -> Any:
    """What `look` finds as soon as it finds something."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, f"not within {WAIT_S} s: {what}"
        select.select([], [], [], 0.02)
    return found


def logged(path: Path, count: int) -> list[dict[str, Any]]:
    """The events in a log file when there are so many, by type."""

    def look() -> list[dict[str, Any]]:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines] if len(lines) >= count else []

    return sorted(until(look, f"{count} events in {path.name}"), key=lambda event: str(event["type"]))


def received(url: str, destination: str) -> list[tuple[str, Any]]:
    """Type and data of all messages of a destination, in its order."""

    async def scenario() -> list[tuple[str, Any]]:
        async with clarion.connect(url) as connection, connection.session() as session:
            messages = await drain(session, destination)
            return [(message.type or "", json.loads(message.body or b"null")) for message in messages]

    return run(scenario())


def subscribe(url: str, destination: str, durable: str) -> None:
    async def scenario() -> None:
        async with (
            clarion.connect(url) as connection,
            connection.session() as session,
            session.receive(destination, durable=durable) as consumer,
        ):
            await consumer.receive(timeout=0)

    run(scenario())


def test_a02_errors_of_a_web_service_are_events(tmp_path: Path) -> None:
    log = tmp_path / "shop.jsonl"
    with example("web_service.py", "--port", "0", "--log", str(log), folder=tmp_path) as service:
        url = service.until("ready ").removeprefix("ready ")
        assert get(f"{url}/pay?euro=20") == (200, "paid\n")
        status, text = get(f"{url}/pay?euro=2000")
        assert status == 402
        assert get(f"{url}/share?among=0")[0] == 0
        assert get(f"{url}/recount")[0] == 202
        failed, declined, uncaught = logged(log, 3)
        assert declined["type"] == "payment.declined" and declined["data"]["euro"] == 2000
        assert declined["id"] in text
        assert failed["type"] == "log" and failed["source"] == "shop"
        assert "ZeroDivisionError" in json.dumps(failed["data"])
        assert uncaught["type"] == "process.exception" and uncaught["data"]["thread"] == "recount"
        assert service.end(signal.SIGTERM) == 0, service.said()


def test_a08_errors_of_a_killed_service_arrive_when_both_are_back(tmp_path: Path) -> None:
    log = tmp_path / "shop.jsonl"
    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        subscribe(server.url, "glob:events.*", "desk")
        server.kill()
        arguments = ("--port", "0", "--log", str(log), "--server", server.url)
        with example("web_service.py", *arguments, folder=tmp_path) as service:
            url = service.until("ready ").removeprefix("ready ")
            assert get(f"{url}/share?among=0")[0] == 0
            assert get(f"{url}/pay?euro=2000")[0] == 402
            before = {event["id"] for event in logged(log, 2)}
            service.end(signal.SIGKILL)
        server.start()

        async def scenario() -> None:
            async with (
                clarion.connect(server.url) as connection,
                connection.session() as session,
                session.receive("glob:events.*", durable="desk") as consumer,
            ):
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None
                # The warning is not for the server: only what is an error or worse.
                assert message.type == "log" and message.id in before
                await message.confirm()
                assert await consumer.receive(timeout=IDLE_S) is None

        with example("web_service.py", *arguments, folder=tmp_path) as service:
            service.until("ready ")
            run(scenario())
            assert service.end(signal.SIGTERM) == 0, service.said()
    assert {event["id"] for event in logged(log, 2)} == before


def test_a04_a_boot_script_speaks_before_there_is_a_network(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        server.kill()
        with example("boot_script.py", "--server", server.url, folder=tmp_path) as boot:
            boot.until("waiting for the network")
            boot.end(signal.SIGKILL)  # the power fails on the way up
        with example("boot_script.py", "--server", server.url, folder=tmp_path) as boot:
            boot.until("waiting for the network")
            server.start()
            boot.until("all delivered")
            assert boot.process.wait(WAIT_S) == 0, boot.said()
        events = [kind for kind, _ in received(server.url, "boot") if kind != "boot.root.read-only"]
        assert events == ["boot.started", "boot.started", "boot.network.up", "boot.finished"]


def test_a12_the_settings_of_the_page_for_operators_are_read_and_served(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "operating" / "events.md").read_text("utf-8")
    settings = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "events.toml").write_text(settings, "utf-8")
    here = ["--dir", str(tmp_path / "host")]
    clarion_events = [sys.executable, "-m", "clarion", "events"]
    with running_example([*clarion_events, "serve", *here, "--config", "events.toml"], tmp_path) as daemon:
        daemon.until("ready ")
        emitted = [*clarion_events, "emit", "disk.full", "--severity", "error", *here]
        subprocess.run(emitted, check=True, capture_output=True, timeout=WAIT_S)

        def owed() -> bool:
            found = {one["name"]: one["owed"] for one in status(tmp_path / "host")["recipients"]}
            return found == {"clarion": 1, "on-call": 0}  # nobody is called for an error

        until(owed, "the event is owed to the server, which does not exist")
        assert status(tmp_path / "host")["name"] == "web-1"
        assert daemon.end(signal.SIGTERM) == 0, daemon.said()
