"""Multiplexers between real processes: both switches, filters, chains, who is away, hostile connections (A-11)."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.events.link import frames
from clarion.events.link.confirmations import pack_confirmations
from clarion.events.link.frames import Hello, Role, Type
from tests.faults.events_harness import KILLED, Nursery, until
from tests.integration.events.multiplexer_harness import (
    PROCESSES,
    MultiplexerPlace,
    Place,
    check,
    lines_of,
)

SWITCHES = [(True, False), (True, True), (False, False), (False, True)]
KEEPERS = ("one", "odd", "errors", "log")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(PROCESSES) as nursery:
        yield nursery


@pytest.mark.parametrize(("early", "forward"), SWITCHES)
def test_a11_every_recipient_behind_it_gets_what_its_filter_wants(
    nursery: Nursery, tmp_path: Path, early: bool, forward: bool
) -> None:
    collector = MultiplexerPlace(
        nursery, tmp_path / "m", confirm_early=early, forward=forward, recipients=KEEPERS, durability="power"
    )
    collector.start()
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address, events=100)
    sender.start(end="stays")
    until(lambda: sender.waiting() == 0 and len(lines_of(sender.folder / "emitted")) == 100, "the sender is confirmed")
    collector.drained()
    emitted = lines_of(sender.folder / "emitted")
    check(emitted, collector, "one")
    check(emitted, collector, "log")
    check(emitted, collector, "odd", lambda line: line.number % 2 == 1)
    check(emitted, collector, "errors", lambda line: line.number % 4 == 0)
    expected = {"one": 100, "log": 100, "odd": 50, "errors": 25} if forward else {}

    def forwarded() -> dict[str, int]:
        (row,) = sender.status()["recipients"]
        found: dict[str, int] = row["confirmations_by_recipient"]
        return found

    until(lambda: forwarded() == expected, f"confirmations are forwarded: {forwarded()}", 10.0)
    status = collector.status()["multiplex"]
    assert (status["confirm_early"], status["forward"]) == (early, forward)
    assert len(status["senders"]) == 1
    sender.kill()
    collector.kill()


@pytest.mark.parametrize("early", [True, False])
def test_a11_early_and_late_differ_in_when_the_sender_is_free(nursery: Nursery, tmp_path: Path, early: bool) -> None:
    """With a recipient that refuses, an early multiplexer frees its sender and a late one does not; both go on."""
    collector = MultiplexerPlace(nursery, tmp_path / "m", confirm_early=early, recipients=("one", "two"))
    collector.start(refusing=("two",))
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address, events=300)
    sender.start(end="stays")
    until(lambda: len(collector.got("one")) >= 300, "the healthy one gets everything")
    if early:
        until(lambda: sender.waiting() == 0, "the sender is free")
    else:
        assert sender.waiting() == 300
        (row,) = sender.status()["recipients"]
        assert row["owed"] == 300
    collector.kill()
    collector.start()
    until(lambda: sender.waiting() == 0, "the sender is free")
    collector.drained()
    emitted = lines_of(sender.folder / "emitted")
    check(emitted, collector, "one")
    check(emitted, collector, "two")
    assert len(collector.got("one")) <= 300 + 4, "what was confirmed does not come again, but for one delivery"
    sender.kill()
    collector.kill()


@pytest.mark.parametrize(("early", "forward"), SWITCHES)
def test_a11_chain_of_two(nursery: Nursery, tmp_path: Path, early: bool, forward: bool) -> None:
    options = {"confirm_early": early, "forward": forward}
    last = MultiplexerPlace(nursery, tmp_path / "m2", recipients=("one", "errors", "log"), **options)
    last.start()
    first = MultiplexerPlace(nursery, tmp_path / "m1", recipients=("one",), multiplexer=last.address, **options)
    first.start()
    senders = [Place(nursery, tmp_path / f"s{n}", multiplexer=first.address, events=80) for n in range(2)]
    for sender in senders:
        sender.start(end="stays")
    until(lambda: all(len(lines_of(one.folder / "emitted")) == 80 for one in senders), "all is emitted")
    until(lambda: len(first.got("one")) > 20, "something is delivered")
    last.kill()
    first.kill()
    last.start()
    first.start()
    until(lambda: all(sender.waiting() == 0 for sender in senders), "the senders are free")
    first.drained()
    last.drained()
    emitted = [line for sender in senders for line in lines_of(sender.folder / "emitted")]
    check(emitted, first, "one")
    check(emitted, last, "one")
    check(emitted, last, "log")
    check(emitted, last, "errors", lambda line: line.number % 4 == 0)
    if forward:
        (row,) = senders[0].status()["recipients"]
        assert set(row["confirmations_by_recipient"]) <= {"one", "next", "next/one", "next/errors", "next/log"}
    for place in (*senders, first, last):
        place.kill()


def test_a11_forwarded_confirmations_come_through_a_chain(nursery: Nursery, tmp_path: Path) -> None:
    last = MultiplexerPlace(nursery, tmp_path / "m2", recipients=("errors",), forward=True)
    last.start()
    first = MultiplexerPlace(nursery, tmp_path / "m1", recipients=("one",), multiplexer=last.address, forward=True)
    first.start()
    sender = Place(nursery, tmp_path / "s", multiplexer=first.address, events=40)
    sender.start(end="stays")
    expected = {"one": 40, "next": 40, "next/errors": 10}
    until(
        lambda: sender.waiting() == 0 and sender.status()["recipients"][0]["confirmations_by_recipient"] == expected,
        "everybody's confirmations",
    )
    for place in (sender, first, last):
        place.kill()


@pytest.mark.parametrize("early", [True, False])
def test_a11_what_is_confirmed_while_the_sender_is_not_connected_is_told_later(
    nursery: Nursery, tmp_path: Path, early: bool
) -> None:
    """A multiplexer that was killed delivers what it has before its sender finds it again, who has nothing to send."""
    collector = MultiplexerPlace(nursery, tmp_path / "m", confirm_early=early, forward=True, recipients=("one", "log"))
    collector.start(refusing=("one",))
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address)
    sender.start(end="stays")
    until(lambda: len(collector.logged()) == 40, "the log has all")
    collector.kill()
    collector.start()
    collector.drained()

    def forwarded() -> dict[str, int]:
        (row,) = sender.status()["recipients"]
        found: dict[str, int] = row["confirmations_by_recipient"]
        return found

    until(lambda: forwarded() == {"one": 40, "log": 40}, f"confirmations are forwarded: {forwarded()}", 20.0)
    heard = (sender.folder / "forwarded").read_text().splitlines()
    assert len(heard) == len(set(heard)) == 80, "each is heard once"
    sender.kill()
    collector.kill()


def test_a11_a_confirmation_that_was_recorded_and_not_told_is_told_after_the_crash(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Nobody is owed these events any more: they leave at the next start, after their sender was told."""
    collector = MultiplexerPlace(nursery, tmp_path / "m", forward=True, recipients=("one",))
    collector.start(arm="events.216b=kill@2")
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address)
    sender.start(end="stays")
    collector.wait(KILLED)
    collector.start()

    def heard() -> list[str]:
        return (sender.folder / "forwarded").read_text().split()[1::2]

    until(lambda: len(lines_of(sender.folder / "emitted")) == 40 and sender.waiting() == 0, "the sender is confirmed")
    collector.drained()
    until(lambda: set(heard()) == {line.id for line in lines_of(sender.folder / "emitted")}, "all is heard", 20.0)
    sender.kill()
    collector.kill()


