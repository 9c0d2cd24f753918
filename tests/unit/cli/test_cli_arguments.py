"""The command line without a server: help, usage, one-line errors, exit statuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = "clarion://127.0.0.1:1"
HEAVY = ("numpy", "rich", "uvloop", "asyncio", "msgspec", "pydantic", "pyarrow", "zenoh", "clarion.client")
VERBS = ("serve", "node", "send", "receive", "browse", "dmq", "admin", "pipeline", "bench", "demo")
GROUPS = ("admin", "dmq", "events", "pipeline")


def clarion(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run the command as users do."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    done = subprocess.run(
        [sys.executable, "-m", "clarion", *arguments], input=stdin, capture_output=True, env=environment, timeout=60
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def assert_one_line(done: subprocess.CompletedProcess[str], status: int, text: str) -> None:
    assert done.returncode == status, done
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert text in done.stderr
    assert not done.stdout


def test_help_names_every_verb() -> None:
    done = clarion("--help")
    assert done.returncode == 0
    assert all(f"  {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    done = clarion(verb, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: clarion {verb}"), done


@pytest.mark.parametrize("group", [[], *([name] for name in GROUPS), ["events", "recipients"], ["events", "dead"]])
def test_every_verb_is_told_of_in_a_line(group: list[str]) -> None:
    """Whole, where a terminal has 80 columns."""
    found = clarion(*group, "--help").stdout.partition("Commands:\n")[2].splitlines()
    assert found and not [line for line in found if line.endswith("...") or not line.endswith(".")]


def test_without_arguments_help_and_status_2() -> None:
    done = clarion()
    assert done.returncode == 2 and "Commands:" in done.stdout + done.stderr


def test_version() -> None:
    assert clarion("--version").stdout.startswith("clarion 0.")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom clarion.cli.main import main\n"
        "try:\n    main(['--help'])\nfinally:\n    sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not set(done.stderr.split()) & set(HEAVY)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["send"], "'DEST'"),
        (["send", "jobs"], "BODY, --file F and -"),
        (["send", "jobs", "body", "--file", "x"], "BODY, --file F and -"),
        (["send", "jobs", "body", "-p", "novalue"], "NAME=VALUE"),
        (["send", "jobs", "body", "--count", "0"], "--count"),
        (["send", "jobs", "body", "--count", "many"], "--count"),
        (["send", "queue:jobs", "body", "--topic"], "is a queue"),
        (["send", "two words", "body"], "CLN-201"),
        (["send", "heap:jobs", "body"], "CLN-201"),
        (["send", "jobs", "body", "--url", "http://x"], "CLN-502"),
        (["receive", "jobs", "--shared"], "--durable"),
        (["receive", "jobs", "--timeout", "-1"], "--timeout"),
        (["admin", "delete", "jobs"], "SEQ"),
        (["admin", "delete", "jobs", "9-3"], "9-3"),
        (["admin", "delete", "jobs", "0"], "count from 1"),
        (["admin", "delete", "jobs", "x"], "'x'"),
        (["admin", "create", "jobs", "--quota", "lots"], "--quota"),
        (["admin", "nothing"], "No such command"),
        (["node", "xx", "--config", "x"], "'cm', 'mm'"),
        (["node", "cm"], "--config"),
        (["bench", "--size", "1"], "--size"),
        (["serve", "--nothing"], "--nothing"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], text: str) -> None:
    assert_one_line(clarion(*arguments), 2, text)


@pytest.mark.parametrize(
    "arguments", [["send", "jobs", "body"], ["browse", "jobs"], ["admin", "status"], ["receive", "jobs"]]
)
def test_no_server_is_status_69(arguments: list[str]) -> None:
    assert_one_line(clarion(*arguments, "--url", NOBODY), 69, "CLN-500")


def test_the_address_may_come_before_the_verb_and_its_password_is_not_shown() -> None:
    done = clarion("--url", "clarion://me:secret@127.0.0.1:1", "admin", "status")
    assert_one_line(done, 69, "clarion://me@127.0.0.1:1")
    assert "secret" not in done.stderr


def test_a_file_that_is_not_there_is_status_1(tmp_path: Path) -> None:
    assert_one_line(clarion("send", "jobs", "--file", str(tmp_path / "none")), 1, "No such file")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "0.0.0.0:0"], "CLN-404"),
        (["--listen", "nowhere"], "CLN-401"),
        (["--config", "/nonexistent.toml"], "CLN-401"),
    ],
)
def test_a_server_that_may_not_start_says_why(arguments: list[str], text: str, tmp_path: Path) -> None:
    assert_one_line(clarion("serve", "--data", str(tmp_path), *arguments), 1, text)


def test_a_node_on_the_loopback_bus_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'[node]\ndata = "{tmp_path}"\n')
    done = clarion("node", "cm", "--config", str(config))
    assert done.returncode == 1 and done.stderr.startswith("error: CLN-40"), done
