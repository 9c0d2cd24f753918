"""Cooperating pairs of real processes in real networks, in trouble of one kind each (A-10).

A *gate* that is closed makes recipients confirm nothing, so that events are owed at the moment of the fault, and none
of them is on its way: then even a recipient that keeps no ids must get each of them once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from clarion.events.memory.directory import Directory
from tests.faults.pair_harness import World, world
from tests.faults.pair_ledger import confirmed_for_partner, held_for_partner
from tests.faults.pair_networks import NEEDS, Networks, WitnessServer
from tests.faults.pair_system import System, until

pytestmark = NEEDS


# --- events that are owed at the death --------------------------------------------------------------


def test_a10_events_owed_at_the_death_are_delivered_by_the_partner(tmp_path: Path, networks: Networks) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        a, b = pair.a, pair.b
        a.close()  # starts again, with events that it recorded while initialising
        pair.close_gate()
        a.start(initialising=20)
        until(lambda: a.status()["bond"] == "paired", "a is paired")
        a.emit(1_000)
        owed = pair.emitted_by(a)
        assert len(owed) == 1_020
        assert a.status()["waiting"]["0-normal"] >= 1_000
        pair.fault()
        a.kill()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate()
        pair.until_got(owed)
        pair.until_got(owed, "kept")
        assert {line.who for line in pair.got() if line.id in owed} == {b.child.name}
        kinds = [line.kind for line in pair.got() if line.id in owed and line.kind in ("init", "normal")]
        assert kinds == ["init"] * 20 + ["normal"] * 1_000
        before = len(pair.got())
        pair.close_gate(f"-{b.child.name}")
        b.emit(5)
        a.start()
        a.emit(7, "late")
        until(lambda: a.status()["right"] == "holding", "a has its right again")
        late = {line.id for line in pair.emitted() if line.kind == "late"}
        pair.until_got(late)
        pair.open_gate(f"-{b.child.name}")
        pair.until_well()
        after = pair.got()[before:]
        assert not owed & {line.id for line in after}, "delivered again after the return"
        pair.check(strict=True)


def test_a10_what_was_recorded_while_degraded_is_delivered_by_its_origin(tmp_path: Path, networks: Networks) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        a, b = pair.a, pair.b
        pair.close_gate("-raw")
        pair.cut("ab")
        until(lambda: a.status()["bond"] == b.status()["bond"] == "degraded", "both know it")
        a.emit(50)
        owed = pair.emitted_by(a)
        pair.until_got(owed, "kept")
        a.kill()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate("-raw")
        assert not owed & {line.id for line in pair.got()}, "b cannot have them"
        pair.close_gate(f"-{b.child.name}")  # it gets them when a is back, and may still act for a moment
        a.begin()
        pair.heal("ab")
        a.begun()
        pair.until_got(owed)
        assert {line.who for line in pair.got() if line.id in owed} == {a.child.name}
        pair.open_gate(f"-{b.child.name}")
        pair.until_well()
        pair.check(strict=True)


def test_a10_what_one_recipient_has_is_not_sent_to_it_again_by_the_partner(tmp_path: Path, networks: Networks) -> None:
    """Confirmed to one recipient while the wire was cut, owed to the other; then the origin dies."""
    with world(tmp_path, networks, witness="file") as pair:
        a, b = pair.a, pair.b
        pair.close_gate("-kept")
        pair.cut("ab")
        until(lambda: a.status()["bond"] == "degraded", "a knows it")
        a.emit(50)
        owed = pair.emitted_by(a)
        pair.until_got(owed)
        pair.heal("ab")
        until(lambda: a.status()["bond"] == "paired", "a is paired")
        until(lambda: b.status()["held_for_partner"] >= 50, "b has them")
        a.emit(50)
        owed = pair.emitted_by(a)
        pair.until_got(owed)
        until(lambda: set(known_to(b, pair)) >= owed, "b knows what raw has")
        a.kill()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate("-kept")
        pair.until_got(owed, "kept")
        assert {line.who for line in pair.got("kept") if line.id in owed} == {b.child.name}
        a.start()
        pair.until_well()
        pair.check(strict=True)


def known_to(system: System, pair: World) -> list[str]:
    """Ids that this system knows to be confirmed by `raw`, of its partner's events: a copy of its ledger is asked."""
    return confirmed_for_partner(system.child, "raw")


# --- recipients that the partner has to know ----------------------------------------------------------


