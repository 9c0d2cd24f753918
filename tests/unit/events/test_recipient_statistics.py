"""Statistics as a recipient: each event counts once, also after a crash (A-08, A-12)."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import NotDelivered
from clarion.events.event import Event
from clarion.events.recipients import Statistics
from clarion.events.recipients.recent import RecentIds
from clarion.events.recipients.statistics import OTHER, _runs

from .recipient_events import PRODUCER, TIME_NS, event, events


def deliver(recipient: Statistics, *batches: list[Event]) -> Statistics:
    async def scenario() -> None:
        async with recipient:
            for batch in batches:
                await recipient.deliver(batch)

    asyncio.run(scenario())
    return recipient


def test_a12_counts_by_type_severity_and_source() -> None:
    batch = [event(1), event(2, severity="info"), event(3, type="fan.slow", source="fan/1"), event(4)]
    report = deliver(Statistics(), batch).report()
    assert report["count"] == 4
    assert {key: one["count"] for key, one in report["types"].items()} == {"disk.full": 3, "fan.slow": 1}
    assert {key: one["count"] for key, one in report["severities"].items()} == {"error": 3, "info": 1}
    assert {key: one["count"] for key, one in report["sources"].items()} == {"volume/7": 3, "fan/1": 1}
    assert report["types"]["disk.full"]["first"] == "2026-01-01T00:00:01.000000Z"
    assert report["types"]["disk.full"]["last"] == "2026-01-01T00:00:04.000000Z"


def test_a12_rates_are_of_the_last_minutes() -> None:
    now_s = TIME_NS / 1e9 + 600
    statistics = Statistics(clock=lambda: now_s)
    deliver(statistics, events(*range(-100, 0), producer=PRODUCER + 1000), events(*range(1, 601)), events(5_000))
    rates = statistics.report()["types"]["disk.full"]
    assert rates["count"] == 701 and rates["per_s_1min"] == 1.0 and rates["per_s_10min"] == pytest.approx(1, 0.01)
    now_s += 10_000
    assert statistics.report()["types"]["disk.full"]["per_s_10min"] == 0


def test_a08_what_comes_again_counts_once_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "made" / "statistics.json"
    deliver(Statistics(path), events(1, 2, 3), events(2, 3, 9))
    again = deliver(Statistics(path), events(1, 3, 8, 9, 10))
    assert again.count == 6  # 8 is lower than 9, and new
    stored = json.loads(path.read_text())
    assert stored["count"] == 6 and stored["types"]["disk.full"]["count"] == 6
    assert len(stored["recent"]) < 6
    assert [each.name for each in path.parent.iterdir()] == ["statistics.json"]


@settings(max_examples=50)
@given(st.lists(st.one_of(st.integers(0, 40).map(lambda n: event(n).id), st.sampled_from(["x", "ABC" * 12]))))
def test_a08_remembered_ids_survive_as_runs(added: list[str]) -> None:
    recent = RecentIds(added)
    runs, others = _runs(recent)
    back = [f"{high}{number:012x}" for high, first, last in runs for number in range(first, last + 1)]
    assert sorted(back + others) == sorted(recent)


def test_a08_counts_are_written_before_they_are_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "statistics.json"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario() -> None:
        async with Statistics(path) as statistics:
            await statistics.deliver(events(1))
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", full)
                with pytest.raises(NotDelivered, match="No space"):
                    await statistics.deliver(events(2))
            assert json.loads(path.read_text())["count"] == 1
            await statistics.deliver(events(2))
            assert json.loads(path.read_text())["count"] == 2 and statistics.count == 2

    asyncio.run(scenario())


def test_a12_types_and_sources_without_end_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_STATISTICS_KEYS_MAX", 2)
    sources = deliver(Statistics(), [event(n, source=f"s{n % 5}") for n in range(10)]).report()["sources"]
    assert {key: one["count"] for key, one in sources.items()} == {"s0": 2, "s1": 2, OTHER: 6}


def test_a12_a_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "statistics.json"
    path.write_text('{"version": 1')
    with caplog.at_level(logging.WARNING):
        assert deliver(Statistics(path), events(1)).count == 1
    assert (tmp_path / "statistics.json.damaged").read_text() == '{"version": 1' and "begins anew" in caplog.text


def test_a12_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    newer = '{"version":2,"count":0,"types":{},"severities":{},"sources":{},"recent":[]}'
    path.write_text(newer)
    with pytest.raises(NotDelivered, match="version 2"):
        deliver(Statistics(path), events(1))
    assert path.read_text() == newer
