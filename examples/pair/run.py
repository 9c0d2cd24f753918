"""A pair of hosts, both on this one: what host a recorded is delivered by host b when a dies.

    python examples/pair/run.py

It runs `clarion events serve` with a.toml and with b.toml (on free ports, in a folder of its own). An event is recorded
on a while the desk that should hear of it is away; a dies; the desk comes back and hears of it from b; a returns, takes
its events back, and does not tell the desk again.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from clarion.events import look

HERE = Path(__file__).resolve().parent
WAIT_S = 60.0
SHELL = "shell"
"""The section in which `clarion events emit` records."""
EXAMPLE_PORTS = ("7771", "7772", "7773")


class Desk(HTTPServer):
    """Who is to be told: it notes who told what, by the id of the event."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Call)
        self.heard: list[str] = []
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Call(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if event["type"] == "pump.stopped" and isinstance(self.server, Desk):
            self.server.heard.append(event["id"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the example says what matters."""


class Host:
    """`clarion events serve` with one of the two settings."""

    def __init__(self, name: str, folder: Path, ports: list[int]) -> None:
        self.folder = folder
        self.directory = folder / name / "events"
        text = (HERE / f"{name}.toml").read_text("utf-8")
        for example, port in zip(EXAMPLE_PORTS, ports, strict=True):
            text = text.replace(example, str(port))
        self._settings = folder / f"{name}.toml"
        self._settings.write_text(text, "utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "clarion", "events", "serve", "--config", str(self._settings)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)
            self._process.wait()
            self._process = None

    def emit(self, kind: str) -> str:
        command = [sys.executable, "-m", "clarion", "events", "emit", "--dir", str(self.directory), kind]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def pair(self) -> dict[str, Any]:
        """How it is with the partner, as `clarion events status` shows it."""
        try:
            return look.status(self.directory).get("pair") or {}
        except Exception:  # it is not there yet
            return {}


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {WAIT_S} s: {what}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run(folder: Path) -> None:
    ports = free_ports(3)
    a, b = Host("a", folder, ports), Host("b", folder, ports)
    (folder / "witness").mkdir()
    desk: Desk | None = None
    try:
        for host in (a, b):
            host.start()
        until(lambda: a.pair().get("bond") == b.pair().get("bond") == "paired", "both are up")
        print("both are up, and nobody is at the desk", flush=True)
        identity = a.emit("pump.stopped")
        until(lambda: has_copies(b, a), "b has a copy")
        print("a recorded an event, and b has a copy", flush=True)
        a.end(signal.SIGKILL)
        until(lambda: b.pair().get("may_act"), "b acts")
        print("a is dead, b acts for it", flush=True)
        desk = Desk(ports[2])
        until(lambda: identity in (desk.heard if desk else ()), "b tells the desk")
        print("the desk heard of it", flush=True)
        a.start()
        until(lambda: a.pair().get("right") == "holding" and b.pair().get("duty") == "idle", "a has its events back")
        until(lambda: not a.pair().get("held_for_partner") and not b.pair().get("held_for_partner"), "both are empty")
        print(f"a is back, and both are empty; the desk heard {len(desk.heard)} time", flush=True)
    finally:
        for host in (a, b):
            host.end()
        if desk is not None:
            desk.close()


def has_copies(b: Host, a: Host) -> bool:
    """b holds everything that a has recorded, also what the command line has just recorded, and what both said about
    the pair meanwhile: a count that grows could be that. b is asked first, for nobody is at the desk: so a only gets
    more, and b never has more than a."""
    held = b.pair().get("held_for_partner")
    try:
        found = look.status(a.directory)["sections"]
    except Exception:  # it is just busy with something else
        return False
    waiting = {section["name"]: section["waiting"] for section in found if section["kind"] != "partner"}
    return SHELL in waiting and sum(waiting.values()) == held


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="clarion-pair-") as folder:
        run(Path(folder))


if __name__ == "__main__":
    main()
