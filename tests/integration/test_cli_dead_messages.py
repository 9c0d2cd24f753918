"""The command line for dead messages, against a real server: they are listed, shown, sent back and removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clarion import sync
from clarion.cli import dmq
from clarion.testing.server import ServerProcess
from tests.integration.clarion_command import DEAD, WAIT_S, Clarion, bodies, dead_count, die, until


def depth(connection: sync.Connection, name: str) -> int:
    return int(next(found["depth"] for found in connection.command("destinations") if found["name"] == name))


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
