"""SIGKILL of a process with an event system at every labelled step of an event's way (A-08, A-09).

Each world begins with what an earlier process left: events recorded while it initialised, events that some recipients
have and others have not. The next life ends at its step; the one after that must bring everything to everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.events_harness import KILLED, Nursery, World

STEPS = {
    "211": (1, 9),
    "212": (1, 9),
    "213": (1, 9),
    "214": (1, 3),
    "215": (1, 8),
    "216": (1, 8),
    "216b": (1, 8),
    "217": (1, 4),
    "231a": (1, 2),
    "231b": (1, 2),
    "240": (1,),
}
"""At which passings a process is killed: the first, and a later one that every life comes to."""
SINGLE = [f"events.{step}=kill@{passing}" for step, passings in STEPS.items() for passing in passings]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def left(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> World:
    """What a process leaves that was killed while `two` confirmed nothing."""
    world = World(tmp_path_factory.mktemp("left"))
    world.note_start()
    assert nursery.run(world.life(label="a", refusing=("two",), beside=True, end="killed")) == KILLED
    return world


def live_and_die(nursery: Nursery, world: World, label: str, arm: str, *, surely: bool = True) -> None:
    """One life that ends at its step; if not `surely`, it may have nothing to replay, and end well."""
    world.note_start()
    status = nursery.run(world.life(label=label, arm=arm))
    assert status == KILLED or (status == 0 and not surely), f"{status} instead of {arm}: {world.notes()}"
    world.note_end()


def live_on(nursery: Nursery, world: World, label: str) -> None:
    """A life that nothing happens to, until everything is delivered."""
    world.note_start()
    assert nursery.run(world.life(label=label)) == 0, world.notes()


@pytest.mark.parametrize("arm", SINGLE)
def test_a08_a09_kill_at_a_step(nursery: Nursery, left: World, tmp_path: Path, arm: str) -> None:
    world = left.copy(tmp_path / "world")
    world.note_end()
    live_and_die(nursery, world, "b", arm)
    live_on(nursery, world, "c")
    world.check()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", SINGLE)
def test_a08_a09_kill_at_two_steps(nursery: Nursery, left: World, tmp_path: Path, first: str) -> None:
    for number, second in enumerate(SINGLE):
        world = left.copy(tmp_path / f"world{number}")
        world.note_end()
        live_and_die(nursery, world, "b", first)
        live_and_die(nursery, world, "c", second, surely=False)
        live_on(nursery, world, "d")
        world.check()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
def test_a08_a09_one_life_after_the_other_is_killed(nursery: Nursery, left: World, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    world = left.copy(tmp_path / "world")
    world.note_end()
    for number in range(20):
        live_and_die(nursery, world, f"b{number:02}", rng.choice(SINGLE), surely=False)
    live_on(nursery, world, "c")
    world.check()
