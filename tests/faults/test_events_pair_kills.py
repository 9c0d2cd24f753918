"""SIGKILL of the systems of a pair at every labelled step of their work, once and twice (A-08, A-09, A-10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.pair_harness import world
from tests.faults.pair_networks import NEEDS, Networks, WitnessServer
from tests.faults.pair_story import Story

pytestmark = NEEDS

ORIGIN = {
    "pair.before_put": 5,
    "pair.before_stored": 5,
    "pair.after_stored": 5,
    "pair.before_catch_up": 1,
    "pair.before_note": 1,
    "pair.after_note": 1,
    "pair.before_apply": 1,
    "pair.after_apply": 1,
}
"""Steps of who dies with events that are owed, and returns; and when it is killed there."""
PARTNER = {
    # It holds what the other records …
    "pair.before_note_kept": 1,
    "pair.after_note_kept": 1,
    "pair.before_store": 5,
    "pair.after_store": 5,
    "pair.before_send": 2,
    # … acts for it …
    "pair.before_lease": 3,
    "pair.after_lease": 3,
    "pair.before_remember": 1,
    "pair.before_start_replay": 1,
    "231c": 1,
    # … replays its events …
    "216": 5,
    "216b": 5,
    # … and gives them back.
    "pair.before_stop_replay": 1,
    "pair.before_give_back": 1,
    "pair.before_forget": 1,
}
"""Steps of the partner of that one."""
SINGLE = (
    "pair.after_stored",
    "pair.after_store",
    "pair.before_start_replay",
    "pair.before_give_back",
    "pair.after_apply",
    "pair.before_forget",
)
DOUBLE = [("216b", "pair.before_forget")]
"""Of all, in the suite."""


def origin(step: str) -> tuple[str, str]:
    return "a", f"events.{step}=kill@{ORIGIN[step]}"


def partner(step: str) -> tuple[str, str]:
    return "b", f"events.{step}=kill@{PARTNER[step]}"


def killed_at(step: str) -> tuple[str, str]:
    return origin(step) if step in ORIGIN else partner(step)


Tell = Callable[..., None]


@pytest.fixture
def tell(tmp_path: Path, networks: Networks, server: WitnessServer, witness: str, first: str) -> Iterator[Tell]:
    """Tells stories of one pair, whose recipients are one that keeps no ids, one that does, and a Clarion server."""
    options = {"recipients": ("raw", "kept", "clarion")}
    with world(tmp_path, networks, server=server, witness=witness, options=options) as pair:
        yield lambda *deaths: Story(pair, *deaths, first=first).tell()


IN_TURN = pytest.mark.parametrize(("witness", "first"), [("file", "clarion"), ("clarion", "raw")])


@pytest.mark.parametrize("first", ["clarion"])
@pytest.mark.parametrize(("step", "witness"), [(step, ("file", "clarion")[at % 2]) for at, step in enumerate(SINGLE)])
def test_a10_killed_at_a_step_of_the_pair(tell: Tell, step: str) -> None:
    tell(killed_at(step))


@pytest.mark.parametrize(("witness", "first"), [("clarion", "clarion")])
@pytest.mark.parametrize("steps", DOUBLE)
def test_a10_the_partner_is_killed_at_two_steps(tell: Tell, steps: tuple[str, str]) -> None:
    tell(*map(partner, steps))


@pytest.mark.soak
@pytest.mark.timeout(600)
@IN_TURN
@pytest.mark.parametrize("step", sorted({*ORIGIN, *PARTNER} - set(SINGLE)))
def test_a10_killed_at_every_other_step_of_the_pair(tell: Tell, step: str) -> None:
    tell(killed_at(step))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@IN_TURN
@pytest.mark.parametrize("step", list(PARTNER))
def test_a10_the_partner_is_killed_at_every_two_steps(tell: Tell, step: str) -> None:
    for other in PARTNER:
        tell(partner(step), partner(other))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@IN_TURN
@pytest.mark.parametrize("step", list(PARTNER))
def test_a10_both_are_killed_at_every_step_of_each(tell: Tell, step: str) -> None:
    for other in ORIGIN:
        tell(partner(step), origin(other))
