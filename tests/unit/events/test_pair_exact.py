"""What a system confirms of its partner's events: what it delivered, and nothing that lies beside it (A-10)."""

from __future__ import annotations

from clarion.events.distribution import Confirm, Pipeline, RetryPolicy


def pipeline(*, exact: bool) -> Pipeline:
    made = Pipeline(0, "x", RetryPolicy(), lambda section, at: ("source", 0))
    made.add_section(7, 2, 1, exact=exact)
    return made


def confirmed(made: Pipeline) -> list[tuple[int, int]]:
    """Of ten events the fifth and sixth are owed; the others are for nobody here."""
    made.offer_runs(7, [(5, 7)], 11)
    batch = made.next_batch(0, 100)
    assert batch is not None and batch.count == 2
    (instruction,) = made.delivered(batch)
    assert isinstance(instruction, Confirm)
    return list(instruction.ranges)


def test_a10_events_of_a_partner_that_are_for_nobody_here_are_not_confirmed() -> None:
    assert confirmed(pipeline(exact=True)) == [(5, 7)]


def test_a10_own_events_that_are_for_others_are_settled_along_the_way() -> None:
    assert confirmed(pipeline(exact=False)) == [(1, 11)]
