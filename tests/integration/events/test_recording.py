"""Recording: full sections refuse and lose nothing, initialisation, fork, threads, signals (A-02 to A-04)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from clarion import ids
from clarion.errors import BadArgument, Blocked, ClarionError
from clarion.events import EventSystem
from clarion.instruments import Arming, Call
from tests.integration.events.systems import Keeper, Systems, delivered, delivering, recipient_status, until

# --- full -------------------------------------------------------------------------------------------------


def fill(system: EventSystem, first: int = 0) -> list[str]:
    """Emit until there is no room."""
    recorded: list[str] = []
    with pytest.raises(Blocked):
        while True:
            recorded.append(system.emit("a", source="s", data=first + len(recorded)))
    return recorded


def test_a03_a_full_section_refuses_counts_and_goes_on_after_confirmation(systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper)
    delivering(system)
    recorded = fill(system)
    assert len(recorded) >= 200
    for _ in range(2):
        with pytest.raises(Blocked, match="full"):
            system.emit("a", source="s", data="x" * 500)
    (normal,) = [one for one in system.status()["sections"] if one["kind"] == "normal" and one["recorded"]]
    assert normal["refused"] == 3 and normal["waiting"] == len(recorded)
    keeper.closed = False
    delivered(system)
    assert keeper.ids == recorded and keeper.data == list(range(len(recorded)))
    # Several laps of the ring: nothing is written over that was not confirmed.
    for lap in range(5):
        recorded += fill(system, len(recorded))
        delivered(system)
        assert keeper.ids == recorded, f"lap {lap}"
    assert keeper.data == list(range(len(recorded)))


def test_a03_emit_waits_for_room_as_configured(systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper, wait_s=0.2)
    began_s = time.monotonic()
    recorded = fill(system)
    assert time.monotonic() - began_s >= 0.2
    patient = systems.open(wait_s=30.0)  # a second set of sections, which the first one's engine delivers
    until(lambda: keeper.tried, "the engine tries")
    opening = threading.Timer(0.2, lambda: setattr(keeper, "closed", False))
    opening.start()
    for number in range(3 * len(recorded)):
        patient.emit("b", source="s", data=number)
    opening.join()
    delivered(system)
    assert [event.data for event in keeper.events if event.type == "b"] == list(range(3 * len(recorded)))
    assert [event.id for event in keeper.events if event.type == "a"] == recorded


def test_a03_emit_many_that_finds_no_room_records_none_of_them(systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper)
    recorded = fill(system)
    with pytest.raises(Blocked):
        system.emit_many([("b", "s", "info", number) for number in range(10)])
    keeper.closed = False
    delivered(system)
    many = system.emit_many([("b", "s", "info", number) for number in range(100)])
    delivered(system)
    assert keeper.ids == recorded + many


def test_a04_initialisation_has_a_section_of_its_own_and_goes_first(systems: Systems) -> None:
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper)
    delivering(system)
    normal = fill(system)
    system.pause()
    first = fill(system)
    assert len(first) >= 50
    kinds = {one["kind"]: one for one in system.status()["sections"] if one["recorded"]}
    assert kinds["initialisation"]["refused"] == 1 == kinds["normal"]["refused"]
    keeper.closed = False
    tried = keeper.tried
    assert system.state == "initialising" and recipient_status(system, "keeper")["state"].startswith("waiting until")
    assert keeper.tried == tried
    system.ready()
    delivered(system)
    assert keeper.ids == first + normal


def test_a04_nothing_is_delivered_before_ready_and_initialisation_first(systems: Systems) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper, ready=False)
    with system.initialising():
        first = [system.emit("boot", source="s", data=number) for number in range(20)]
        delivering(system)
        until(lambda: recipient_status(system, "keeper")["owed"] == 20, "indicated")
        assert not keeper.events
    after = [system.emit("run", source="s", data=number) for number in range(20)]
    delivered(system)
    assert keeper.ids == first + after


@pytest.mark.parametrize("round_", range(5))
def test_a04_what_was_emitted_just_before_ready_still_goes_first(systems: Systems, round_: int) -> None:
    """Also if the engine has not seen it yet when the system becomes ready."""
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper)
    old = [system.emit("old", source="s", data=number) for number in range(5)]
    until(lambda: keeper.tried, "tried")
    system.pause()
    keeper.closed = False
    first = [system.emit("first", source="s", data=number) for number in range(5)]
    system.ready()
    delivered(system)
    assert keeper.ids == first + old


# --- after the end ----------------------------------------------------------------------------------------


def test_a02_a_closed_system_refuses(systems: Systems) -> None:
    system = systems.open(Keeper("keeper"))
    system.emit("a")
    system.close()
    with pytest.raises(BadArgument, match="closed"):
        system.emit("a")
    system.close()


def test_a05_other_settings_than_before_are_what_counts(systems: Systems) -> None:
    """A section of an earlier start with another durability or size is not written again, and nothing of it is lost."""
    keeper = Keeper("keeper")
    keeper.closed = True
    system = systems.open(keeper, durability="process")
    old = [system.emit("a", data=number) for number in range(5)]
    system.close()
    system = systems.open(keeper, durability="power", event_bytes_max=2048)
    new = [system.emit("b", data="x" * 1500) for _ in range(3)]
    assert {one.durability for one in system._recorder.sections.all()} == {"power"}
    keeper.closed = False
    delivered(system)
    assert sorted(keeper.ids) == sorted(old + new)
    until(lambda: len({one["system"] for one in system.status()["sections"]}) == 5, "the old sections are removed")
    system.close()
    system = systems.open(keeper, durability="process")  # now they are empty, and made anew
    assert {one.name[0] for one in system._recorder.sections.all()} == {system._recorder.sections.normal.name[0]}
    assert {one.durability for one in system._recorder.sections.all()} == {"process"}


# --- fork -------------------------------------------------------------------------------------------------


@contextmanager
def forked(work: Any) -> Iterator[int]:
    """A child by `os.fork` that does this and ends."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    try:
        yield pid
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def emit_some(system: EventSystem, who: str, count: int) -> list[str]:
    return [system.emit("fork", source=who, data=number) for number in range(count)]