def test_a10_who_says_that_it_is_paired_has_a_partner_that_knows_its_recipients(
    tmp_path: Path, networks: Networks
) -> None:
    """One recipient more since the last start, and a partner whose engine cannot begin: what it knows, it has from the
    link alone. Both die, and only the partner comes back."""
    with world(tmp_path, networks, witness="file") as pair:
        a, b = pair.a, pair.b
        for system in (a, b):
            system.close()
            recipients = (*system.child.recipients, "raw-2")
            system.child = msgspec.structs.replace(system.child, recipients=recipients)
        pair.close_gate()
        directory = Directory.open(b.child.path)
        try:
            assert directory.try_engine()
            b.start()
            a.start()
            until(lambda: a.status()["bond"] == "paired", "a is paired")
            a.emit(20)
            owed = pair.emitted_by(a)
            pair.fault()
            a.kill()
            b.kill()
        finally:
            directory.close()
        b.start()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate()
        for recipient in ("raw", "kept", "raw-2"):
            pair.until_got(owed, recipient)
            assert {line.who for line in pair.got(recipient) if line.id in owed} == {b.child.name}
        a.start()
        pair.until_well()
        pair.check(strict=True)


# --- without a witness ------------------------------------------------------------------------------


def test_a10_wait_means_that_nobody_acts_and_nothing_doubles(tmp_path: Path, networks: Networks) -> None:
    with world(tmp_path, networks) as pair:
        a, b = pair.a, pair.b
        pair.close_gate()
        a.emit(50)
        owed = pair.emitted_by(a)
        pair.fault()
        a.kill()
        pair.open_gate()
        until(lambda: b.status()["bond"] == "degraded", "b knows that a is away")
        b.emit(20)
        pair.until_got(pair.emitted_by(b))
        assert b.status()["duty"] == "idle" and not owed & {line.id for line in pair.got()}
        a.start()
        pair.until_got(owed)
        pair.cut("ab")
        until(lambda: a.status()["bond"] == b.status()["bond"] == "degraded", "both know it")
        for system in (a, b):
            system.emit(20)
        pair.until_got({line.id for line in pair.emitted()})
        assert {line.who for line in pair.got() if line.id in pair.emitted_by(a)} == {a.child.name}
        pair.heal("ab")
        pair.until_well()
        pair.check(strict=True)


def test_a10_wait_ends_when_an_operator_says_so(tmp_path: Path, networks: Networks) -> None:
    with world(tmp_path, networks) as pair:
        a, b = pair.a, pair.b
        pair.close_gate()
        a.emit(50)
        owed = pair.emitted_by(a)
        pair.fault()
        a.kill()

        def acts() -> bool:
            b.ask("takeover")  # refused while a may be alive
            return b.acts

        until(acts, "b acts for a")
        pair.open_gate()
        pair.until_got(owed)
        assert {line.who for line in pair.got() if line.id in owed} == {b.child.name}
        a.start()
        pair.until_well()
        pair.check(strict=True)


def test_a10_replay_loses_nothing_and_doubles_only_what_both_had(tmp_path: Path, networks: Networks) -> None:
    with world(tmp_path, networks, options={"without_witness": "replay"}) as pair:
        a, b = pair.a, pair.b
        pair.close_gate()
        a.emit(50)
        owed = pair.emitted_by(a)
        pair.fault()
        a.kill()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate()
        pair.until_got(owed)
        a.start()
        pair.until_well()
        pair.check(strict=True)  # no wire was cut
        pair.close_gate()
        for system in (a, b):
            system.emit(20)
        both = {line.id for line in pair.emitted()}
        pair.cut("ab")
        until(lambda: a.acts and b.acts, "each acts for the other")
        pair.open_gate()
        for system in (a, b):
            system.emit(20, "apart")
        pair.until_got({line.id for line in pair.emitted()})
        pair.heal("ab")
        pair.until_well()
        pair.check(doubles=True)
        twice = [line.id for line in pair.got()]
        apart = {line.id for line in pair.emitted() if line.kind == "apart"}
        assert all(twice.count(identity) == 1 for identity in apart), "only what both had can be doubled"
        print(f"{pair.doubles()} of {len(set(twice))} events came twice; both had {len(both)}")


# --- other troubles ---------------------------------------------------------------------------------


def test_a10_a_partner_whose_memory_is_full(tmp_path: Path, networks: Networks) -> None:
    """b has room for few events of a: a says that it is degraded, records here, and is whole again later."""
    with world(tmp_path, networks, witness="file", options={"capacity": 60}, only_a={"capacity": 4_000}) as pair:
        a, b = pair.a, pair.b
        pair.close_gate()

        def full() -> bool:
            a.emit(100)
            return bool(a.status()["bond"] == "degraded")

        until(full, "b is full")
        a.emit(50)
        b.emit(5)
        pair.open_gate()
        pair.until_got({line.id for line in pair.emitted()})
        pair.until_well()
        pair.check(strict=True)


