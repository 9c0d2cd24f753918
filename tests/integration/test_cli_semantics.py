"""The command line for dead messages, policies, prepared transactions and slow consumers, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clarion import sync
from clarion.cli import dmq
from clarion.cli.main import main
from clarion.errors import RequestError, UnknownVerb
from clarion.testing.server import ServerProcess

WAIT_S = 20.0
DEAD = "queue:_DMQ"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("semantics") / "data") as server:
        yield server


@pytest.fixture
def connection(broker: ServerProcess) -> Iterator[sync.Connection]:
    """To a server without dead messages and policies."""
    with sync.connect(broker.url) as connected:
        connected.command("purge", {"destination": DEAD})
        for pattern, _ in connected.command("policies")["set"]:
            connected.command("remove_policy", {"pattern": pattern})
        yield connected


class Clarion:
    """The command `clarion`, run in this process: the same code, without the start of an interpreter."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture
        self.error = ""
        """What the last command said on stderr."""

    def run(self, *arguments: str, status: int = 0) -> str:
        """What it printed; checks its exit status."""
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = self._capture.readouterr()
        self.error = said.err.decode()
        assert ended.value.code == status, (said.out, said.err)
        return said.out.decode()

    def json(self, *arguments: str, status: int = 0) -> Any:
        return msgspec.json.decode(self.run(*arguments, "--json", status=status))

    def lines(self, *arguments: str) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.run(*arguments, "--json").splitlines()]

    def fails(self, status: int, text: str, *arguments: str) -> None:
        """It ends with one line of error."""
        assert self.run(*arguments, status=status) == ""
        assert self.error.startswith("error: ") and self.error.count("\n") == 1 and text in self.error, self.error


