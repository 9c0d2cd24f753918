"""The command line against a real `clarion serve`: every verb as a process, as users run it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

WAIT_S = 60
"""Long enough for any machine: nothing here waits for a time to pass, only for things that happen."""
Done = subprocess.CompletedProcess[bytes]


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")} | more


@dataclass
class Server:
    """A `clarion serve` process."""

    process: subprocess.Popen[str]
    ready: dict[str, str]

    @classmethod
    def start(cls, data: Path, *arguments: str, listen: str = "127.0.0.1:0") -> Server:
        command = [sys.executable, "-m", "clarion", "serve", "--data", str(data), "--listen", listen, *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
        )
        assert process.stdout is not None
        try:
            word, *facts = shlex.split(process.stdout.readline())
            assert word == "ready"
            return cls(process, dict(fact.split("=", 1) for fact in facts))
        except BaseException:
            process.kill()
            process.communicate()
            raise

    @property
    def url(self) -> str:
        return self.ready["url"]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        status = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def run(self, *arguments: str, stdin: bytes = b"", status: int = 0) -> Done:
        """One command; checks its exit status."""
        done = subprocess.run(
            [sys.executable, "-m", "clarion", *arguments],
            input=stdin,
            capture_output=True,
            env=environment(CLARION_URL=self.url),
            timeout=WAIT_S,
        )
        assert done.returncode == status, (done.stdout, done.stderr)
        return done

    def fails(self, status: int, code: str, *arguments: str) -> None:
        """One command that ends with one line of error."""
        done = self.run(*arguments, status=status)
        assert done.stderr.startswith(f"error: {code}".encode()) and done.stderr.count(b"\n") == 1, done.stderr

    def json(self, *arguments: str) -> Any:
        return msgspec.json.decode(self.run(*arguments, "--json").stdout)

    def lines(self, *arguments: str) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.run(*arguments, "--json").stdout.splitlines()]

    def depth(self, name: str) -> int:
        return int(next(found["depth"] for found in self.json("admin", "destinations") if found["name"] == name))

    def popen(self, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "clarion", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment(CLARION_URL=self.url),
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server.start(tmp_path_factory.mktemp("cli") / "data")
    yield started
    assert started.end() == 0


# --- sending and receiving ------------------------------------------------------------------------


def test_send_then_receive_json(server: Server) -> None:
    sent = server.run("send", "round", "hällo", "-p", "region=eu", "-p", "n=5").stdout.decode().strip()
    (message,) = server.lines("receive", "round", "--count", "1", "--timeout", "20")
    assert message["id"] == sent and message["body"] == "hällo"
    assert message["properties"] == {"region": "eu", "n": 5}
    assert (message["sequence"], message["destination"]) == (1, "round")
    assert (message["redelivered"], message["delivery_count"]) == (False, 1)
    assert server.depth("round") == 0


def test_bodies_from_standard_input_and_files_come_back_exactly(server: Server, tmp_path: Path) -> None:
    raw = bytes(range(256))
    (tmp_path / "body").write_bytes(raw)
    server.run("send", "bodies", "-", stdin=raw)
    server.run("send", "bodies", "--file", str(tmp_path / "body"))
    server.run("send", "bodies", "")
    first, second, third = server.lines("receive", "bodies", "--count", "3", "--timeout", "20")
    assert first["body_base64"] == second["body_base64"]
    assert msgspec.convert(first["body_base64"], bytes, strict=False) == raw
    assert third["body"] == ""


def test_plain_receive_prints_bodies_as_they_are(server: Server) -> None:
    server.run("send", "plain", "-", stdin=b"\x00\xff")
    server.run("send", "plain", "text")
    assert server.run("receive", "plain", "--count", "2", "--timeout", "20").stdout == b"\x00\xff\ntext\n"


def test_receive_leaves_what_it_did_not_take(server: Server) -> None:
    server.run("send", "rest", "x", "--count", "2500")
    assert len(server.lines("receive", "rest", "--count", "1234", "--timeout", "20")) == 1234
    assert server.depth("rest") == 2500 - 1234
    left = server.lines("receive", "rest", "--timeout", "1")
    assert [message["sequence"] for message in left] == list(range(1235, 2501))
    assert not any(message["redelivered"] for message in left)


def test_idle_time_is_an_end_and_only_a_count_of_nothing_is_a_failure(server: Server) -> None:
    assert server.run("receive", "empty", "--timeout", "0.2").stdout == b""
    server.fails(1, "nothing came", "receive", "empty", "--timeout", "0.2", "--count", "3")
    server.run("send", "empty", "x")
    assert server.run("receive", "empty", "--timeout", "0.2", "--count", "3").stdout == b"x\n"


def test_receive_writes_files(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    server.run("send", "files", "body", "--count", "3")
    said = server.lines("receive", "files", "--out", str(out), "--count", "3", "--timeout", "20")
    assert sorted(out.iterdir()) == [Path(one["file"]) for one in said]
    assert {path.read_bytes() for path in out.iterdir()} == {b"body"}
    assert server.depth("files") == 0


def test_a08_a_message_that_could_not_be_written_is_not_confirmed(server: Server, tmp_path: Path) -> None:
    server.run("send", "unwritten", "body")
    out = tmp_path / "out"
    out.mkdir()
    sent = server.lines("browse", "unwritten")[0]
    (out / f"{sent['sequence']:012d}-{sent['id']}").mkdir()  # in the way of the file
    server.run("receive", "unwritten", "--out", str(out), "--count", "1", status=1)
    assert server.depth("unwritten") == 1


def test_b04_a_durable_subscription_keeps_messages(server: Server) -> None:
    server.run("receive", "news", "--topic", "--durable", "archive", "--timeout", "0")
    server.run("send", "news", "one")
    server.run("send", "topic:news", "two")
    server.fails(1, "CLN-210", "receive", "news", "--durable", "archive", "--shared", "--timeout", "1")
    said = server.lines("receive", "news", "--durable", "archive", "--timeout", "1")
    assert [message["body"] for message in said] == ["one", "two"]
    server.fails(1, "CLN-202", "send", "queue:news", "x")
    server.run("admin", "unsubscribe", "news", "archive")
    server.fails(1, "CLN-206", "admin", "unsubscribe", "news", "archive")


def test_b04_a_shared_subscription_has_several_consumers(server: Server) -> None:
    options = ("receive", "work", "--topic", "--durable", "crew", "--shared", "--count", "1", "--timeout", "20")
    server.run("receive", "work", "--topic", "--durable", "crew", "--shared", "--timeout", "0")
    crew = [server.popen(*options) for _ in range(2)]
    try:
        server.run("send", "work", "x", "--count", "2")
        assert [process.communicate(timeout=WAIT_S)[0] for process in crew] == [b"x\n", b"x\n"]
    finally:
        for process in crew:
            process.kill()
            process.communicate()
    assert server.depth("work") == 0


def test_b04_browse_takes_nothing(server: Server) -> None:
    server.run("send", "looked", "body", "--count", "5")
    assert [one["sequence"] for one in server.lines("browse", "looked", "--from", "3")] == [3, 4, 5]
    assert len(server.lines("browse", "looked", "--count", "2")) == 2
    table = server.run("browse", "looked").stdout.decode()
    assert table.count("body") == 6 and all(len(line) <= 80 for line in table.splitlines())
    assert server.depth("looked") == 5
    server.fails(1, "CLN-205", "browse", "nowhere")


def test_b13_a_full_destination_is_status_75(server: Server, tmp_path: Path) -> None:
    server.run("admin", "create", "small", "--quota", "1 MiB")
    (tmp_path / "body").write_bytes(bytes(100_000))
    server.fails(75, "CLN-203", "send", "small", "--file", str(tmp_path / "body"), "--count", "30", "--timeout", "0.5")
    assert 0 < server.depth("small") < 30
    server.run("send", "another", "is not blocked")


# --- administration -------------------------------------------------------------------------------


def test_b17_status(server: Server) -> None:
    server.run("send", "oldest", "x")
    status = server.json("admin", "status")
    assert status["depth"] > 0 and status["published"] > 0 and status["space"]["bytes_total"] > 0
    assert status["oldest"]["held_by"]
    for text in (server.run("admin", "status").stdout.decode(), server.run("admin", "destinations").stdout.decode()):
        assert all(len(line) <= 100 for line in text.splitlines())
    assert "queue:oldest" in text


def test_b17_delete_purge_create_drop(server: Server) -> None:
    server.run("send", "holes", "x", "--count", "10")
    assert server.json("admin", "delete", "holes", "2", "4-6", "99") == {"removed": 4}
    assert [one["sequence"] for one in server.lines("browse", "holes")] == [1, 3, 7, 8, 9, 10]
    assert server.run("admin", "purge", "holes").stdout == b"removed 6 messages from holes\n"
    assert server.depth("holes") == 0
    assert server.run("admin", "drop", "holes").stdout == b"dropped queue:holes\n"
    server.fails(1, "CLN-205", "admin", "purge", "holes")
    assert server.json("admin", "create", "made", "--topic")["kind"] == "topic"
    server.fails(1, "CLN-210", "admin", "create", "made")


# --- ends -----------------------------------------------------------------------------------------


def test_nobody_reads_the_output(server: Server) -> None:
    server.run("send", "unread", "x", "--count", "10")
    reading, writing = os.pipe()
    os.close(reading)
    for verb in (("receive", "unread", "--count", "10"), ("browse", "unread", "--json")):
        process = server.popen(*verb, stdout=writing)
        assert process.communicate(timeout=WAIT_S)[1] == b""
        assert process.returncode == 141
    os.close(writing)
    assert server.depth("unread") == 10


def test_interrupt_is_clean_and_what_was_printed_is_confirmed(server: Server) -> None:
    server.run("send", "interrupted", "x")
    process = server.popen("receive", "interrupted")
    assert process.stdout is not None
    assert process.stdout.readline() == b"x\n"
    server.run("send", "interrupted", "y")
    assert process.stdout.readline() == b"y\n"  # so the first one is confirmed by now
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, rest, said) == (130, b"", b"")
    assert [one["body"] for one in server.lines("receive", "interrupted", "--timeout", "0.5")] in ([], ["y"])


def test_a_second_server_on_the_same_address_or_data_is_refused(server: Server, tmp_path: Path) -> None:
    address = server.url.removeprefix("clarion://")
    for data, listen, code in (
        (str(tmp_path), address, b"CLN-402"),
        (server.ready["data"], "127.0.0.1:0", b"CLN-303"),
    ):
        done = server.run("serve", "--data", data, "--listen", listen, status=1)
        assert b"error: " + code in done.stderr and b"Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a05_messages_outlive_their_server(tmp_path: Path, how: signal.Signals) -> None:
    first = Server.start(tmp_path / "data with space")
    first.run("send", "kept", "x", "--count", "100")
    assert first.end(how) == (0 if how is not signal.SIGKILL else -signal.SIGKILL)
    second = Server.start(tmp_path / "data with space", listen=first.url.removeprefix("clarion://"))
    try:
        assert len(second.lines("receive", "kept", "--timeout", "1")) == 100
    finally:
        second.end()


def test_b02_receive_goes_on_when_its_server_comes_back(tmp_path: Path) -> None:
    first = Server.start(tmp_path / "data")
    first.run("send", "jobs", "before")
    process = first.popen("receive", "jobs", "--count", "2")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"before\n"
        first.end(signal.SIGKILL)
        second = Server.start(tmp_path / "data", listen=first.url.removeprefix("clarion://"))
        second.run("send", "jobs", "after")
        said, notes = process.communicate(timeout=WAIT_S)
        assert said.endswith(b"after\n") and process.returncode == 0
        assert notes.count(b"clarion: ") == 2
        assert second.end() == 0
    finally:
        process.kill()
        process.communicate()


# --- demo and bench -------------------------------------------------------------------------------


def assert_nothing_left(directory: Path) -> None:
    assert list(directory.iterdir()) == []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            assert os.fsencode(directory) not in (process / "cmdline").read_bytes(), process


def run_alone(directory: Path, *arguments: str) -> Done:
    command = [sys.executable, "-m", "clarion", *arguments]
    done = subprocess.run(command, capture_output=True, env=environment(TMPDIR=str(directory)), timeout=WAIT_S)
    assert done.returncode == 0 and done.stderr == b"", done
    return done


def test_demo_loses_and_doubles_nothing(tmp_path: Path) -> None:
    told = msgspec.json.decode(run_alone(tmp_path, "demo", "--no-pipelines", "--messages", "3000", "--json").stdout)
    for name in ("queue", "topic"):
        facts = told[name]
        assert facts["sent"] == facts["confirmed_to_the_producer"] == facts["stored"] == facts["received"] == 3000
        assert facts["lost"] == facts["delivered_twice"] == 0
    assert_nothing_left(tmp_path)


def test_demo_ends_with_a_table(tmp_path: Path) -> None:
    told = run_alone(tmp_path, "demo", "--no-pipelines", "--messages", "500").stdout.decode()
    assert told.count("killed with SIGKILL") == 2
    assert told.endswith("Nothing was lost, nothing was doubled.\n")
    assert all(len(line) <= 80 for line in told.splitlines())


def test_bench_with_a_server_of_its_own(tmp_path: Path) -> None:
    result = msgspec.json.decode(run_alone(tmp_path, "bench", "--messages", "3000", "--json").stdout)
    assert (result["messages"], result["missing"], result["doubled"], result["own_server"]) == (3000, 0, 0, True)
    assert result["messages_per_s"] > 0 and 0 < result["latency_us_p50"] <= result["latency_us_p99"]
    assert_nothing_left(tmp_path)


def test_bench_against_a_running_server_removes_its_queues(server: Server) -> None:
    options = ("--messages", "2001", "--size", "8", "--producers", "2", "--destinations", "3", "--properties", "2")
    result = server.json("bench", *options)
    assert (result["messages"], result["missing"], result["doubled"], result["own_server"]) == (2001, 0, 0, False)
    assert not [found for found in server.json("admin", "destinations") if found["name"].startswith("bench")]