def all_at_the_last(nursery: Nursery, folder: Path) -> tuple[Place, MultiplexerPlace, MultiplexerPlace]:
    """A sender and two multiplexers, the first of which is a sender to the second, whose recipient confirms nothing."""
    last = MultiplexerPlace(nursery, folder / "m2", recipients=("one",), forward=True)
    last.start(refusing=("one",))
    first = MultiplexerPlace(nursery, folder / "m1", multiplexer=last.address, forward=True)
    first.start()
    sender = Place(nursery, folder / "s", multiplexer=first.address)
    sender.start(end="stays")
    until(lambda: last.waiting() == 40 and sender.waiting() == first.waiting() == 0, "the last one has everything")
    return sender, first, last


def until_all_is_heard(sender: Place) -> None:
    """That the recipient of the last one has confirmed them."""

    def heard() -> set[str]:
        lines = (sender.folder / "forwarded").read_text().splitlines()
        return {identity for recipient, identity in map(str.split, lines) if recipient == "next/one"}

    until(lambda: heard() == {line.id for line in lines_of(sender.folder / "emitted")}, f"{len(heard())} heard", 20.0)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a11_a_multiplexer_in_between_dies_with_confirmations_that_its_sender_has_not_heard(
    nursery: Nursery, tmp_path: Path, is_heard: bool
) -> None:
    """The one behind it was told that they were heard, or just not yet: the sender hears them when it is back."""
    sender, first, last = all_at_the_last(nursery, tmp_path)
    sender.kill()
    last.kill()
    last.start()
    until(lambda: len((first.folder / "forwarded").read_text().splitlines()) == 40, "all is forwarded")
    if is_heard:
        until(lambda: last.status()["multiplex"]["unheard"] == 0, "and called heard")
    first.kill()
    first.start()
    sender.start(events=1, end="stays")
    until_all_is_heard(sender)
    for place in (sender, first, last):
        place.kill()


