"""What a partner gives back: whole, or nothing."""

from __future__ import annotations

import pytest

from clarion import limits
from clarion.errors import BadFrame
from clarion.events.link.confirmations import Confirmations, pack_confirmations, parts_of
from clarion.events.link.frames import FIRST, LAST
from clarion.events.pair.given_back import GivenBack

STATE = [("mail", [(7, first, first + 1) for first in range(1, 200, 2)]), ("log", [(7, 1, 200)])]


def frames_of(state: list[tuple[str, list[tuple[int, int, int]]]], token: int = 3) -> list[tuple[int, memoryview]]:
    parts = list(parts_of(state, 1_000))
    flags = [(FIRST if part is parts[0] else 0) | (LAST if part is parts[-1] else 0) for part in parts]
    return [(flag, memoryview(pack_confirmations(part, 9, token))) for flag, part in zip(flags, parts, strict=True)]


def ranges(state: Confirmations) -> dict[str, list[tuple[int, int, int]]]:
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name, some in state:
        found.setdefault(name, []).extend(some)
    return found


def test_a10_parts_are_whole_with_the_last_and_only_once() -> None:
    back, link = GivenBack(), object()
    *parts, last = frames_of(STATE)
    assert len(parts) >= 3
    assert [back.take(link, *part) for part in parts] == [None] * len(parts)
    whole = back.take(link, *last)
    assert whole is not None and whole[:2] == (9, 3) and ranges(whole[2]) == ranges(STATE)
    assert back.take(link, *last) is None


@pytest.mark.parametrize("missing", [0, 1])
def test_a10_a_state_with_a_hole_never_counts(missing: int) -> None:
    """A part is missing only where a link broke: what follows comes over another one."""
    back = GivenBack()
    parts = frames_of(STATE)
    for part in parts[:missing]:
        assert back.take("the first link", *part) is None
    assert [back.take("the next link", *part) for part in parts[missing + 1 :]] == [None] * (len(parts) - missing - 1)
    *again, last = parts
    assert [back.take("the next link", *part) for part in again] == [None] * len(again)
    assert back.take("the next link", *last) is not None


def test_a10_a_newer_attempt_begins_anew() -> None:
    back, link = GivenBack(), object()
    old, new = frames_of(STATE, token=3), frames_of([("mail", [(7, 1, 2)])], token=4)
    assert back.take(link, *old[0]) is None
    assert back.take(link, *new[0]) == (9, 4, [("mail", [(7, 1, 2)])])
    assert back.take(link, *old[-1]) is None


def test_a10_a_state_beyond_all_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_PAIR_STATE_RANGES_MAX", 50)
    back = GivenBack()
    with pytest.raises(BadFrame):
        for part in frames_of(STATE):
            back.take("link", *part)
