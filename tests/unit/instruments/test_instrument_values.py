"""Rows C-01 and C-02: indicators and controls, static and dynamic, and the registry that reads them."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadName, RequestError
from clarion.instruments import Kind, Reading, Registry, Summary, ValueType


def test_c01_a_counter_shows_the_sum_of_what_was_added() -> None:
    registry = Registry()
    published = registry.counter("mm.published", unit="messages", meaning="messages made durable")
    published.add()
    published.add(511)
    assert registry.sense("mm.published") == {"mm.published": Reading("mm.published", 512)}


def test_c01_a_tally_is_a_counter_without_a_call() -> None:
    registry = Registry()
    frames = registry.tally("cm.frames", unit="frames", meaning="frames received")
    counter = registry.counter("cm.others", unit="frames", meaning="frames received")
    frames.total += 3
    assert registry.sense("cm.frames") == {"cm.frames": Reading("cm.frames", 3)}
    tallied, counted = frames.declaration, counter.declaration
    assert (tallied.kind, tallied.value_type, tallied.cumulative) == (
        counted.kind,
        counted.value_type,
        counted.cumulative,
    )


def test_c01_no_addition_of_any_thread_is_lost() -> None:
    counter = Registry().counter("x", unit="", meaning="test")
    together = threading.Barrier(4)

    def add() -> None:
        together.wait()
        for _ in range(20_000):
            counter.add(3)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read() == 4 * 20_000 * 3


def test_c01_a_gauge_shows_the_last_value() -> None:
    registry = Registry()
    state = registry.gauge("node.state", initial="starting", unit="", meaning="what the node does")
    assert registry.sense()["node.state"].value == "starting"
    state.set("ready")
    assert registry.sense()["node.state"].value == "ready"


def test_c01_a_dynamic_indicator_calls_its_procedure_on_request_only() -> None:
    registry = Registry()
    asked: list[int] = []

    def depth() -> int:
        asked.append(1)
        return len(asked)

    registry.indicator("mm.depth", read=depth, unit="messages", meaning="messages waiting")
    assert asked == []
    assert registry.sense("mm.depth")["mm.depth"].value == 1
    assert registry.sense("mm.depth")["mm.depth"].value == 2


def test_c01_a_procedure_that_fails_is_reported_and_disturbs_nobody() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    def fail() -> int:
        raise OSError("gone")

    def fail_badly() -> int:
        raise Unspeakable

    registry = Registry()
    registry.indicator("a", read=fail, unit="", meaning="test")
    registry.indicator("b", read=fail_badly, unit="", meaning="test")
    registry.indicator("c", read=lambda: "text", unit="", meaning="test")
    registry.indicator("d", read=lambda: 4, unit="", meaning="test")
    readings = registry.sense()
    assert readings["a"] == Reading("a", None, "OSError: gone")
    assert readings["b"] == Reading("b", None, "Unspeakable")
    assert "c is number, not 'text'" in (readings["c"].error or "")
    assert not readings["c"].available
    assert readings["d"] == Reading("d", 4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 40))
def test_c01_a_histogram_shows_samples_of_its_window(values: list[int], samples: int) -> None:
    histogram = Registry().histogram("h", unit="us", meaning="test", samples=samples)
    for value in values:
        histogram.record(value)
    window = sorted(values[-samples:])
    shown = histogram.read()
    assert shown.count == len(window)
    for shown_value, percent in ((shown.p50, 50), (shown.p99, 99), (shown.max, 100)):
        # naive model: the smallest sample that at least `percent` of the samples do not exceed
        expected = [v for v in window if sum(w <= v for w in window) * 100 >= percent * len(window)]
        assert shown_value == (expected[0] if window else 0)


def test_c01_a_histogram_forgets_what_is_old() -> None:
    now = [100.0]
    histogram = Registry(clock=lambda: now[0]).histogram("h", unit="us", meaning="test", seconds=60)
    histogram.record(5_000)
    now[0] = 130.0
    histogram.record(200)
    assert histogram.read() == Summary(count=2, p50=200, p99=5_000, max=5_000)
    now[0] = 161.0
    assert histogram.read() == Summary(count=1, p50=200, p99=200, max=200)
    now[0] = 191.0
    assert histogram.read() == Summary(count=0, p50=0, p99=0, max=0)


def test_c01_a_control_shows_and_sets_a_value_within_its_range() -> None:
    registry = Registry()
    linger = registry.control(
        "client.linger", default=2.0, minimum=0.0, maximum=100.0, unit="ms", meaning="wait for a fuller batch"
    )
    registry.modify("client.linger", 5)
    assert linger.value == 5.0
    assert isinstance(linger.value, float)
    for refused, why in ((-1, "at least 0.0 ms"), (100.5, "at most 100.0 ms"), (float("nan"), "not-a-number")):
        with pytest.raises(RequestError, match=why):
            linger.set(refused)
    for wrong in ("5", True):
        with pytest.raises(RequestError, match="is number"):
            linger.set(wrong)
    assert registry.sense("client.*")["client.linger"].value == 5.0


def test_c01_controls_of_other_types() -> None:
    registry = Registry()
    paused = registry.control("mm.paused", default=False, unit="", meaning="accept nothing")
    paused.set(True)
    assert paused.value is True
    with pytest.raises(RequestError, match="boolean"):
        paused.set(1)
    level = registry.control("log.level", default="info", unit="", meaning="least level written")
    level.set("debug")
    assert level.value == "debug"
    count = registry.control("n", default=3, minimum=1, unit="", meaning="test")
    with pytest.raises(RequestError, match=r"integer, not 2\.5"):
        count.set(2.5)
    assert count.value == 3


def test_c01_a_dynamic_control_reads_and_writes_by_procedure() -> None:
    box = {"limit": 10}

    def write(value: object) -> None:
        if value == 13:
            raise KeyError("unlucky")
        box["limit"] = int(str(value))

    registry = Registry()
    limit = registry.dynamic_control(
        "mm.limit",
        read=lambda: box["limit"],
        write=write,
        value_type=ValueType.INTEGER,
        minimum=1,
        unit="messages",
        meaning="test",
    )
    registry.modify("mm.limit", 20)
    assert box == {"limit": 20}
    assert limit.read() == 20
    with pytest.raises(RequestError, match="at least 1 messages"):
        limit.set(0)
    with pytest.raises(RequestError, match="could not be set: KeyError"):
        limit.set(13)
    assert box == {"limit": 20}


def test_c02_one_line_declares_and_declarations_stand_apart_from_values() -> None:
    registry = Registry()
    registry.control("b.control", default=1, minimum=0, maximum=9, unit="ms", meaning="a control")
    registry.counter("a.counter", unit="messages", meaning="a counter")
    registry.histogram("a.histogram", unit="us", meaning="a histogram")
    registry.indicator("a.dynamic", read=lambda: 1 // 0, unit="", meaning="a procedure")
    registry.test_point("b.point", meaning="a point")
    found = {declaration.name: declaration for declaration in registry.declarations()}
    assert list(found) == ["a.counter", "a.dynamic", "a.histogram", "b.control", "b.point"]
    assert [d.name for d in registry.declarations("b.*")] == ["b.control", "b.point"]
    control = found["b.control"]
    assert (control.kind, control.value_type, control.unit) == (Kind.CONTROL, ValueType.INTEGER, "ms")
    assert (control.minimum, control.maximum, control.meaning) == (0, 9, "a control")
    assert found["a.counter"].cumulative
    assert found["a.dynamic"].dynamic
    assert found["a.histogram"].value_type is ValueType.SUMMARY
    assert found["b.point"].kind is Kind.TEST_POINT


def test_c02_a_pattern_selects_what_is_sensed() -> None:
    registry = Registry()
    for name in ("mm.depth", "mm.published", "cm.sessions"):
        registry.counter(name, unit="", meaning="test")
    assert list(registry.sense("mm.*")) == ["mm.depth", "mm.published"]
    assert list(registry.sense("?m.*s*")) == ["cm.sessions", "mm.published"]
    assert registry.sense("nothing.*") == {}


@pytest.mark.parametrize("name", ["", "Journal", "journal.", ".x", "a..b", "a b", "a=b", "9a", "ä", "a" * 256, "a\n"])
def test_c02_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        Registry().counter(name, unit="", meaning="test")


def test_c02_a_name_is_declared_once() -> None:
    registry = Registry()
    registry.counter("x", unit="", meaning="test")
    with pytest.raises(BadName, match="declared already"):
        registry.test_point("x", meaning="test")


def test_c02_declarations_that_contradict_themselves_are_refused() -> None:
    registry = Registry()
    with pytest.raises(RequestError, match="above its maximum"):
        registry.control("x", default=1, minimum=2, maximum=1, unit="", meaning="test")
    with pytest.raises(RequestError, match="at least 2"):
        registry.control("x", default=1, minimum=2, unit="", meaning="test")
    with pytest.raises(RequestError, match="no minimum"):
        registry.control("x", default="a", minimum="b", unit="", meaning="test")
    with pytest.raises(RequestError, match="no minimum"):
        registry.control("x", default=True, minimum=False, unit="", meaning="test")
    with pytest.raises(RequestError, match="without a meaning"):
        registry.counter("x", unit="", meaning="")
    assert registry.declarations() == []


def test_c02_only_controls_are_set() -> None:
    registry = Registry()
    registry.counter("x", unit="", meaning="test")
    with pytest.raises(RequestError, match="x is an indicator, not a control"):
        registry.modify("x", 1)
    with pytest.raises(RequestError, match="there is no instrument y"):
        registry.modify("y", 1)
