"""SIGKILL of a multiplexer at one of its steps, and again at another, or of its sender (A-08, A-09, A-11).

Each world begins with what earlier lives left: see `World.leave`. All pairs of steps are in the soak; here are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.events_harness import Nursery, until
from tests.integration.events.multiplexer_harness import PROCESSES
from tests.integration.events.multiplexer_world import World

STEPS = {
    "271": (1,),
    "231a": (1,),
    "272": (1,),
    "214": (1, 5),
    "251": (1, 3),
    "252": (1, 3),
    "253": (1, 3),
    "254": (1, 9),
    "255": (1, 9),
    "216b": (1, 9),
    "256": (1, 5),
    "217": (1, 3),
    "240": (1,),
}
"""Of a multiplexer, and at which passings it is killed: the first, while it replays, and a later one."""
KILLS = [f"events.{step}=kill@{passing}" for step, passings in STEPS.items() for passing in passings]
LATER = [f"events.{step}=kill@{passings[-1]}" for step, passings in STEPS.items()]
EVERYBODY = ("events.217", "events.240")
"""Only when all recipients have confirmed."""
REPLAYING = ("events.271", "events.231a", "events.272")
"""Only when something was left."""
SENDER = {
    "211": 9,
    "212": 9,
    "213": 9,
    "231a": 1,
    "231b": 1,
    "214": 3,
    "215": 3,
    "216": 3,
    "216b": 3,
    "217": 2,
    "240": 1,
}
SENDER_KILLS = [f"events.{step}=kill@{passing}" for step, passing in SENDER.items()]

TWICE = [("early", "254@9", "217@1"), ("late", "252@3", "272@1"), ("late-forward", "256@5", "255@1")]
"""Of all, in the suite."""
BOTH = [("early", "255@1", "216"), ("late-forward", "217@1", "231a")]


def arm(step: str) -> str:
    name, _, passing = step.partition("@")
    return f"events.{name}=kill@{passing}"


def modes_of(*arms: str) -> tuple[str, ...]:
    """Both switches, each on and off; where confirmations are told, also each by itself."""
    return ("early-forward", "late", "late-forward") if any("256" in one for one in arms) else ("early", "late-forward")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(PROCESSES) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def left(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    """What was left before a test begins, by mode."""
    made: dict[str, World] = {}

    def find(mode: str) -> World:
        if mode not in made:
            made[mode] = World(nursery, tmp_path_factory.mktemp(mode), mode)
            made[mode].leave()
        return made[mode]

    return find


def killed_twice(world: World, first: str, second: str) -> None:
    """Unless the first step needs everybody, its life leaves events that the second one has to replay."""
    refusing = () if first.startswith(EVERYBODY) else ("odd",)
    world.collect(arm=first, refusing=refusing)
    world.send()
    world.until_died(world.collector, first)
    world.collect(arm=second)
    world.until_died(world.collector, second, surely=bool(refusing) or not second.startswith(REPLAYING))
    world.collect()
    world.end()
    world.check()


def both_killed(world: World, arm: str, of_sender: str) -> None:
    """Both have a step to die at; whoever is dead is started again, and comes to no step any more."""
    world.collect(arm=arm)
    world.send(arm=of_sender)
    waiting = {world.collector: world.collect, world.sender: world.send}

    def over() -> bool:
        for place, start in list(waiting.items()):
            if world.died(place):
                del waiting[place]
                start()
        return not waiting

    until(over, f"they die at {arm} and {of_sender}")
    world.end()
    world.check()


@pytest.mark.parametrize(("mode", "first", "second"), TWICE)
def test_a11_kill_at_two_steps(
    left: Callable[[str], World], tmp_path: Path, mode: str, first: str, second: str
) -> None:
    killed_twice(left(mode).copy(tmp_path / "world"), arm(first), arm(second))


@pytest.mark.parametrize(("mode", "step", "of_sender"), BOTH)
def test_a11_kill_at_a_step_of_each(
    left: Callable[[str], World], tmp_path: Path, mode: str, step: str, of_sender: str
) -> None:
    of_sender = f"events.{of_sender}=kill@{SENDER[of_sender]}"
    both_killed(left(mode).copy(tmp_path / "world"), arm(step), of_sender)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", KILLS)
def test_a11_kill_at_every_two_steps(left: Callable[[str], World], tmp_path: Path, first: str) -> None:
    for number, second in enumerate(LATER):
        for mode in modes_of(first, second):
            killed_twice(left(mode).copy(tmp_path / f"world-{number}-{mode}"), first, second)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", LATER)
def test_a11_kill_at_every_step_of_each(left: Callable[[str], World], tmp_path: Path, step: str) -> None:
    for number, of_sender in enumerate(SENDER_KILLS):
        for mode in modes_of(step):
            both_killed(left(mode).copy(tmp_path / f"world-{number}-{mode}"), step, of_sender)
