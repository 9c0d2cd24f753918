"""Random lives of a message manager's state against a naive model (A-05, A-08, B-04, B-14, B-20).

Publishing, transactions, priorities, groups, selectors, times, consumers that come, go and claim what they hold, dead
messages, retention, compaction, checkpoints made while entries go on, damage, crashes: one step at a time, compared
after each. A failure names its seed and the last 50 steps; `World(seed).run(steps)` plays it again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.core.model_world import FEATURES, STEPS, World


@pytest.mark.parametrize("decade", range(10))
def test_b04_random_lives_match_a_naive_model(decade: int) -> None:
    for seed in range(10 * decade, 10 * decade + 10):
        World(seed).run(1_000)


NAMES = [name for name, weight, _ in STEPS for _ in range(weight)]
OPENING = [("arrive", 1), ("publish", 2), ("arrive", 3), ("sync_all", 0), ("turn", 4), ("sync_all", 0), ("turn", 5)]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 99), st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 30)), min_size=1, max_size=150))
def test_b04_short_lives_match_a_naive_model(seed: int, steps: list[tuple[str, int]]) -> None:
    """The same, where a failure is made as short as it can be: each step has a small seed of its own."""
    world = World(seed)

    def in_turn() -> Iterator[str]:
        for name, own in OPENING + steps:
            world.random.seed(own)
            yield name

    world.play(in_turn())


def test_b04_a_life_can_be_played_again() -> None:
    """A seed is a whole story: same entries, same bytes, same end."""
    one, two = World(7), World(7)
    one.run(500)
    two.run(500)
    assert [(record.kind, record.head) for record in one.log] == [(record.kind, record.head) for record in two.log]
    assert list(one.state.dump()) == list(two.state.dump())


def test_b04_random_lives_have_all_there_is() -> None:
    """Every feature is in some of the seeds above, and missing in others."""
    worlds = [World(seed).features for seed in range(100)]
    assert all(20 < sum(feature in features for features in worlds) < 80 for feature in FEATURES)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("hundred", range(10, 30))
def test_b04_many_long_random_lives_match_a_naive_model(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        World(seed).run(3_000)
