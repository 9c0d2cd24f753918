"""Pipelines against a model: random offers, successes, failures, give-ups and crashes (A-07, A-08, A-09)."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.events.distribution import RetryPolicy

from .distribution_model import FIRST, Section, World

SOURCES = ("", "a", "b", "c", "d", "e")
ACTIONS = {
    "emit": 10, "offer": 25, "deliver": 30, "succeed": 15, "fail": 8, "fail_all": 6, "fail_one": 10, "record": 12,
    "bury": 3, "keep": 3, "wait": 8, "wait_long": 2, "crash": 1, "retry_now": 1, "remove": 1, "lose": 1,
    "store": 6, "confirm_later": 8, "again": 2, "take_over": 1,
}  # fmt: skip
POLICIES = st.builds(
    RetryPolicy,
    first_ms=st.just(10),
    max_ms=st.sampled_from((10, 100)),
    give_up_age_ms=st.sampled_from((None, None, 50, 1_000)),
    give_up_attempts=st.sampled_from((None, None, 1, 3)),
)


def made(number: int, rank: int, content: list[int], *, bounded: bool) -> Section:
    sources = [SOURCES[one] for one in content]
    # Clocks are not as orderly as sequences.
    times = [1_000 - 7 * (len(sources) - index) - 31 * index % 90 for index in range(len(sources))]
    return Section(number, rank, FIRST + len(sources) if bounded else None, sources, times)


def act(world: World, action: str, number: int) -> None:
    sections = sorted(world.sections)
    section = sections[number % len(sections)]
    if action == "emit":
        world.emit(section, SOURCES[number // 8 % len(SOURCES)])
    elif action == "offer":
        world.offer(section, number // 8 % 9)
    elif action == "deliver":
        world.deliver(1 + number % 9)
    elif action == "succeed":
        world.succeed()
    elif action == "fail":
        world.fail({index for index in range(9) if number >> index & 1})
    elif action == "lose":
        world.lose({index for index in range(9) if number >> index & 1})
    elif action == "store":
        world.store()
    elif action in ("confirm_later", "again"):
        first = number // 16 % 4
        world.confirm_later(number % 16, first, first + 1 + number // 64 % 6, lost=action == "again")
    elif action == "fail_all":
        world.fail(set())
    elif action == "fail_one":  # what a recipient does that is away, asked at once again and again
        world.deliver(1)
        world.fail(set())
        world.now_ms = max(world.now_ms, world.pipeline.due_ms() or 0)
    elif action == "record":
        world.record()
    elif action in ("bury", "keep"):
        world.answer_give_up(room=action == "bury")
    elif action in ("wait", "wait_long"):
        world.now_ms += number % 30 if action == "wait" else number % 3_000
    elif action == "take_over":
        world.add(made(5, 2, [number >> 2 * bit & 3 for bit in range(number % 10)], bounded=True))
    elif action == "remove":
        world.remove(2)
    elif action == "retry_now":
        world.pipeline.retry_now()
    else:
        world.crash()


@settings(max_examples=250, deadline=None)
@given(POLICIES, st.integers(0, 2**32), st.integers(0, 300))
def test_a08_every_owed_event_until_it_is_confirmed_and_never_again(policy: RetryPolicy, seed: int, steps: int) -> None:
    rng = Random(seed)
    contents = [[rng.randrange(len(SOURCES)) for _ in range(rng.choice((0, 0, 3, 12, 25)))] for _ in range(4)]
    world = World(
        policy,
        [
            made(1, 0, contents[0], bounded=True),
            made(2, 2, contents[1], bounded=True),
            made(3, 3, contents[2], bounded=False),
            made(4, 3, contents[3], bounded=False),
        ],
        replay_rank=rng.choice((1, 3)),
    )
    for _ in range(steps):
        act(world, rng.choices(list(ACTIONS), list(ACTIONS.values()))[0], rng.randrange(2**20))
        world.check()
    world.finish()
    if policy.give_up_age_ms is None and policy.give_up_attempts is None:
        assert not world.dead
