"""What a destination remembers of producers: doubles are known, and a forgotten producer is told so (A-06)."""

from __future__ import annotations

import pytest

from clarion import limits
from clarion.core.producers import Producers, Verdict


def test_a06_doubles_torn_and_new_batches_are_told_apart() -> None:
    producers = Producers()
    producers.record(1, 1, 11, floor=1)
    producers.record(1, 21, 31, floor=1)
    judged = [(1, 11), (3, 5), (11, 21), (5, 15), (11, 31), (21, 31), (31, 40)]
    verdicts = [producers.judge(1, first, end, 1, resend=True) for first, end in judged]
    assert verdicts == [
        Verdict.DOUBLE, Verdict.DOUBLE, Verdict.NEW, Verdict.TORN, Verdict.TORN, Verdict.DOUBLE, Verdict.NEW,
    ]  # fmt: skip
    assert producers.judge(1, 31, 32 + limits.PRODUCER_WINDOW_MESSAGES, 1, resend=False) is Verdict.TOO_FAR


def test_a06_what_is_below_the_floor_is_stored() -> None:
    producers = Producers()
    producers.record(1, 1, 11, floor=1)
    producers.record(1, 11, 21, floor=11)
    assert producers.judge(1, 1, 11, 11, resend=True) is Verdict.DOUBLE
    assert producers.judge(1, 5, 15, 11, resend=True) is Verdict.DOUBLE
    assert producers.judge(1, 5, 25, 11, resend=True) is Verdict.TORN
    assert producers.missing(1, 5, 25) == [(21, 25)]


def test_b02_a_floor_that_was_said_before_counts_for_the_window() -> None:
    """A producer that lost its memory begins with a low floor, far above which it goes on."""
    producers = Producers()
    far = 3 * limits.PRODUCER_WINDOW_MESSAGES
    producers.record(1, far, far + 10, floor=far)
    assert producers.judge(1, far + 5, far + 20, 1, resend=False) is Verdict.TORN
    assert producers.judge(1, far + 10, far + 20, 1, resend=False) is Verdict.NEW
    assert producers.judge(2, far + 10, far + 20, 1, resend=False) is Verdict.TOO_FAR


@pytest.mark.parametrize("reloaded", [False, True])
def test_a06_the_longest_silent_producer_is_forgotten_and_its_resend_is_an_error(reloaded: bool) -> None:
    producers = Producers(maximum=3)
    for producer in (1, 2, 3):
        producers.record(producer, 1, 2, floor=1)
    producers.record(1, 2, 3, floor=1)  # it spoke again, so the longest silent one is now 2
    assert producers.judge(9, 1, 2, 1, resend=True) is Verdict.NEW  # nobody was forgotten yet
    producers.record(4, 1, 2, floor=1)
    if reloaded:
        producers = Producers.load(producers.dump())
    assert producers.judge(2, 1, 2, 1, resend=True) is Verdict.FORGOTTEN
    assert producers.judge(2, 1, 2, 1, resend=False) is Verdict.NEW
    assert producers.judge(1, 1, 3, 1, resend=True) is Verdict.DOUBLE
    assert (len(producers), producers.forgotten) == (3, 1)


def test_a06_a_closed_producer_is_not_counted_as_forgotten() -> None:
    producers = Producers(maximum=1)
    producers.record(1, 1, 2, floor=1)
    producers.close(1)
    producers.record(2, 1, 2, floor=1)
    assert (len(producers), producers.forgotten) == (1, 0)
