"""Distribution: who gets what is decided when it is recorded; removing, being absent, giving up (A-07, A-08)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from clarion.errors import NoSuchDeadEvent, NoSuchRecipient, RecipientOwes
from clarion.events import Event, EventSystem, RetryPolicy
from clarion.events.control import ask
from clarion.events.memory.directory import Directory
from tests.integration.events.systems import (
    FAST,
    Keeper,
    Systems,
    delivered,
    delivering,
    recipient_status,
    until,
)


def emit_some(system: EventSystem, count: int = 5, type_: str = "a") -> list[str]:
    return [system.emit(type_, source="s", data=number) for number in range(count)]


# --- order ------------------------------------------------------------------------------------------------


def test_a09_what_a_process_emits_before_its_engine_runs_is_new(systems: Systems) -> None:
    """It goes after what the process before it left, also after an event of that which fails a few times."""
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper)
    delivering(system)
    old = [system.emit("old", source=source) for source in ("a", "b")]
    system.close()
    keeper.closed = False
    keeper.refuses = lambda event: event.source == "a" and keeper.tried < 6
    directory = Directory.open(systems.path)
    try:
        assert directory.try_engine()
        system = systems.open(keeper)
        new = system.emit("new", source="c")
    finally:
        directory.close()
    delivered(system)
    assert keeper.tried >= 6
    assert keeper.ids == [old[1], old[0], new]


# --- filters ----------------------------------------------------------------------------------------------


def test_a07_a_filter_decides_when_an_event_is_recorded(systems: Systems) -> None:
    wide, narrow = Keeper("wide"), Keeper("narrow", "severity_level >= 40")
    narrow.closed = True
    system = systems.open(wide, narrow)
    delivering(system)
    ids = {level: system.emit("a", severity=level) for level in ("info", "error", "alert")}
    system.close()
    # It wants something else now: what was recorded before stays as it was decided.
    other = Keeper("narrow", "severity = 'info'")
    system = systems.open(wide, other)
    delivering(system)
    later = {level: system.emit("a", severity=level) for level in ("info", "error", "alert")}
    delivered(system)
    assert sorted(other.ids) == sorted([ids["error"], ids["alert"], later["info"]])
    assert sorted(wide.ids) == sorted([*ids.values(), *later.values()])


def test_a07_a_recipient_that_comes_later_gets_what_is_recorded_from_then_on(systems: Systems) -> None:
    first = Keeper("first")
    first.closed = True
    system = systems.open(first)
    delivering(system)
    before = emit_some(system)
    system.close()
    first.closed = False
    late = Keeper("late")
    system = systems.open(first, late)
    after = emit_some(system)  # at once: the engine may not have started yet
    delivered(system)
    assert late.ids == after and sorted(first.ids) == sorted(before + after)


def test_a07_emit_many_decides_for_each(systems: Systems) -> None:
    wide, narrow = Keeper("wide"), Keeper("narrow", "severity_level >= 40")
    system = systems.open(wide, narrow)
    delivering(system)
    ids = system.emit_many([("a", "s", "error" if number % 3 else "info", number) for number in range(30)])
    delivered(system)
    assert wide.ids == ids and narrow.data == [number for number in range(30) if number % 3]


def test_a07_what_was_recorded_before_anybody_was_known_is_decided_once(systems: Systems) -> None:
    lonely = systems.open()
    ids = [lonely.emit("a", severity=level) for level in ("info", "error")]
    narrow = Keeper("narrow", "severity_level >= 40")
    narrow.closed = True
    system = systems.open(narrow)
    until(lambda: narrow.tried, "tried")
    system.close()
    other = Keeper("narrow", "severity = 'info'")
    system = systems.open(other)
    delivered(system)
    assert other.ids == ids[1:]


# --- removing ---------------------------------------------------------------------------------------------


def test_a07_removing_a_recipient_that_owes_needs_force_and_is_logged(
    systems: Systems, caplog: pytest.LogCaptureFixture
) -> None:
    dead, alive = Keeper("dead"), Keeper("alive")
    dead.closed = True
    system = systems.open(dead, alive)
    ids = emit_some(system, 150)
    # At once: what the engine has not even seen is owed too.
    with pytest.raises(RecipientOwes, match="150"):
        ask(system.path, "remove_recipient", {"name": "dead"}) if system.is_delivering else _remove(system, "dead")
    assert system.status()["sections"][0]["waiting"] or system.status()["sections"][1]["waiting"]
    with caplog.at_level(logging.WARNING, "clarion.events"):
        assert ask(system.path, "remove_recipient", {"name": "dead", "force": True}) == {"owed": 150}
    assert any("dead was removed; 150 events" in record.getMessage() for record in caplog.records)
    delivered(system)
    assert alive.ids == ids and not dead.events
    assert [one["name"] for one in system.status()["recipients"]] == ["alive"]
    with pytest.raises(NoSuchRecipient):
        ask(system.path, "remove_recipient", {"name": "dead"})
    assert ask(system.path, "remove_recipient", {"name": "alive"}) == {"owed": 0}
    # Nobody is there: events wait for whoever comes, undecided.
    emit_some(system)


def _remove(system: EventSystem, name: str) -> Any:
    delivering(system)
    return ask(system.path, "remove_recipient", {"name": name})


def test_a07_a_removed_recipient_does_not_come_back_with_the_engine(systems: Systems) -> None:
    one, two = Keeper("one"), Keeper("two")
    system = systems.open(one, two)
    delivering(system)
    assert ask(system.path, "remove_recipient", {"name": "two"}) == {"owed": 0}
    engine, thread = system._engine, system._thread
    assert engine is not None and thread is not None and thread.loop is not None
    thread.loop.call_soon_threadsafe(engine.fail, RuntimeError("a fault of ours"))
    until(lambda: system._engine is not engine, "it stops")
    delivering(system)
    ids = emit_some(system)
    delivered(system)
    assert one.ids == ids and not two.events


def test_a07_one_that_comes_back_after_it_was_removed_is_a_new_one(systems: Systems) -> None:
    one, two = Keeper("one"), Keeper("two")
    one.closed = two.closed = True
    system = systems.open(one, two)
    delivering(system)
    before = emit_some(system)
    ask(system.path, "remove_recipient", {"name": "two", "force": True})
    system.close()
    one.closed = two.closed = False
    system = systems.open(one, two)
    after = emit_some(system)
    delivered(system)
    assert two.ids == after and sorted(one.ids) == sorted(before + after)


def test_a07_recipients_come_and_go_more_often_than_there_are_slots(systems: Systems) -> None:
    stays = Keeper("stays")
    total = 0
    for number in range(14):
        fresh = [Keeper(f"r{number}-{one}") for one in range(5)]
        system = systems.open(stays, *fresh)
        total += len(emit_some(system))
        delivered(system)
        assert all(len(one.events) == 5 for one in fresh)
        for one in fresh:
            ask(system.path, "remove_recipient", {"name": one.name})
        system.close()
    assert len(stays.events) == total


# --- absent -----------------------------------------------------------------------------------------------


def test_a07_an_absent_recipient_keeps_its_events(systems: Systems) -> None:
    here, away = Keeper("here"), Keeper("away")
    away.closed = True
    system = systems.open(here, away)
    delivering(system)
    ids = emit_some(system)
    until(lambda: here.ids == ids, "delivered to who is here")
    system.close()
    system = systems.open(here)
    delivering(system)
    ids += emit_some(system)
    until(lambda: here.ids == ids, "delivered to who is here")
    until(lambda: recipient_status(system, "away")["owed"] == 10, "owed")
    assert recipient_status(system, "away")["state"] == "absent"
    with pytest.raises(RecipientOwes):
        ask(system.path, "remove_recipient", {"name": "away"})
    system.close()
    away.closed = False
    system = systems.open(away, here)
    delivered(system)
    assert away.ids == ids == here.ids


# --- closing ----------------------------------------------------------------------------------------------


def test_a08_closing_waits_for_what_is_being_delivered_so_that_nothing_comes_twice(systems: Systems) -> None:
    import threading

    got: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        began.set()
        go_on.wait(10)
        got.append(event.id)

    system = systems.open(slow)
    ids = emit_some(system)
    assert began.wait(10)
    letting = threading.Timer(0.2, go_on.set)
    letting.start()
    system.close()
    letting.join()
    system = systems.open(slow)
    delivered(system)
    assert sorted(got) == sorted(ids) and len(set(got)) == len(got)


def test_a12_a_recipient_that_is_cancelled_or_exits_inside_is_tried_again(systems: Systems) -> None:
    import asyncio

    class Odd:
        """Only the one method."""

        def __init__(self) -> None:
            self.errors: list[BaseException] = [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt()]
            self.ids: list[str] = []

        async def deliver(self, events: list[Event]) -> None:
            if self.errors:
                raise self.errors.pop()
            self.ids += [event.id for event in events]

    odd = Odd()
    system = systems.open(odd)
    ids = emit_some(system, 1)
    delivered(system)
    assert odd.ids == ids and not odd.errors


# --- giving up --------------------------------------------------------------------------------------------


def give_up_one(systems: Systems, policy: RetryPolicy) -> tuple[EventSystem, Keeper, list[str]]:
    """Five events, of which the third cannot be processed."""
    keeper = Keeper("keeper")
    keeper.refuses = lambda event: event.data == 2
    system = systems.open(keeper, retry=policy)
    ids = [system.emit("a", source=f"s{number}", data=number) for number in range(5)]
    until(lambda: system.is_delivering and recipient_status(system, "keeper")["dead"] == 1, "given up")
    delivered(system)
    assert sorted(keeper.data) == [0, 1, 3, 4]
    return system, keeper, ids


def test_a07_an_event_that_fails_too_often_is_given_up_listed_and_sent_again(systems: Systems) -> None:
    system, keeper, ids = give_up_one(systems, RetryPolicy(first_ms=5, max_ms=20, give_up_attempts=3))
    (dead,) = ask(system.path, "dead")
    assert (dead["id"], dead["type"], dead["recipient"], dead["attempts"]) == (ids[2], "a", "keeper", 3)
    assert "failed 3 times" in dead["reason"] and "keeper is closed" in dead["reason"] and not dead["resent"]
    # It survives a restart, fails again, and is dead again.
    system.close()
    system = systems.open(keeper, retry=RetryPolicy(first_ms=5, max_ms=20, give_up_attempts=2))
    delivering(system)
    (again,) = ask(system.path, "dead")
    assert again == dead
    assert ask(system.path, "dead_resend", {"numbers": [dead["number"]]}) == {"count": 1}
    until(lambda: ask(system.path, "dead")[0]["attempts"] == 2, "given up again")
    keeper.refuses = lambda event: False
    assert ask(system.path, "dead_resend") == {"count": 1}
    until(lambda: ids[2] in keeper.ids, "delivered in the end")
    until(lambda: not ask(system.path, "dead"), "forgotten when it is confirmed")
    assert sorted(keeper.ids) == sorted(ids)


def test_a07_a_resent_event_survives_a_restart(systems: Systems) -> None:
    system, keeper, ids = give_up_one(systems, RetryPolicy(first_ms=5, max_ms=20, give_up_attempts=2))
    system.close()
    system = systems.open(keeper, retry=RetryPolicy(first_ms=60_000, max_ms=60_000))
    delivering(system)
    ask(system.path, "dead_resend")
    until(lambda: recipient_status(system, "keeper")["failures"], "tried")
    system.close()
    keeper.refuses = lambda event: False
    system = systems.open(keeper)
    until(lambda: ids[2] in keeper.ids, "delivered after the restart")
    delivering(system)
    until(lambda: not ask(system.path, "dead"), "forgotten")
    assert sorted(keeper.ids) == sorted(ids)


def test_a07_an_event_that_is_too_old_is_given_up_and_purged(systems: Systems) -> None:
    system, keeper, ids = give_up_one(systems, RetryPolicy(first_ms=5, max_ms=20, give_up_age_ms=100))
    (dead,) = ask(system.path, "dead")
    assert dead["id"] == ids[2] and "not delivered within 100 ms" in dead["reason"]
    with pytest.raises(NoSuchDeadEvent):
        ask(system.path, "dead_purge", {"numbers": [dead["number"] + 1]})
    assert ask(system.path, "dead_purge", {"numbers": [dead["number"]]}) == {"count": 1}
    assert ask(system.path, "dead") == [] and ask(system.path, "dead_purge") == {"count": 0}
    keeper.refuses = lambda event: False
    system.close()
    system = systems.open(keeper)
    last = system.emit("b")
    delivered(system)
    assert sorted(keeper.ids) == sorted({*ids, last} - {ids[2]})


def test_a07_by_default_nothing_is_given_up(systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper, retry=FAST)
    ids = emit_some(system)
    until(lambda: keeper.tried > 30, "many attempts")
    assert ask(system.path, "dead") == []
    keeper.closed = False
    delivered(system)
    assert keeper.ids == ids


@pytest.mark.soak
def test_a07_more_dead_events_are_sent_again_than_a_window_has_room_for(systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    options: dict[str, Any] = {"capacity": 8_000, "wait_s": 20.0}
    system = systems.open(keeper, retry=RetryPolicy(first_ms=1, max_ms=1, give_up_age_ms=1), **options)
    ids = system.emit_many([("a", "s", "info", number) for number in range(6_000)])
    until(lambda: system.is_delivering and recipient_status(system, "keeper")["dead"] == 6_000, "all dead", 120)
    keeper.closed = False
    assert ask(system.path, "dead_resend") == {"count": 6_000}
    until(lambda: len(keeper.events) == 6_000, "all are sent again", 60)
    assert keeper.ids == ids
    until(lambda: not ask(system.path, "dead"), "forgotten")
