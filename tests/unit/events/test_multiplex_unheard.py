"""Forwarded confirmations are kept until they were heard (A-11)."""

from __future__ import annotations

import msgspec
import pytest

from clarion.events.multiplex.unheard import PRODUCERS_MAX, Unheard

A, B = 1 << 64, 2 << 64


def test_a11_what_was_not_heard_is_told_again() -> None:
    unheard = Unheard()
    unheard.add("log", [(A, 1, 10), (B, 5, 6)])
    unheard.add("log", [(A, 20, 30)])
    unheard.add("pager", [(A, 3, 4)])
    unheard.heard("log", [(A, 4, 25), (7 << 64, 1, 2)])
    assert dict(unheard.of(A)) == {"log": [(A, 1, 4), (A, 25, 30)], "pager": [(A, 3, 4)]}
    unheard.heard("pager", [(A, 1, 100)])
    unheard.heard("log", [(A, 1, 100)])
    assert unheard.of(A) == [] and len(unheard) == 1
    unheard.forget(B)
    assert len(unheard) == 0


def test_a11_what_was_not_heard_survives_a_restart_and_the_newest_goes_first() -> None:
    unheard = Unheard()
    unheard.add("log", [(A, 1, 4), (A, 9, 12)])
    unheard.add("pager", [(B, 2, 3)])
    again = Unheard()
    again.load(unheard.dump())
    assert again.of(A) == unheard.of(A) and again.of(B) == unheard.of(B)
    small = Unheard()
    small.load(unheard.dump(40))
    assert small.of(B) == unheard.of(B) and small.of(A) == []
    for value in (b"", b"\xc1", msgspec.msgpack.encode([(b"x", "log", [1])])):
        with pytest.raises((msgspec.MsgspecError, ValueError)):
            Unheard().load(value)


def test_a11_of_too_many_producers_the_oldest_are_forgotten() -> None:
    unheard = Unheard()
    unheard.add("log", [(number << 64, 1, 2) for number in range(1, PRODUCERS_MAX + 3)])
    assert len(unheard) == PRODUCERS_MAX and unheard.of(A) == []
