"""Rows C-01 and C-02: test points cost nothing until armed, and then do exactly what was asked."""

from __future__ import annotations

import errno
import threading
import timeit
from pathlib import Path

import pytest

from clarion.errors import BadSetting, InternalFault, RequestError
from clarion.instruments import Arming, Call, Fail, Registry, TestPoint


def point_of(registry: Registry) -> TestPoint:
    return registry.test_point("journal.before_sync", meaning="the group is written, not yet synced")


def test_c01_a_disarmed_point_does_nothing_and_returns_nothing() -> None:
    registry = Registry()
    point = point_of(registry)
    assert point() is None
    assert not point.armed
    assert registry.sense()["journal.before_sync"].value == 0


def test_c02_passing_a_disarmed_point_costs_little_more_than_an_empty_call() -> None:
    point = point_of(Registry())

    def empty() -> None:
        pass

    def fastest(statement: str) -> float:
        names = {"point": point, "empty": empty}
        return min(timeit.repeat(statement, globals=names, number=2_000, repeat=101))

    # A ratio of the fastest of many short runs: what else the machine does can only slow a run down.
    assert fastest("point()") <= 3 * fastest("empty()")
    assert fastest("if point.armed: point.fire()") <= fastest("empty()")


def test_c01_an_armed_point_returns_what_its_logic_returns() -> None:
    registry = Registry()
    point = point_of(registry)
    registry.arm(Arming("journal.before_sync", Call(lambda: "inserted")))
    assert len(point.armings()) == 1
    assert point() == "inserted"
    assert point() is None
    assert not point.armed
    assert registry.sense()["journal.before_sync"].value == 1


@pytest.mark.parametrize(
    ("after", "times", "fired"),
    [(1, 1, [1]), (3, 1, [3]), (1, 3, [1, 2, 3]), (2, 2, [2, 3]), (4, None, [4, 5, 6])],
)
def test_c01_after_and_times_count_passings(after: int, times: int | None, fired: list[int]) -> None:
    registry = Registry()
    point = point_of(registry)
    registry.arm(Arming("journal.before_sync", Call(lambda: True), after, times))
    assert [passing for passing in range(1, 7) if point()] == fired
    assert point.armed == (times is None)


def test_c01_several_armings_of_one_point_count_each_for_itself() -> None:
    registry = Registry()
    point = point_of(registry)
    story: list[str] = []
    registry.arm(Arming(point.declaration.name, Call(lambda: story.append("a")), after=2))
    point()
    registry.arm(Arming(point.declaration.name, Call(lambda: story.append("b")), times=2))
    point()
    assert story == ["a", "b"]
    assert [str(arming) for arming in point.armings()] == ["journal.before_sync=call*2"]
    point.disarm()
    point()
    assert story == ["a", "b"]


def test_c01_of_many_threads_exactly_one_makes_the_nth_passing() -> None:
    registry = Registry()
    point = point_of(registry)
    fired: list[int] = []
    registry.arm(
        Arming(point.declaration.name, Call(lambda: fired.append(threading.get_ident())), after=3_000, times=5)
    )
    together = threading.Barrier(4)

    def go() -> None:
        together.wait()
        for _ in range(1_000):
            point()

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fired) == 5
    assert registry.sense()[point.declaration.name].value == 5


def test_c01_a_thread_held_at_a_point_holds_no_other() -> None:
    registry = Registry()
    point = point_of(registry)
    held, release = threading.Event(), threading.Event()

    def hold() -> bool:
        held.set()
        return release.wait(30)

    registry.arm(Arming(point.declaration.name, Call(hold)))
    registry.arm(Arming(point.declaration.name, Call(lambda: "second"), after=2))
    thread = threading.Thread(target=point)
    thread.start()
    assert held.wait(30)
    assert point() == "second"
    release.set()
    thread.join()


def test_c01_fail_raises_what_was_asked_for() -> None:
    registry = Registry()
    point = point_of(registry)
    for text, number in (("fail", errno.EIO), ("fail:ENOSPC", errno.ENOSPC)):
        registry.arm(f"journal.before_sync={text}")
        with pytest.raises(OSError, match=r"test point journal\.before_sync, passing 1") as raised:
            point()
        assert raised.value.errno == number
    registry.arm("journal.before_sync=fail:broken")
    with pytest.raises(InternalFault, match="broken"):
        point()
    assert not point.armed


def test_c01_log_writes_a_line_that_a_test_can_wait_for(tmp_path: Path) -> None:
    registry = Registry()
    point = point_of(registry)
    path = tmp_path / "passed"
    registry.arm(f"journal.before_sync=log:{path}@2*2")
    for _ in range(5):
        point()
    assert [line.split()[:2] for line in path.read_text().splitlines()] == [
        ["journal.before_sync", "2"],
        ["journal.before_sync", "3"],
    ]


def test_c01_a_log_that_cannot_be_written_does_not_look_like_the_disk_failing(tmp_path: Path) -> None:
    registry = Registry()
    point = point_of(registry)
    registry.arm(f"journal.before_sync=log:{tmp_path}")
    with pytest.raises(InternalFault, match="cannot log"):
        point()


def test_c02_a_point_may_be_declared_after_it_was_armed() -> None:
    registry = Registry()
    registry.arm_all(["journal.before_sync=fail:ENOSPC@2"], file="clarion.toml")
    point = point_of(registry)
    registry.check_all_armed()
    assert [arming.action for arming in point.armings()] == [Fail("ENOSPC")]
    point()
    with pytest.raises(OSError, match="No space"):
        point()


def test_c02_points_that_nobody_declares_are_named() -> None:
    registry = Registry()
    point_of(registry)
    registry.arm_from({"CLARION_ARM": "journal.befor_sync=kill,journal.before_sync=kill@3"})
    registry.arm_all(["mm.nowhere=stop"], file="clarion.toml")
    with pytest.raises(BadSetting) as raised:
        registry.check_all_armed()
    assert raised.value.facts == {
        "file": "CLARION_ARM, clarion.toml",
        "detail": "there is no test point journal.befor_sync, mm.nowhere",
    }


def test_c02_only_test_points_are_armed() -> None:
    registry = Registry()
    registry.counter("early", unit="", meaning="test")
    with pytest.raises(BadSetting, match="early: it is an indicator, not a test point"):
        registry.arm("early=kill", file="clarion.toml")
    registry.arm("late=kill", file="clarion.toml")
    with pytest.raises(BadSetting, match="late: it is a control, not a test point"):
        registry.control("late", default=1, unit="", meaning="test")
    with pytest.raises(RequestError, match="early is an indicator, not a test point"):
        registry.point("early")


def test_c02_nothing_is_armed_if_one_text_is_wrong() -> None:
    registry = Registry()
    point = point_of(registry)
    with pytest.raises(BadSetting):
        registry.arm_all(["journal.before_sync=stop", "journal.before_sync=explode"], file="clarion.toml")
    assert not point.armed


def test_c01_delay_waits_for_the_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("clarion.instruments.actions.time.sleep", slept.append)
    registry = Registry()
    point = point_of(registry)
    registry.arm("journal.before_sync=delay:0.2@2*2")
    for _ in range(5):
        point()
    assert slept == [0.2, 0.2]