@pytest.fixture
def clarion(
    broker: ServerProcess, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Clarion:
    monkeypatch.setenv("CLARION_URL", broker.url)
    monkeypatch.setenv("COLUMNS", "80")
    return Clarion(capsysbinary)


def until(condition: Callable[[], bool], what: str) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


def dead_count(connection: sync.Connection) -> int:
    return int(connection.command("status")["dead_messages"])


def die(connection: sync.Connection, destination: str, *bodies: str, reason: str | None = "no good") -> None:
    """Send messages, and reject them until they are dead."""
    name = destination.rpartition(":")[2]
    connection.command("set_policy", {"pattern": name, "policy": {"deliveries_max": 2}})
    before = dead_count(connection)
    with connection.session() as session:
        for body in bodies:
            session.send(destination, body.encode(), properties={"text": body}, type="order")
        with session.receive(destination) as consumer:
            for _ in range(2 * len(bodies)):
                message = consumer.receive(timeout=WAIT_S)
                assert message is not None
                message.reject(reason)
    connection.command("remove_policy", {"pattern": name})
    until(lambda: dead_count(connection) == before + len(bodies), f"{destination} has dead messages")


def depth(connection: sync.Connection, name: str) -> int:
    return int(next(found["depth"] for found in connection.command("destinations") if found["name"] == name))


def bodies(connection: sync.Connection, destination: str) -> list[bytes]:
    with connection.session() as session:
        return [message.body for message in session.browse(destination)]


# --- dead messages --------------------------------------------------------------------------------


def test_b20_dead_messages_are_listed_with_their_story(clarion: Clarion, connection: sync.Connection) -> None:
    die(connection, "queue:listed", "one", "two", reason="tyre\x1b[31m flat")
    die(connection, "queue:listed-other", "three")
    first, second, third = clarion.lines("dmq", "list")
    assert [one["dead"]["destination"] for one in (first, second, third)] == ["queue:listed"] * 2 + [
        "queue:listed-other"
    ]
    assert (first["sequence"], second["sequence"]) == (third["sequence"] - 2, third["sequence"] - 1)
    assert first["properties"] == {"text": "one"} and first["size"] == 3 and "body" not in first
    story = first["dead"]
    assert story["deliveries"] == 2 and story["sequence"] == 1 and story["subscription"] is None
    assert [reason for _, reason in story["history"]] == ["tyre\x1b[31m flat"] * 2
    for wanted in ("listed", "queue:listed"):
        assert [one["id"] for one in clarion.lines("dmq", "list", "--destination", wanted)] == [
            first["id"],
            second["id"],
        ]
    assert clarion.lines("dmq", "list", "--count", "1") == [first]
    assert clarion.lines("dmq", "list", "--destination", "topic:listed") == []


def test_b20_the_table_of_dead_messages_fits_a_terminal(clarion: Clarion, connection: sync.Connection) -> None:
    die(connection, "queue:a-rather-long-name-of-a-destination", "one", "two")
    table = clarion.run("dmq", "list")
    assert all(len(line) <= 80 for line in table.splitlines())
    assert table.count("3 B") == 2 and "first" not in table
    assert clarion.run("dmq", "list", "--count", "1").endswith("(the first 1; --count shows more)\n")


def test_b20_one_dead_message_is_shown_whole(clarion: Clarion, connection: sync.Connection, tmp_path: Path) -> None:
    die(connection, "queue:shown", "body \x1b[31m", reason="bad\x1b[2J")
    (listed,) = clarion.lines("dmq", "list")
    number = str(listed["sequence"])
    told = clarion.run("dmq", "show", number)
    assert "\x1b" not in told and "body \\x1b[31m" in told and told.count("bad\\x1b[2J") == 2
    for fact in (listed["id"], "queue:shown, sequence 1", "it was delivered too often", "property text", "order"):
        assert fact in told
    described = clarion.json("dmq", "show", number)
    assert described == {**listed, "body": "body \x1b[31m"}
    out = tmp_path / "body"
    assert "body" not in clarion.json("dmq", "show", number, "--out", str(out))
    assert out.read_bytes() == b"body \x1b[31m"
    clarion.fails(1, "there is no dead message", "dmq", "show", "999999")
    clarion.fails(1, "No such file", "dmq", "show", number, "--out", str(tmp_path / "none" / "body"))


def test_b20_named_messages_go_back_and_what_could_not_is_told(clarion: Clarion, connection: sync.Connection) -> None:
    die(connection, "queue:back", "one", "two", "three", "four")
    numbers = [one["sequence"] for one in clarion.lines("dmq", "list")]
    assert clarion.run("dmq", "resend", str(numbers[0])) == "sent 1 message back\n"
    assert clarion.json("dmq", "resend", f"{numbers[1]}-{numbers[2]}") == {"resent": 2, "left": 0}
    assert bodies(connection, "queue:back") == [b"one", b"two", b"three"]
    again = clarion.json("dmq", "resend", str(numbers[0]), str(numbers[3]), status=1)
    assert again == {"resent": 1, "left": 1}
    assert clarion.error.startswith("error: not sent: 1 message")
    assert dead_count(connection) == 0
    with connection.session() as session:
        sent_back = next(session.browse("queue:back", count=1))
        assert sent_back.dead is None and sent_back.properties == {"text": "one"} and sent_back.type == "order"


def test_b20_all_of_one_destination_go_back_or_elsewhere(
    clarion: Clarion, connection: sync.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmq, "CHUNK", 2)  # so that five messages take three requests
    die(connection, "queue:mine", "1", "2", "3", "4", "5")
    die(connection, "queue:theirs", "6")
    assert clarion.run("dmq", "resend", "--destination", "mine", "--to", "queue:repaired") == (
        "sent 5 messages to queue:repaired\n"
    )
    assert bodies(connection, "queue:repaired") == [b"1", b"2", b"3", b"4", b"5"]
    assert depth(connection, "mine") == 0 and dead_count(connection) == 1
    assert clarion.json("dmq", "resend", "--all") == {"resent": 1, "left": 0}
    assert bodies(connection, "queue:theirs") == [b"6"]
    assert clarion.json("dmq", "resend", "--all") == {"resent": 0, "left": 0}


def test_b20_a_message_of_a_subscription_goes_back_to_it_alone(clarion: Clarion, connection: sync.Connection) -> None:
    connection.command("set_policy", {"pattern": "news", "policy": {"deliveries_max": 1}})
    with connection.session() as session:
        for name in ("good", "bad"):
            with session.receive("topic:news", durable=name):
                pass
        session.send("topic:news", b"flash")
        with session.receive("topic:news", durable="good") as good, session.receive("topic:news", durable="bad") as bad:
            for consumer, is_good in ((good, True), (bad, False)):
                message = consumer.receive(timeout=WAIT_S)
                assert message is not None
                message.confirm() if is_good else message.reject()
        until(lambda: dead_count(connection) == 1, "it is dead")
        (listed,) = clarion.lines("dmq", "list")
        assert listed["dead"]["subscription"] == "bad"
        assert "topic:news (bad), sequence 1" in clarion.run("dmq", "show", str(listed["sequence"]))
        clarion.run("dmq", "resend", "--all")
    found = next(found for found in connection.command("destinations") if found["name"] == "news")
    assert {one["name"]: one["depth"] for one in found["subscriptions"]} == {"good": 0, "bad": 1}


def test_b20_a_dead_message_that_somebody_is_receiving_stays(clarion: Clarion, connection: sync.Connection) -> None:
    die(connection, "queue:looked-at", "one")
    with connection.session() as session, session.receive(DEAD) as consumer:
        message = consumer.receive(timeout=WAIT_S)
        assert message is not None and message.dead is not None
        assert clarion.json("dmq", "resend", "--all", status=1) == {"resent": 0, "left": 1}
        message.reject()
    assert clarion.json("dmq", "resend", "--all") == {"resent": 1, "left": 0}


def test_b20_one_that_cannot_go_back_holds_up_no_other(
    clarion: Clarion, connection: sync.Connection, broker: ServerProcess
) -> None:
    with sync.connect(broker.url) as vanishing, vanishing.session() as owner:
        gone = owner.temporary_queue()
        die(connection, "queue:before", "one")
        connection.command("set_policy", {"pattern": "glob:_temp.*", "policy": {"deliveries_max": 1}})
        with owner.receive(gone) as consumer:
            owner.send(gone, b"two")
            message = consumer.receive(timeout=WAIT_S)
            assert message is not None
            message.reject()
        until(lambda: dead_count(connection) == 2, "it is dead")
        die(connection, "queue:after", "three")
    name = gone.rpartition(":")[2]
    until(
        lambda: all(one["name"] != name for one in connection.command("destinations", {"system": True})), "it is gone"
    )
    assert clarion.json("dmq", "resend", "--all", status=1) == {"resent": 2, "left": 1}
    assert clarion.error.startswith("error: CLN-205") and "not sent: 1 message" in clarion.error
    assert bodies(connection, "queue:before") == [b"one"] and bodies(connection, "queue:after") == [b"three"]
    assert clarion.json("dmq", "resend", "--all", "--to", "queue:found") == {"resent": 1, "left": 0}
    assert bodies(connection, "queue:found") == [b"two"]


def test_b20_purge_removes_what_is_named_and_nothing_else(clarion: Clarion, connection: sync.Connection) -> None:
    die(connection, "queue:purged", "1", "2", "3", "4", "5")
    first = clarion.lines("dmq", "list")[0]["sequence"]
    assert clarion.run("dmq", "purge", str(first + 1), f"{first + 3}-{first + 9}") == "removed 3 messages\n"
    assert [one["sequence"] - first for one in clarion.lines("dmq", "list")] == [0, 2]
    clarion.fails(2, "either sequences or --all", "dmq", "purge")
    assert dead_count(connection) == 2
    assert clarion.json("dmq", "purge", "--all") == {"removed": 2}
    assert clarion.json("dmq", "purge", "--all") == {"removed": 0}


def test_b20_dead_messages_outlive_their_server(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        monkeypatch.setenv("CLARION_URL", server.url)
        clarion = Clarion(capsysbinary)
        clarion.run("admin", "policy", "set", "glob:kept*", "quota_bytes=1 MiB", "redelivery_ms=2 s")
        with sync.connect(server.url) as connection:
            die(connection, "queue:dying", "one")
        listed, rules = clarion.lines("dmq", "list"), clarion.json("admin", "policy", "list")
        assert len(listed) == 1 and rules["set"] == [["glob:kept*", {"quota_bytes": 1 << 20, "redelivery_ms": 2_000}]]
        server.kill()
        server.start()
        monkeypatch.setenv("CLARION_URL", server.url)
        assert (clarion.lines("dmq", "list"), clarion.json("admin", "policy", "list")) == (listed, rules)
        assert clarion.json("admin", "create", "kept-small")["bytes_quota"] == 1 << 20
        assert clarion.json("dmq", "resend", "--all") == {"resent": 1, "left": 0}


def test_b20_the_command_as_a_process(broker: ServerProcess, connection: sync.Connection) -> None:
    die(connection, "queue:process", "one")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "clarion", "--url", broker.url, "dmq"]
    with os.fdopen(writing, "wb") as nobody:
        ended = subprocess.run([*command, "list", "--json"], stdout=nobody, stderr=subprocess.PIPE, timeout=60)
    assert (ended.returncode, ended.stderr) == (141, b"")
    done = subprocess.run([*command, "resend", "--all"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"sent 1 message back\n", b"")


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("connection")
def test_b13_policies_are_set_listed_and_removed(clarion: Clarion) -> None:
    said = clarion.json(
        "admin", "policy", "set", "glob:p.*", "redelivery_ms=90 s", "quota_bytes=64 MiB", "expired=drop"
    )
    policy = {"quota_bytes": 64 << 20, "redelivery_ms": 90_000, "expired": "drop"}
    assert said == {"pattern": "glob:p.*", "policy": policy}
    assert clarion.run("admin", "policy", "set", "p.x", "pause_for_slowest=true", "redelivery_factor=1.5") == (
        "set for p.x: redelivery_factor=1.5 pause_for_slowest=true\n"
    )
    listed = clarion.json("admin", "policy", "list")
    assert listed["file"] == [] and listed["set"] == [
        ["glob:p.*", policy],
        ["p.x", {"redelivery_factor": 1.5, "pause_for_slowest": True}],
    ]
    table = clarion.run("admin", "policy", "list")
    assert "quota_bytes='64 MiB'" in table and "redelivery_ms='90 s'" in table
    assert clarion.json("admin", "create", "p.y")["bytes_quota"] == 64 << 20
    assert clarion.run("admin", "policy", "remove", "glob:p.*") == "removed the rule for glob:p.*\n"
    assert clarion.json("admin", "policy", "remove", "p.x") == {"removed": "p.x"}
    assert clarion.json("admin", "policy", "list")["set"] == []
    clarion.fails(1, "CLN-210", "admin", "policy", "remove", "p.x")


# --- transactions ---------------------------------------------------------------------------------


def test_b14_prepared_transactions_are_listed_and_resolved(clarion: Clarion, connection: sync.Connection) -> None:
    handles = []
    for number in range(2):
        with connection.session(transacted=True) as session:
            session.send("queue:ledger", f"entry {number}".encode())
            session.send("queue:audit", f"entry {number}".encode())
            handles.append(str(session.prepare(expires=3_600)))
    listed = clarion.json("admin", "prepared")
    assert [one["handle"] for one in listed] == handles
    assert all(one["messages"] == 2 for one in listed)
    assert listed[0]["destinations"] == ["queue:ledger", "queue:audit"]
    assert listed[0]["expires_at_ms"] - listed[0]["prepared_at_ms"] == 3_600_000
    assert clarion.json("admin", "prepared", "list") == listed
    table = clarion.run("admin", "prepared")
    assert all(handle in table for handle in handles) and all(len(line) <= 80 for line in table.splitlines())
    assert clarion.json("admin", "status")["prepared_transactions"] == 2
    assert bodies(connection, "queue:ledger") == []

    assert clarion.run("admin", "resolve", handles[0], "--commit") == f"committed {handles[0]}\n"
    assert clarion.json("admin", "resolve", handles[1], "--rollback") == {
        "handle": handles[1],
        "outcome": "rolled back",
    }
    assert bodies(connection, "queue:ledger") == bodies(connection, "queue:audit") == [b"entry 0"]
    clarion.fails(1, "CLN-219", "admin", "resolve", handles[0], "--commit")
    clarion.fails(1, "CLN-210", "admin", "resolve", "nothing", "--commit")
    assert clarion.json("admin", "prepared") == []


# --- what a server has ----------------------------------------------------------------------------


def test_b13_consumers_and_who_of_them_is_slow(clarion: Clarion, connection: sync.Connection) -> None:
    with connection.session() as session:
        for number in range(5):
            session.send("queue:piling", b"x", properties={"n": number})
        with session.receive("queue:piling", unconfirmed_max=1) as slow:
            message = slow.receive(timeout=WAIT_S)
            assert message is not None
            with (
                connection.session() as other,
                other.receive("queue:piling", selector="n > 100", prefetch_messages=7) as fast,
            ):
                assert fast.receive(timeout=0) is None
                listed = clarion.json("admin", "consumers", "piling")
                table = clarion.run("admin", "consumers", "queue:piling")
    by_selector = {one["selector"]: one for one in listed}
    assert len(listed) == 2 and by_selector["n > 100"]["room"] == 7 and by_selector[None]["room"] == 0
    assert by_selector[None]["in_flight"] == 1
    rows = [line for line in table.splitlines() if "0000" in line]
    assert all(len(line) <= 80 for line in table.splitlines())
    assert [("slow" in row, "n > 100" in row) for row in rows] == [(True, False), (False, True)]
    clarion.fails(1, "CLN-205", "admin", "consumers", "nowhere")


def test_b13_status_names_slow_consumers_and_counts_what_needs_somebody(
    clarion: Clarion, connection: sync.Connection
) -> None:
    die(connection, "queue:ill", "one", "two")
    with connection.session() as session:
        for _ in range(3):
            session.send("queue:stuck", b"x")
        with session.receive("queue:stuck", unconfirmed_max=1) as consumer:
            consumer.receive(timeout=WAIT_S)
            (slow,) = clarion.json("admin", "status")["slow_consumers"]
            told = clarion.run("admin", "status")
    assert (slow["destination"], slow["in_flight"], slow["waiting"]) == ("queue:stuck", 1, 2)
    facts = dict(line.split("  ", 1) for line in told.splitlines())
    assert facts["dead messages"].strip() == "2" and facts["slow consumers"].strip() == "1"
    assert facts["prepared"].strip().startswith("0 ")
    assert facts["slow"].strip() == f"queue:stuck: {slow['in_flight']} in flight, {slow['waiting']} waiting"
    assert all(len(line) <= 100 for line in told.splitlines())


def test_b16_the_destinations_of_the_system_are_shown_when_asked_for(clarion: Clarion) -> None:
    plain = {found["name"] for found in clarion.json("admin", "destinations")}
    everything = {found["name"] for found in clarion.json("admin", "destinations", "--system")}
    assert everything - plain >= {"_ADMIN", "_CONFIRMATIONS", "_DMQ", "_LOG"}
    assert not any(name.startswith("_") for name in plain)
    assert "queue:_DMQ" in clarion.run("admin", "destinations", "--system")
    clarion.fails(2, "CLN-201", "admin", "create", "_mine")
    clarion.fails(1, "CLN-210", "admin", "drop", "_DMQ")


def test_b04_delayed_and_retained_messages_have_columns(
    clarion: Clarion, connection: sync.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clarion.run("admin", "policy", "set", "kept", "retain_ms=1 h")
    with connection.session() as session:
        session.send("queue:tomorrow", b"x", delay=86_400)
        session.send("queue:kept", b"x")

        def retains() -> bool:
            return any(one["retained_from"] for one in connection.command("destinations") if one["name"] == "kept")

        until(retains, "the policy is in force")
        with session.receive("queue:kept") as consumer:
            message = consumer.receive(timeout=WAIT_S)
            assert message is not None
            message.confirm()
    monkeypatch.setenv("COLUMNS", "120")
    header, _, *rows = clarion.run("admin", "destinations").splitlines()
    assert header.split("  ")[0] == "destination" and "delayed  retained  consumers" in header
    counts = {words[0]: words[1:] for row in rows if (words := row.split())}
    assert counts["queue:tomorrow"][:4] == ["0", "0", "1", "0"]
    assert counts["queue:kept"][:4] == ["0", "0", "0", "1"]
    clarion.run("admin", "policy", "remove", "kept")


def test_b15_a_durable_subscription_of_a_pattern_is_removed(clarion: Clarion, connection: sync.Connection) -> None:
    with connection.session() as session, session.receive("glob:weather.*", durable="watch"):
        session.send("topic:weather.north", b"rain")
    clarion.fails(1, "CLN-206", "admin", "unsubscribe", "glob:weather.*", "nobody")
    assert clarion.json("admin", "unsubscribe", "glob:weather.*", "watch") == {"unsubscribed": "watch"}
    found = next(found for found in connection.command("destinations") if found["name"] == "weather.north")
    assert found["subscriptions"] == []


# --- requests -------------------------------------------------------------------------------------


def test_b17_every_verb_of_the_reference_is_there(connection: sync.Connection) -> None:
    """What the tables of docs/reference/requests.md and docs/formats/wire.md name, a server knows."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    text = (docs / "reference/requests.md").read_text() + (docs / "formats/wire.md").read_text()
    verbs = [
        verb
        for table in re.findall(r"^\| verb \| arguments \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
        for verb in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    ]
    assert {"status", "resend", "resolve", "consumers", "commit", "temporary"} <= set(verbs)
    for verb in verbs:
        try:
            connection.command(verb, {})
        except RequestError as error:
            assert not isinstance(error, UnknownVerb), verb