def test_a11_a_multiplexer_in_between_asks_what_was_confirmed_while_it_was_away(
    nursery: Nursery, tmp_path: Path
) -> None:
    """And has nothing else to say to the one behind it."""
    sender, first, last = all_at_the_last(nursery, tmp_path)
    first.kill()
    last.kill()
    last.start()
    last.drained()
    first.start()
    until_all_is_heard(sender)
    for place in (sender, first, last):
        place.kill()


def test_a11_a_multiplexer_that_is_away_delays_only_its_own_pipeline(nursery: Nursery, tmp_path: Path) -> None:
    collector = MultiplexerPlace(nursery, tmp_path / "m", recipients=("one",))
    collector.start()
    collector.kill()
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address, recipients=("here",), events=200)
    sender.start(end="stays")
    until(lambda: len(sender.got("here")) == 200, "the other recipient has everything")
    assert sender.waiting() == 200
    rows = {row["name"]: row for row in sender.status()["recipients"]}
    assert rows["here"]["owed"] == 0
    assert rows["next"]["owed"] == 200
    until(
        lambda: "CLN" in sender.status()["recipients"][1]["error"] or sender.status()["recipients"][1]["error"], "why"
    )
    collector.start()
    until(lambda: sender.waiting() == 0, "everything is confirmed")
    collector.drained()
    check(lines_of(sender.folder / "emitted"), collector, "one")
    sender.kill()
    collector.kill()


def test_a11_a_multiplexer_whose_memory_was_replaced_gets_everything_again(nursery: Nursery, tmp_path: Path) -> None:
    """Late: what the sender knows to be safe there and is not, is sent again."""
    collector = MultiplexerPlace(nursery, tmp_path / "m", confirm_early=False, recipients=("one",))
    collector.start(refusing=("one",))
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address, events=60)
    sender.start(end="stays")

    def arrived() -> int:
        return sum(row["waiting"] for row in collector.status()["sections"] if row["name"] == "multiplex")

    until(lambda: arrived() == 60, "all are there")
    collector.kill()
    shutil.rmtree(collector.folder / "events")
    collector.start()
    until(lambda: sender.waiting() == 0, "everything is confirmed")
    check(lines_of(sender.folder / "emitted"), collector, "one")
    sender.kill()
    collector.kill()


