"""`clarion events …` with and without a process that delivers: tables, JSON, errors in one line (A-07, A-09)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clarion.cli import main as cli
from clarion.events import RetryPolicy
from clarion.events.control import ask
from tests.integration.events.systems import Keeper, Systems, delivered, delivering, recipient_status, until


class Shell:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self._capsys = capsys
        self.directory = directory

    def run(self, *arguments: str, status: int = 0) -> str:
        """What it printed; its errors if it is to fail."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["events", *arguments, "--dir", str(self.directory)])
        printed = self._capsys.readouterr()
        assert (ended.value.code or 0) == status, printed
        if status:
            assert not printed.out and printed.err.startswith("error: ") and printed.err.count("\n") == 1, printed
            return printed.err
        assert not printed.err
        return printed.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], systems: Systems, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(capsys, systems.path)


# --- without a process that delivers ----------------------------------------------------------------------


def test_a02_emit_needs_nobody_and_status_shows_what_waits(shell: Shell, systems: Systems) -> None:
    first = shell.run("emit", "disk.full", '{"free": 0}', "--source", "volume/7", "--severity", "error").strip()
    second = shell.json("emit", "note", "just a text", "-a", "rack=4", "-a", "shelf=b")["id"]
    status = shell.json("status")
    (section,) = status["sections"]
    assert (section["name"], section["waiting"], status["state"], status["pid"]) == ("shell", 2, "not delivering", None)
    table = shell.run("status")
    assert "shell" in table and "nobody" in table and "clarion events serve" in table
    keeper = Keeper("keeper")
    system = systems.open(keeper)
    delivered(system)
    assert keeper.ids == [first, second]
    disk, note = keeper.events
    assert (disk.type, disk.source, disk.severity.text, disk.data) == ("disk.full", "volume/7", "error", {"free": 0})
    assert (note.data, note.source.endswith("/shell"), note.attributes["shelf"]) == ("just a text", True, "b")
    third = shell.run("emit", "again").strip()
    until(lambda: keeper.ids == [first, second, third], "what is emitted now comes too")


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay-report",),
        ("pause",),
        ("ready",),
        ("takeover",),
        ("dead", "list"),
        ("dead", "resend"),
        ("dead", "purge", "--all"),
        ("recipients", "remove", "x"),
    ],
)
def test_a07_what_needs_a_process_that_delivers_says_so(shell: Shell, arguments: tuple[str, ...]) -> None:
    shell.run("emit", "a")
    said = shell.run(*arguments, status=1)
    assert "CLN-610" in said and "clarion events serve" in said and "Errno" not in said


def test_a02_a_directory_that_is_none(shell: Shell) -> None:
    assert "no event system" in shell.run("status", status=1)
    assert not shell.directory.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("emit", "bad type"), "CLN-6"),
        (("emit", "a", "--severity", "odd"), "odd"),
        (("emit", "a", "-a", "nothing"), "nothing"),
        (("emit", "a", "x" * 20_000), "CLN-"),
    ],
)
def test_a02_an_event_that_cannot_be_is_refused(shell: Shell, arguments: tuple[str, ...], text: str) -> None:
    shell.run("emit", "a")
    printed = shell.run(*arguments, status=1 if "nothing" not in arguments else 2)
    assert text in printed


# --- with one ---------------------------------------------------------------------------------------------


def test_a07_status_and_recipients_as_table_and_json(shell: Shell, systems: Systems) -> None:
    dead, alive = Keeper("dead-one"), Keeper("alive-one", "severity_level >= 40")
    dead.closed = True
    system = systems.open(dead, alive)
    delivering(system)
    for level in ("info", "error"):
        system.emit("a", severity=level)
    until(lambda: recipient_status(system, "alive-one")["confirmed"] == 1, "delivered")
    until(lambda: recipient_status(system, "dead-one")["error"], "failed")
    found = {one["name"]: one for one in shell.json("recipients")}
    assert (found["dead-one"]["owed"], found["alive-one"]["owed"]) == (2, 0)
    assert "RuntimeError: dead-one is closed" in found["dead-one"]["error"]
    status = shell.json("status")
    assert status["state"] == "ready" and {one["name"] for one in status["recipients"]} == set(found)
    for table in (shell.run("recipients"), shell.run("status")):
        assert "dead-one" in table and "severity_level >= 40" in table and "is closed" in table
    assert "2" in shell.run("recipients", "remove", "dead-one", status=1)
    assert "was owed 2 events" in shell.run("recipients", "remove", "dead-one", "--force")
    assert [one["name"] for one in shell.json("recipients")] == ["alive-one"]
    assert "CLN-6" in shell.run("recipients", "remove", "dead-one", status=1)


def test_a04_pause_and_ready(shell: Shell, systems: Systems) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper)
    delivering(system)
    assert shell.run("pause").strip() == "initialising"
    identity = system.emit("a")
    until(lambda: recipient_status(system, "keeper")["owed"] == 1, "owed")
    assert not keeper.events and shell.json("status")["state"] == "initialising"
    assert shell.run("ready").strip() == "ready"
    until(lambda: keeper.ids == [identity], "delivered")
    assert "partner" in shell.run("takeover", status=1)


def test_a09_the_report_of_a_replay(shell: Shell, systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper, ready=False)
    for _ in range(3):
        system.emit("boot")
    system.ready()
    for _ in range(4):
        system.emit("run")
    until(lambda: keeper.tried, "tried")
    system.close()
    keeper.closed = False
    system = systems.open(keeper)
    delivered(system)
    until(lambda: shell.json("replay-report")["finished_ms"], "finished")
    report = shell.json("replay-report")
    assert report["found"] == {"initialisation": 3, "incomplete": 4, "partner": 0}
    counts = report["recipients"]["keeper"]
    assert counts["owed"] == counts["confirmed"] == {"initialisation": 3, "incomplete": 4, "partner": 0}
    table = shell.run("replay-report")
    assert "keeper" in table and "incompletely delivered" in table and "7" in table


def test_a07_dead_events(shell: Shell, systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper, retry=RetryPolicy(first_ms=5, max_ms=10, give_up_attempts=2))
    ids = [system.emit("a", source=f"s{number}") for number in range(3)]
    until(lambda: system.is_delivering and len(ask(system.path, "dead")) == 3, "given up")
    dead = shell.json("dead", "list")
    assert sorted(one["id"] for one in dead) == sorted(ids)
    table = shell.run("dead", "list")
    assert all(identity in table for identity in ids) and "failed 2 times" in table
    assert "--all" in shell.run("dead", "purge", status=2)
    assert "CLN-6" in shell.run("dead", "purge", "4711", status=1)
    assert shell.run("dead", "purge", str(dead[0]["number"])).strip() == "1 events"
    keeper.closed = False
    assert shell.run("dead", "resend", str(dead[1]["number"])).strip() == "1 events"
    until(lambda: keeper.ids == [dead[1]["id"]], "sent again")
    assert shell.run("dead", "resend").strip() == "1 events"
    until(lambda: len(keeper.ids) == 2, "sent again")
    until(lambda: not shell.json("dead", "list"), "forgotten")
    assert shell.run("dead", "purge", "--all").strip() == "0 events"
