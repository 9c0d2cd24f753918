"""SIGKILL of the systems of a pair at every labelled step of their work, once and twice (A-08, A-09, A-10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.pair_harness import NEEDS, Networks, world
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


@pytest.mark.parametrize("step", SINGLE)
def test_a10_killed_at_a_step_of_the_pair(tmp_path: Path, networks: Networks, step: str) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        Story(pair, killed_at(step)).tell()


@pytest.mark.parametrize(("first", "second"), DOUBLE)
def test_a10_the_partner_is_killed_at_two_steps(tmp_path: Path, networks: Networks, first: str, second: str) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        Story(pair, partner(first), partner(second)).tell()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", sorted({*ORIGIN, *PARTNER} - set(SINGLE)))
def test_a10_killed_at_every_other_step_of_the_pair(tmp_path: Path, networks: Networks, step: str) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        Story(pair, killed_at(step)).tell()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", list(PARTNER))
def test_a10_the_partner_is_killed_at_every_two_steps(tmp_path: Path, networks: Networks, first: str) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        for second in PARTNER:
            Story(pair, partner(first), partner(second)).tell()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", list(PARTNER))
def test_a10_both_are_killed_at_every_step_of_each(tmp_path: Path, networks: Networks, step: str) -> None:
    with world(tmp_path, networks, witness="file") as pair:
        for other in ORIGIN:
            Story(pair, partner(step), origin(other)).tell()