def test_a10_a_partner_that_returns_with_a_new_memory_is_recognised_and_nothing_is_lost(
    tmp_path: Path, networks: Networks
) -> None:
    """It gets everything again that is owed here; what it had recorded before is here, and is delivered for it."""
    with world(tmp_path, networks) as pair:
        a, b = pair.a, pair.b
        pair.close_gate()
        a.emit(20)
        b.emit(10)
        assert a.status()["held_of_former"] == 0 and a.status()["partner_memory"]
        b.kill()
        shutil.rmtree(b.child.path)
        b.start()
        until(lambda: a.status()["held_of_former"] >= 10, "a knows that it alone has them")
        until(lambda: a.status()["bond"] == "paired", "a is paired")
        until(lambda: pair.emitted_by(a) <= held_for_partner(b.child), "b has everything of a again")
        b.kill()

        def acts() -> bool:
            a.ask("takeover")  # refused while b may be alive
            return a.acts

        until(acts, "a acts for b")
        pair.open_gate()
        for recipient in ("raw", "kept"):
            pair.until_got({line.id for line in pair.emitted()}, recipient)
        until(lambda: "clarion.pair.partner_replaced" in {line.kind for line in pair.got()}, "it is reported")
        until(lambda: {line.id for line in pair.got()} == {line.id for line in pair.got("kept")}, "both have the same")
        pair.check(strict=True)
        b.start()
        pair.until_well()  # nothing of the former memory is held any more
        pair.check(strict=True)


def test_a10_a_recipient_that_only_one_has_waits_for_it(tmp_path: Path, networks: Networks) -> None:
    only_a = {"recipients": ("raw", "raw-a", "kept")}
    with world(tmp_path, networks, witness="file", only_a=only_a) as pair:
        a, b = pair.a, pair.b
        pair.close_gate()
        a.emit(50)
        owed = pair.emitted_by(a)
        pair.fault()
        a.kill()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate()
        pair.until_got(owed)
        pair.until_got(owed, "kept")
        assert not pair.got("raw-a") or not owed & {line.id for line in pair.got("raw-a")}
        assert b.status()["held_for_partner"] >= 50
        a.start()
        pair.until_got(owed, "raw-a")
        pair.until_well()
        pair.check(strict=True)
        assert {line.who for line in pair.got("raw-a")} == {a.child.name}


def test_a10_the_one_that_acts_dies_and_comes_back_first(tmp_path: Path, networks: Networks) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        a, b = pair.a, pair.b
        pair.close_gate()
        a.emit(500)
        owed = pair.emitted_by(a)
        a.kill()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate()
        until(lambda: len(owed & {line.id for line in pair.got()}) > 20, "some are delivered")
        pair.fault()
        b.kill()
        b.start()
        pair.until_got(owed)
        assert {line.who for line in pair.got() if line.id in owed} == {b.child.name}
        a.start()
        pair.until_well()
        pair.check()


def test_a10_the_witness_is_away_for_a_while(tmp_path: Path, networks: Networks, server: WitnessServer) -> None:
    """Two that hear each other go on; one that is alone waits for the witness."""
    with world(tmp_path, networks, server=server, witness="clarion") as pair:
        a, b = pair.a, pair.b
        server.pause()
        try:
            for _ in range(3):
                for system in (a, b):
                    system.emit(10)
                pair.until_got({line.id for line in pair.emitted()})
                time.sleep(0.5 * a.child.lease_ms / 1000)  # longer than a lease altogether
            pair.close_gate()
            a.emit(20)
            owed = pair.emitted_by(a)
            pair.fault()
            a.kill()
            until(lambda: b.status()["duty"] == "taking over", "b notices")
            pair.open_gate()
            assert b.status()["right"] != "holding" and not b.acts
        finally:
            server.resume()
        until(lambda: b.acts, "b acts for a")
        pair.until_got(owed)
        a.start()
        pair.until_well()
        pair.check(strict=True)


def test_a10_events_of_other_processes_of_the_host_are_at_the_partner_too(tmp_path: Path, networks: Networks) -> None:
    """They are sent a moment after they were recorded; b forgets them also if it is away when they are settled."""
    with world(tmp_path, networks, witness="file") as pair:
        a, b = pair.a, pair.b
        program = f"""
from clarion.events import EventSystem
with EventSystem.open({str(a.child.path)!r}, capacity=100, event_bytes_max=1024, durability="process") as events:
    events.ready()
    for number in range(20):
        print(events.emit("other", source="other", data={{"n": number}}))
"""

        def other() -> set[str]:
            command = [sys.executable, "-c", program]
            return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())

        pair.close_gate()
        a.emit(1)
        owed = other() | pair.emitted_by(a)
        until(lambda: b.status()["held_for_partner"] >= 21, "b has them")
        pair.fault()
        a.kill()
        until(lambda: b.acts, "b acts for a")
        pair.open_gate()
        pair.until_got(owed)
        assert {line.who for line in pair.got() if line.id in owed} == {b.child.name}
        a.start()
        pair.until_well()
        pair.check(strict=True)
        pair.close_gate()
        owed = other()
        until(lambda: b.status()["held_for_partner"] >= 20, "b has them")
        b.kill()
        pair.open_gate()
        pair.until_got(owed)
        until(lambda: not any(a.status()["waiting"].values()), "the section of the other process is empty and goes")
        until(lambda: not list((a.child.path / "sections").glob("1-*")), "its files are gone")
        a.close()
        a.start()
        b.start()
        pair.until_well()
        pair.check(strict=True)
