"""The benchmark of a process that has nothing left, tiny, for Clarion: every event is kept, however it ends."""

from __future__ import annotations

import pytest

from benchmarks import never_mute

EVENTS = 50


@pytest.mark.root
@pytest.mark.parametrize(("away", "killed"), [(True, True), (True, False), (False, True)])
def test_a03_events_of_a_starving_process_are_all_there_in_the_end(away: bool, killed: bool) -> None:
    seen = never_mute.run(never_mute.clarion_contestant(), EVENTS, away=away, killed=killed)
    assert seen == never_mute.Run(told=EVENTS, stored=EVENTS, doubles=0, untold=0), seen


def test_a03_the_table_has_a_line_for_each_place() -> None:
    one = never_mute.Run(told=3, stored=2, doubles=0, untold=1, errors={"MemoryError": 7})
    runs = {(place.text, killed): one for place in never_mute.PLACES for killed in (True, False)}
    outcomes: dict[str, never_mute.Outcome] = {"somebody": runs, "nobody": "it is missing"}
    assert never_mute.table(outcomes, {"somebody": "much", "nobody": "nothing"}, 10).row_count == 4
