"""Every two of killed, paused and cut off, one after the other, in a pair with a witness (A-10).

A *gate* that is closed makes recipients confirm nothing, so that events are owed at the moment of the fault.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.faults.pair_harness import World, world
from tests.faults.pair_networks import NEEDS, Networks, WitnessServer
from tests.faults.pair_system import System, until

pytestmark = NEEDS

FAULTS = ("kill-a", "kill-b", "pause-a", "pause-b", "cut-ab", "cut-aw", "cut-bw")
PAIRS = [
    (first, second)
    for first, second in itertools.permutations(FAULTS, 2)
    if (first[:4], second[:5]) != ("kill", "pause") or first[-1] != second[-1]
]
SUITE = [
    ("kill-a", "kill-b"),
    ("kill-b", "kill-a"),
    ("kill-a", "pause-b"),
    ("pause-a", "kill-b"),
    ("pause-a", "pause-b"),
    ("pause-a", "cut-ab"),
    ("cut-ab", "kill-a"),
    ("cut-ab", "cut-aw"),
    ("cut-aw", "cut-ab"),
    ("cut-aw", "kill-b"),
    ("cut-bw", "pause-a"),
    ("kill-a", "cut-bw"),
    ("cut-aw", "cut-bw"),
]
"""A third of all; the others in the soak."""


def break_it(pair: World, fault: str) -> None:
    """Until it is seen by whoever can see it."""
    kind, _, where = fault.partition("-")
    system = pair.systems.get(where)
    if kind == "cut":
        pair.cut(where)
        return
    assert system is not None
    pair.fault()
    if kind == "kill":
        system.kill()
    else:
        system.pause()
        pair.pauses += 1


def mend(pair: World, fault: str) -> None:
    kind, _, where = fault.partition("-")
    system = pair.systems.get(where)
    if kind == "cut":
        pair.heal(where)
    elif system is not None and not system.runs:
        pair.fault()
        if system.is_paused:
            system.resume()
        else:
            system.start()


def acting_is_due(pair: World, faults: tuple[str, ...]) -> System | None:
    """Who must act for the other now, because it alone can."""
    for system, other in ((pair.a, pair.b), (pair.b, pair.a)):
        if system.runs and not other.runs and f"cut-{system.side}w" not in faults:
            return system
    return None


def until_acting(system: System) -> None:
    until(lambda: system.acts, "the partner acts")


def until_more(pair: World, count: int) -> None:
    until(lambda: len(pair.emitted()) > count, "more events")


def two_faults(pair: World, first: str, second: str) -> None:
    for system in (pair.a, pair.b):
        system.emit(10)
    pair.until_well()
    pair.close_gate()
    for system in (pair.a, pair.b):
        system.emit(20)
    break_it(pair, first)
    acting = acting_is_due(pair, (first,))
    if acting is not None:
        until_acting(acting)
        pair.open_gate()
        pair.until_got({line.id for line in pair.emitted()})
    for system in pair.systems.values():
        if system.runs:
            system.emit(10, "between")
    break_it(pair, second)
    pair.open_gate()
    for system in pair.systems.values():
        if system.runs:
            system.emit(10, "after")
    acting = acting_is_due(pair, (first, second))
    if acting is not None:
        until_acting(acting)
    else:
        time.sleep(1.5 * pair.a.child.lease_ms / 1000)  # the faults last so long
    mend(pair, first)
    mend(pair, second)
    pair.until_well()
    for system in (pair.a, pair.b):
        system.emit(5, "last")
    pair.until_well()
    pair.check()


@pytest.mark.parametrize(("first", "second"), SUITE)
def test_a10_two_faults(tmp_path: Path, networks: Networks, server: WitnessServer, first: str, second: str) -> None:
    witness = "clarion" if SUITE.index((first, second)) % 2 else "file"
    with world(tmp_path, networks, server=server, witness=witness) as pair:
        two_faults(pair, first, second)


def test_a10_a_system_that_wakes_is_fenced_until_it_has_its_right_again(
    tmp_path: Path, networks: Networks, server: WitnessServer
) -> None:
    with world(tmp_path, networks, server=server, witness="clarion") as pair:
        a, b = pair.a, pair.b
        pair.close_gate()
        a.emit(100)
        owed = pair.emitted_by(a)
        pair.fault()
        a.pause()
        until(lambda: b.acts, "b acts for a")
        a.resume()
        assert not (a.status()["may_deliver"] and b.status()["may_act"])
        pair.open_gate()
        pair.until_got(owed)
        pair.until_well()
        pair.check(strict=True)


def test_a10_a_clarion_server_gets_each_event_once_whoever_sends_it(
    tmp_path: Path, networks: Networks, server: WitnessServer
) -> None:
    options = {"recipients": ("raw", "kept", "clarion")}
    with world(tmp_path, networks, server=server, witness="clarion", options=options) as pair:
        a, b = pair.a, pair.b
        for system in (a, b):
            system.ask("flow", "10")
        for fault in ("kill-a", "pause-b", "cut-ab", "pause-a"):
            seen = len(pair.emitted())
            until_more(pair, seen + 50)
            break_it(pair, fault)
            acting = acting_is_due(pair, (fault,))
            if acting is not None:
                until_acting(acting)
            mend(pair, fault)
            if fault.startswith("kill"):
                pair.systems[fault[-1]].ask("flow", "10")
        for system in (a, b):
            system.ask("halt")
        pair.until_well()
        pair.check()
        print(f"{len(pair.emitted())} events, {pair.doubles()} of them came to who keeps no ids more than once")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("witness", ["file", "clarion"])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a10_every_two_faults(
    tmp_path: Path, networks: Networks, server: WitnessServer, witness: str, first: str, second: str
) -> None:
    with world(tmp_path, networks, server=server, witness=witness) as pair:
        two_faults(pair, first, second)
