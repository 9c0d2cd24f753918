"""What slots of a partner's events mean when they are used again (A-07, A-10)."""

from __future__ import annotations

import pytest

from clarion.errors import EventError
from clarion.events.pair.partner_routes import PartnerRoutes
from clarion.events.routing import Route, Routes


def told(*notes: Routes) -> PartnerRoutes:
    """Kept and read again after each."""
    known = PartnerRoutes()
    for note in notes:
        known = PartnerRoutes.load(known.followed_by(note).dump())
    return known


def test_a10_a_slot_that_is_used_again_means_the_new_one_only_in_new_events() -> None:
    first = Routes(3, [Route(0, "log"), Route(1, "pager")])
    without = Routes(4, [Route(0, "log")])
    again = Routes(6, [Route(0, "log"), Route(1, "chat", "severity_level >= 40")])
    for notes in ((first, without, again), (first, again)):  # the one in between may have been missed
        known = told(*notes)
        assert known.names(0b11, 3) == ["log"], "it was for the pager"
        assert known.names(0b11, 5) == known.names(0b11, 6) == ["log", "chat"]
    later = told(first, again, Routes(9, [Route(0, "log"), Route(1, "chat"), Route(2, "new")]))
    assert later.names(0b11, 3) == ["log"] and later.names(0b111, 7) == ["log", "chat", "new"]


def test_a10_who_had_nobody_for_a_while_does_not_give_old_events_to_who_comes() -> None:
    known = told(Routes(3, [Route(0, "pager")]), Routes(4), Routes(5, [Route(0, "chat")]))
    assert known.names(1, 3) == [] and known.names(1, 5) == ["chat"]


def test_a10_a_partner_with_a_new_memory_begins_anew() -> None:
    known = told(Routes(7, [Route(0, "log")]), Routes(1, [Route(0, "pager")]))
    assert known.names(1, 1) == ["pager"]


def test_a10_what_is_kept_of_a_partner_is_a_plain_note_or_is_refused() -> None:
    routes = Routes(3, [Route(0, "log")])
    assert PartnerRoutes.load(routes.dump()) == told(routes)
    assert told(routes).dump() == routes.dump()
    with pytest.raises(EventError):
        PartnerRoutes.load(routes.dump() + b"\xc1\1\0\0\0CLNESNC1")
    with pytest.raises(EventError):
        PartnerRoutes.load(b"CLNESNC1"[1:] + b"\xff\0\0\0CLNESNC1")