def test_a11_own_events_of_a_multiplexer_go_the_same_way(tmp_path: Path) -> None:
    from clarion.events import EventSystem, Multiplexer
    from clarion.events.recipients import Multiplexing

    got: list[str] = []
    with Multiplexer.open(tmp_path / "m", [lambda event: got.append(event.id)], capacity=100) as collector:
        collector.ready()
        with EventSystem.open(tmp_path / "s", [Multiplexing(collector.address)], capacity=100) as sender:
            sender.ready()
            ids = {sender.emit("from.afar", source="s"), collector.emit("from.here", source="m")}
            assert sender.wait_until_delivered(20)
            assert collector.wait_until_delivered(20)
    assert set(got) == ids


def test_a11_two_ways_to_one_multiplexer_bring_everything_once(tmp_path: Path) -> None:
    """Each way leaves gaps, and says what it will not send again: that is true of itself, not of the other."""
    from clarion.events import EventSystem, Multiplexer
    from clarion.events.recipients import Multiplexing

    got: list[str] = []
    with Multiplexer.open(tmp_path / "m", [lambda event: got.append(event.id)], durability="process") as collector:
        collector.ready()
        ways = [
            Multiplexing(collector.address, name="errors", filter="severity_level >= 40", batch_events_max=16),
            Multiplexing(collector.address, name="rest", filter="severity_level < 40", batch_events_max=16),
            Multiplexing(collector.address, name="notices", filter="severity_level = 25", batch_events_max=16),
        ]
        with EventSystem.open(tmp_path / "s", ways, durability="process", capacity=5_000) as sender:
            sender.ready()
            levels = ("error", "info", "notice")
            emitted = [sender.emit("some.event", source="s", severity=levels[n % 3]) for n in range(2_000)]
            assert sender.wait_until_delivered(60)
            assert collector.wait_until_delivered(60)
    assert set(got) == set(emitted)
    assert len(got) == len(emitted), "what two ways bring is known"


def test_a11_hostile_connections_cost_nobody_else_anything(nursery: Nursery, tmp_path: Path) -> None:
    collector = MultiplexerPlace(nursery, tmp_path / "m", recipients=("one", "log"))
    collector.start()
    host, port = collector.address.split(":")
    greeting = frames.frame(Type.HELLO, frames.pack_hello(Hello("hostile", Role.MULTIPLEX)), 1)
    wrong_role = frames.frame(Type.HELLO, frames.pack_hello(Hello("hostile", Role.PARTNER)), 1)
    buffer = memoryview(bytearray(4_096))
    end = frames.add_record(buffer, frames.begin_put(buffer, bytes(16)), bytes(15) + b"\1", 1, memoryview(bytes(40)))
    bad_producer = bytes(buffer[: frames.end_put(buffer, end, 1, 2)])
    asks_for_all = frames.frame(Type.NOTE, pack_confirmations([("x", [(7 << 64, 1, 1 << 63)])]))
    sent = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(100_000),
        b"\xff" * 64,
        greeting[:10],
        greeting + greeting[:7],
        bad_producer,
        greeting + bad_producer,
        wrong_role,
        greeting + frames.frame(Type.GIVE_BACK, b"x" * 100),
        greeting + frames.frame(Type.CONFIRMED, b""),
        greeting + asks_for_all,
        greeting + frames.frame(Type.RELEASED, frames.pack_released(7 << 64, 1 << 63)),
    ]
    sockets = []
    for payload in sent:
        connection = socket.create_connection((host, int(port)), 10)
        sockets.append(connection)
        connection.sendall(payload)
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address, events=50)
    sender.start()
    sender.wait()
    collector.drained()
    emitted = lines_of(sender.folder / "emitted")
    check(emitted, collector, "one")
    check(emitted, collector, "log")
    until(lambda: collector.status()["multiplex"]["connections_dropped"] >= 6, "those that made no sense are dropped")
    for connection in sockets:
        connection.close()
    collector.kill()
