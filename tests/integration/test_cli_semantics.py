"""The command line for policies, prepared transactions, slow consumers and destinations, against a real server."""

from __future__ import annotations

import pytest

from clarion import sync
from tests.integration.clarion_command import WAIT_S, Clarion, bodies, die, until

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
