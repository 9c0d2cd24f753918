"""The machines of alert rules against a model that counts everything anew at every millisecond."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.pipelines.alerts import rules
from clarion.pipelines.alerts.bucket import Found, Match, Ruleset, bucket_of, handle, key_text
from clarion.pipelines.alerts.keyed import Keyed, new_keyed
from clarion.pipelines.alerts.machine import EVIDENCE_MAX, NEVER, Alert, Row
from clarion.pipelines.alerts.machines import new_state
from clarion.pipelines.alerts.rules import Rule, Silence
from tests.unit.pipelines.alert_model import Model, Outcome

END = 90
_spans = st.integers(1, 12)
_CONDITIONS: dict[str, st.SearchStrategy[rules.Condition]] = {
    "count": st.builds(rules.Count, st.integers(1, 4), _spans),
    "flapping": st.builds(rules.Flapping, st.just("state"), st.integers(1, 3), _spans),
    "value": st.builds(rules.Value, st.just("load"), st.just(2.0), st.sampled_from([None, 1.0]), st.integers(0, 9)),
    "silence": st.builds(rules.Silence, _spans),
    "storm": st.builds(
        rules.Storm, st.just(10), st.sampled_from([10, 20]), st.sampled_from([1.5, 3.0]), st.integers(1, 4)
    ),
    "sequence": st.builds(
        rules.Sequence,
        st.sampled_from([("a", "b"), ("a", "b", "c")]),
        _spans,
        st.sampled_from([None, "d"]),
        st.booleans(),
    ),
}
KINDS = sorted(_CONDITIONS)


@st.composite
def _rules(draw: st.DrawFn, kinds: list[str] = KINDS, lateness_ms: int = 0) -> Rule:
    condition = draw(_CONDITIONS[draw(st.sampled_from(kinds))])
    cooldown_ms = draw(st.sampled_from([0, 0, 5, 15]))
    needed_ms = max(condition.horizon_ms, cooldown_ms) + 1
    return Rule(
        name="rule",
        condition=condition,
        lateness_ms=lateness_ms,
        cooldown_ms=cooldown_ms,
        clear=draw(st.booleans()),
        forget_ms=needed_ms + draw(st.sampled_from([0, 10, 40])),
    )


@st.composite
def _rows(draw: st.DrawFn) -> list[Row]:
    gaps = draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 3), st.integers(0, 14)), max_size=14))
    now, rows = 0, []
    for number, gap in enumerate(gaps):
        now += gap
        bits = draw(st.sampled_from([1, 1, 2, 2, 4, 8, 3, 5, 6]))
        text = draw(st.sampled_from(["0", "2.5", "4e0", "2.0", "no number"]))
        rows.append(Row(min(now, END - 1), f"id{number}", bits, text))
    return rows


def _outcomes(alerts: list[Alert]) -> list[Outcome]:
    return [(each.raised, each.time_ms, each.since_ms, each.count, each.reason) for each in alerts]


def _run(rule: Rule, rows: list[Row], end: int = END) -> list[Alert]:
    state = new_state(rule)
    alerts: list[Alert] = []
    for row in rows:
        alerts += state.row(rule, row)
    return alerts + state.passed(rule, end)


@pytest.mark.parametrize("kind", KINDS)
def test_d06_machine_says_what_the_model_says(kind: str) -> None:
    @settings(max_examples=200, deadline=None)
    @given(_rules(kinds=[kind]), _rows())
    def check(rule: Rule, rows: list[Row]) -> None:
        assert _outcomes(_run(rule, rows)) == Model(rule).run(rows, END)

    check()


@settings(max_examples=100, deadline=None)
@given(_rules(), _rows(), st.lists(st.integers(0, END), max_size=20))
def test_d06_it_does_not_matter_how_often_time_is_told(rule: Rule, rows: list[Row], looks: list[int]) -> None:
    state = new_state(rule)
    alerts: list[Alert] = []
    for now, row in sorted([(row.time_ms, row) for row in rows] + [(look, None) for look in looks], key=lambda x: x[0]):
        if row is None:
            alerts += state.passed(rule, now)
            state = new_state(rule) if state.gone else state
        else:
            alerts += state.row(rule, row)
    assert alerts + state.passed(rule, END) == _run(rule, rows)


# --- one key between two clocks -------------------------------------------------------------------


@st.composite
def _arrivals(draw: st.DrawFn, lateness_ms: int) -> list[tuple[int, Row]]:
    """Rows with the time of the batch in which they come, at most `lateness_ms` after their own."""
    rows = draw(_rows())
    return [(row.time_ms + draw(st.integers(0, lateness_ms)), row) for row in rows]


def _batched(rule: Rule, arrivals: list[tuple[int, Row]], end: int) -> list[Alert]:
    """As batches bring them; between batches with rows, those whose time has come."""
    keyed = new_keyed(rule)
    alerts: list[Alert] = []
    for batch_ms in range(end):
        rows = [row for at, row in arrivals if at == batch_ms]
        if rows:
            alerts += keyed.rows(rule, sorted(rows, key=lambda row: row.time_ms), batch_ms)
        elif NEVER < keyed.wake_ms(rule) <= batch_ms:
            alerts += keyed.passed(rule, batch_ms)
        if keyed.is_gone:
            keyed = new_keyed(rule)
    return alerts


@settings(max_examples=150, deadline=None)
@given(_rules(lateness_ms=9), st.data())
def test_d06_batches_change_nothing_for_events_in_order(rule: Rule, data: st.DataObject) -> None:
    arrivals = data.draw(_arrivals(9))
    latest, in_order = 0, []
    for at, row in arrivals:
        latest = max(latest, at)  # nothing overtakes
        in_order.append((latest, row))
    end = END + 2 * rule.forget_ms
    expected = _run(rule, [row for _, row in in_order], end)
    assert _batched(rule, in_order, end + 50) == expected


@settings(max_examples=150, deadline=None)
@given(_rules(lateness_ms=9), st.data())
def test_d06_ordered_rules_restore_the_order_of_time(rule: Rule, data: st.DataObject) -> None:
    ordered = msgspec.structs.replace(rule, ordered=True)
    arrivals = data.draw(_arrivals(9))
    in_order = sorted(arrivals, key=lambda each: (each[1].time_ms, each[0]))  # those of one time as they come
    end = END + 2 * rule.forget_ms
    assert _batched(ordered, arrivals, end + 50) == _run(ordered, [row for _, row in in_order], end)


def _silence(**more: Any) -> Rule:
    return Rule(name="quiet", condition=Silence(60_000), **more)


def test_d06_late_events_count_as_of_now_and_later_ones_not_at_all() -> None:
    rule = Rule(name="three", condition=rules.Count(3, 1_000), lateness_ms=500)
    keyed = new_keyed(rule)
    assert keyed.rows(rule, [Row(10_000, "a")], 10_000) == []
    assert keyed.rows(rule, [Row(9_499, "too late"), Row(9_500, "late")], 10_100) == []
    assert keyed.late == 1
    (alert,) = keyed.rows(rule, [Row(10_050, "b")], 10_200)
    assert alert.evidence == ("a", "late", "b") and (alert.first_ms, alert.last_ms) == (10_000, 10_050)


def test_d06_an_event_from_the_future_does_not_stop_the_clock() -> None:
    rule = Rule(name="two", condition=rules.Count(2, 1_000), lateness_ms=500)
    keyed = new_keyed(rule)
    keyed.rows(rule, [Row(10**12, "wrong clock")], 10_000)
    assert keyed.clock_ms == 10_500
    assert [alert.raised for alert in keyed.rows(rule, [Row(10_600, "b")], 10_600)] == [True]


def test_d06_silence_is_seen_without_events_and_ends_with_the_next() -> None:
    rule = _silence()
    keyed = new_keyed(rule)
    assert keyed.rows(rule, [Row(100_000, "a")], 100_900) == []
    found: list[Alert] = []
    batch_ms = 100_900
    while not found:
        assert keyed.wake_ms(rule) > batch_ms
        batch_ms = keyed.wake_ms(rule) + 300  # batches are not on time
        found = keyed.passed(rule, batch_ms)
    assert 165_900 < batch_ms <= 166_900, "after + lateness, since the event was here"
    assert (found[0].raised, found[0].time_ms, found[0].last_ms) == (True, 160_001, 100_000)
    (cleared,) = keyed.rows(rule, [Row(170_000, "b")], 170_500)
    assert (cleared.raised, cleared.time_ms, cleared.since_ms, cleared.evidence) == (False, 170_000, 160_001, ("b",))


@pytest.mark.parametrize("pause_ms", [3_600_000, 30 * rules.DAY_MS])
def test_d06_a_pause_of_the_pipeline_is_no_silence(pause_ms: int) -> None:
    rule = _silence()
    keyed = new_keyed(rule)
    keyed.rows(rule, [Row(100_000, "a")], 100_000)
    back_ms = 100_000 + pause_ms
    assert keyed.passed(rule, back_ms) == []
    assert keyed.rows(rule, [Row(100_000 + 50_000, "backlog")], back_ms + 5_000) == []


def test_d06_a_backlog_is_no_silence() -> None:
    rule = _silence()
    keyed = new_keyed(rule)
    for number in range(50):  # an hour behind, and read twice as fast as it happened
        batch_ms = 3_600_000 + number * 25_000
        assert keyed.rows(rule, [Row(number * 50_000, f"{number}")], batch_ms) == []
        if NEVER < keyed.wake_ms(rule) <= batch_ms + 24_000:
            assert keyed.passed(rule, batch_ms + 24_000) == []


def test_d06_evidence_and_memory_are_bounded() -> None:
    rule = Rule(name="many", condition=rules.Count(50, 10_000))
    keyed = new_keyed(rule)
    (alert,) = keyed.rows(rule, [Row(n, f"{n}") for n in range(1_000)], 1_000)
    assert alert.time_ms == 49 and alert.count == 50 and len(alert.evidence) == EVIDENCE_MAX
    assert alert.evidence[-1] == "49"
    assert len(keyed.state.moments_ms) == 50  # type: ignore[union-attr]
    storm = Rule(name="storm", condition=rules.Storm(1_000, 10_000, 2.0, 5))
    keyed = new_keyed(storm)
    keyed.rows(storm, [Row(n * 7, f"{n}") for n in range(10_000)], 70_000)
    assert len(keyed.state.slices) <= 110  # type: ignore[union-attr]


# --- many keys as one state -----------------------------------------------------------------------


def _match(rule: Rule, key: str, time_ms: int, sequence: int, **more: Any) -> Match:
    return Match(rule.name, key_text([key]), time_ms * 1000, sequence, Row(time_ms, f"{key}-{sequence}", **more))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=30), st.randoms(use_true_random=False))
def test_d06_a_bucket_is_its_keys_one_by_one(events: list[tuple[str, int]], random: Any) -> None:
    chosen = (
        Rule(name="two", condition=rules.Count(2, 10), lateness_ms=0),
        Rule(name="quiet", condition=Silence(15), lateness_ms=0),
    )
    ruleset = Ruleset(chosen)
    arrivals = [(time_ms, key, number) for number, (key, time_ms) in enumerate(events)]
    blob, found = None, list[Found]()
    alone: dict[tuple[str, str], Keyed] = {}
    expected: list[tuple[str, str, Alert]] = []
    for batch_ms in range(100):
        now = [each for each in arrivals if each[0] == batch_ms]
        matches = [_match(rule, key, time_ms, number) for rule in chosen for time_ms, key, number in now]
        random.shuffle(matches)
        blob, wake_ms, more = handle(ruleset, 0, blob, matches, batch_ms)
        found += more
        for rule in chosen:
            for key in "abc":
                keyed = alone.setdefault((rule.name, key), new_keyed(rule))
                rows = [Row(time_ms, f"{key}-{number}") for time_ms, k, number in now if k == key]
                if rows:
                    alerts = keyed.rows(rule, rows, batch_ms)
                elif NEVER < keyed.wake_ms(rule) <= batch_ms:
                    alerts = keyed.passed(rule, batch_ms)
                else:
                    alerts = []
                expected += [(rule.name, key_text([key]), alert) for alert in alerts]
        times = [keyed.wake_ms(ruleset.rules[name]) for (name, _), keyed in alone.items()]
        assert wake_ms == min((each for each in times if each != NEVER), default=NEVER)
    assert sorted(map(repr, expected)) == sorted(repr((each.rule.name, each.key, each.alert)) for each in found)


def test_d06_expected_keys_are_missed_without_ever_being_seen() -> None:
    keys = tuple((f"volume/{n}",) for n in range(100))
    rule = Rule(name="quiet", condition=Silence(1_000, keys), lateness_ms=100)
    ruleset = Ruleset([rule])
    missed: list[str] = []
    for number in range(32):
        blob, wake_ms, found = handle(ruleset, number, None, [], 50_000)
        assert found == []
        if wake_ms != NEVER:
            blob, _, found = handle(ruleset, number, blob, [], wake_ms)
            missed += [each.key for each in found]
            assert blob is not None, "expected keys are never forgotten"
            assert all(bucket_of("quiet", each.key) == number for each in found)
    assert sorted(missed) == sorted(key_text(key) for key in keys)


def test_d06_rules_that_change_begin_again_and_those_that_go_are_forgotten() -> None:
    two = Rule(name="two", condition=rules.Count(2, 1_000))
    other = Rule(name="other", condition=rules.Count(1, 1_000))
    matches = [_match(rule, "a", 100 + n, n) for rule in (two, other) for n in range(2)]
    blob, _, found = handle(Ruleset([two, other]), 0, None, matches, 200)
    assert [(each.rule.name, each.alert.raised) for each in found] == [("other", True), ("two", True)]
    louder = Rule(name="two", condition=rules.Count(2, 1_000), severity="critical", message="{count}")
    same, _, found = handle(Ruleset([louder]), 0, blob, [], 300)
    assert found == [] and same is not None, "what is remembered is not touched by severity or message"
    changed = Rule(name="two", condition=rules.Count(3, 1_000))
    blob, wake_ms, found = handle(Ruleset([changed]), 0, same, [], 400)
    assert [(each.alert.raised, each.alert.reason) for each in found] == [(False, "rule changed")]
    assert (blob, wake_ms) == (None, NEVER)


def test_d06_an_idle_key_leaves_no_state() -> None:
    rule = Rule(name="two", condition=rules.Count(2, 1_000), forget_ms=5_000, lateness_ms=0)
    ruleset = Ruleset([rule])
    blob, wake_ms, _ = handle(ruleset, 0, None, [_match(rule, "a", 100, 1)], 100)
    assert blob is not None
    while blob is not None:
        blob, wake_ms, found = handle(ruleset, 0, blob, [], wake_ms)
        assert found == []
    assert wake_ms == NEVER