def test_a02_parent_and_children_emit_after_fork(systems: Systems) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper, wait_s=10.0)
    emit_some(system, "parent", 10)

    def third() -> None:
        emit_some(system, "three", 60)
        system.close()

    with (
        forked(lambda: emit_some(system, "one", 60)),
        forked(lambda: emit_some(system, "two", 60)),
        forked(third),
    ):
        emit_some(system, "parent-later", 60)
    emit_some(system, "parent-last", 10)
    until(lambda: len(keeper.events) >= 260, "all arrive")
    delivered(system)
    assert len(set(keeper.ids)) == len(keeper.ids) == 260
    for who in ("parent", "one", "two", "three", "parent-later", "parent-last"):
        numbers = [event.data for event in keeper.events if event.source == who]
        assert numbers == list(range(len(numbers))), who
    producers = {who: ids.producer_of(ids.parse_id(e.id)) for e in keeper.events for who in [e.source]}
    # A child that comes when another has ended may go on in its sections; the parent's are in use.
    assert producers["parent"] not in {producers[who] for who in ("one", "two", "three")}


def test_a02_children_of_multiprocessing_emit(systems: Systems) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper, wait_s=10.0)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=emit_some, args=(system, f"child-{number}", 30)) for number in range(4)]
    for child in children:
        child.start()
    emit_some(system, "parent", 30)
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    until(lambda: len(keeper.events) >= 150, "all arrive")
    delivered(system)
    assert len(set(keeper.ids)) == len(keeper.ids) == 150
    # What the children left is removed when it is delivered.
    until(lambda: len(system.status()["sections"]) == 5, "their sections are gone")


def test_a02_a_forked_child_does_not_deliver_and_can_close(systems: Systems) -> None:
    system = systems.open(Keeper("keeper"))
    delivering(system)

    def child() -> None:
        assert not system.is_delivering
        system.pause()
        assert system.state == "initialising"
        system.emit("a", source="child")
        system.ready()
        system.emit("b", source="child")
        system.close()

    with forked(child):
        pass
    assert system.is_delivering
    delivered(system)


def test_a02_a_signal_handler_that_interrupts_the_first_emit_of_a_child_does_not_hang(systems: Systems) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper)

    def child() -> None:
        taking, outcome = system._recorder._take, []

        def interrupted() -> Any:
            try:
                system.emit("handler", source="child")
            except Blocked as error:
                outcome.append(error)
            return taking()

        system._recorder._take = interrupted
        signal.alarm(20)
        system.emit("a", source="child")
        assert len(outcome) == 1

    with forked(child):
        pass
    until(lambda: len(keeper.events) == 1, "it arrives")


# --- threads, signals, interruptions ----------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a02_eight_threads_and_a_signal_handler_emit(systems: Systems, durability: str) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper, durability=durability, wait_s=20.0)
    recorded: list[str] = []
    refused: list[ClarionError] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        try:
            recorded.append(system.emit("signal", source="handler"))
        except Blocked as error:
            refused.append(error)
        signal.setitimer(
            signal.ITIMER_REAL, 0.001
        )  # not before: handlers that interrupt each other run out of sections

    def work(number: int) -> None:
        recorded.extend([system.emit("thread", source=f"thread-{number}", data=count) for count in range(50)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        for thread in threads:
            thread.start()
        mine = [system.emit("main", source="main", data=count) for count in range(400)]
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    delivered(system)
    assert sorted(keeper.ids) == sorted(recorded + mine)
    for source in ("main", *(f"thread-{number}" for number in range(8))):
        numbers = [event.data for event in keeper.events if event.source == source]
        assert numbers == list(range(len(numbers))), source
    assert [event for event in keeper.events if event.source == "handler"], "no signal came"
    assert not refused


class Interrupted(BaseException):
    """Like KeyboardInterrupt: raised by a signal handler anywhere."""


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a02_an_exception_of_a_signal_handler_leaves_everything_in_order(systems: Systems, durability: str) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper, durability=durability, wait_s=20.0)
    recorded: list[str] = []
    unsure = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for count in range(300):
            signal.setitimer(signal.ITIMER_REAL, 0.00002 + 0.000007 * (count % 40))
            try:
                identity = system.emit("main", source="main", data=count)
                signal.setitimer(signal.ITIMER_REAL, 0)
                recorded.append(identity)
            except Interrupted:
                unsure += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:  # the last moment of a round
        unsure += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    recorded.append(system.emit("main", source="main", data="last"))
    delivered(system)
    got = keeper.ids
    assert unsure, "nothing was interrupted"
    assert len(set(got)) == len(got) and set(recorded) <= set(got) and len(got) <= len(recorded) + unsure
    assert got == sorted(got)
    sequences = [ids.sequence_of(ids.parse_id(identity)) for identity in got]
    assert sequences == list(range(1, len(got) + 1))


@pytest.mark.parametrize("step", ["211", "212", "213"])
def test_a02_an_interruption_at_each_step_of_emit(systems: Systems, step: str) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper)

    def interrupt() -> None:
        raise Interrupted

    system.emit("a", data=1)
    system.registry.arm(Arming(f"events.{step}", Call(interrupt)))
    with pytest.raises(Interrupted):
        system.emit("a", data=2)
    system.emit("a", data=3)
    delivered(system)
    assert keeper.data == ([1, 2, 3] if step == "213" else [1, 3])
