"""What a sender may say of a message: read as meant, or refused before anything changes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from clarion.client.options import DELIVERY_STEP_MS, NO_OPTIONS, PLAIN, SendOptions, Terms, chosen
from clarion.errors import BadArgument
from clarion.message import Headers, decode_headers, group_hash
from clarion.wire import frames
from tests.unit.client.recording_host import RecordingHost

NOW_MS = 1_800_000_000_003


def test_b04_without_options_a_message_has_no_headers_and_the_usual_terms() -> None:
    assert chosen(NOW_MS) == NO_OPTIONS
    assert chosen(NOW_MS, priority=4, until="stored", delay=0).terms == PLAIN == Terms(4, 0, 0)


@given(st.integers(1, 10**9) | st.floats(0.001, 1e9), st.booleans())
def test_b04_time_to_live_counts_from_sending(seconds: float, as_timedelta: bool) -> None:
    ttl = timedelta(seconds=seconds) if as_timedelta else seconds
    choice = chosen(NOW_MS, ttl=ttl, delay=5)
    assert abs(choice.expires_at_ms - NOW_MS - seconds * 1000) <= 1
    assert decode_headers(choice.headers).expires_at_ms == choice.expires_at_ms


@given(st.integers(0, 10**8) | st.floats(0, 1e8), st.sampled_from(["delay", "timedelta", "unix", "datetime"]))
def test_b04_delivery_is_never_too_early_and_less_than_a_step_late(seconds: float, form: str) -> None:
    wanted_ms = NOW_MS + seconds * 1000
    moment = datetime.fromtimestamp(wanted_ms / 1000, UTC)
    options: SendOptions = {
        "delay": {"delay": seconds},
        "timedelta": {"delay": timedelta(seconds=seconds)},
        "unix": {"deliver_at": wanted_ms / 1000},
        "datetime": {"deliver_at": moment.astimezone(timezone(timedelta(hours=-7)))},
    }[form]  # type: ignore[assignment]
    at_ms = chosen(NOW_MS, **options).terms.deliver_at_ms
    if at_ms == 0:
        assert wanted_ms <= NOW_MS + 1
    else:
        assert at_ms % DELIVERY_STEP_MS == 0
        assert -1 <= at_ms - wanted_ms <= DELIVERY_STEP_MS


def test_b04_the_shortest_times_are_not_lost_and_times_gone_by_are_now() -> None:
    assert chosen(NOW_MS, ttl=1e-9).expires_at_ms == NOW_MS + 1
    assert chosen(NOW_MS, delay=1e-9).terms.deliver_at_ms > NOW_MS
    assert chosen(NOW_MS, delay=0).terms.deliver_at_ms == 0
    assert chosen(NOW_MS, deliver_at=5.0).terms.deliver_at_ms == 0
    assert chosen(NOW_MS, deliver_at=datetime(1901, 1, 1, tzinfo=UTC)).terms.deliver_at_ms == 0


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_b04_a_group_has_a_hash_that_is_never_nobodys(group: str) -> None:
    choice = chosen(NOW_MS, group=group)
    assert decode_headers(choice.headers) == Headers(group=group)
    assert choice.group_hash == group_hash(group) == (crc32c(group.encode()) or 1)
    assert choice.terms == PLAIN


def test_b04_a_group_whose_checksum_is_zero_is_still_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clarion.message.crc32c", lambda data: 0)
    assert group_hash("unlucky") == 1


@pytest.mark.parametrize(("until", "flag"), [("stored", 0), ("any", frames.UNTIL_ANY), ("every", frames.UNTIL_EVERY)])
def test_b04_priority_and_until_are_terms_of_the_batch(until: Any, flag: int) -> None:
    assert chosen(NOW_MS, priority=9, until=until).terms == Terms(9, 0, flag)


WRONG: list[dict[str, Any]] = [
    {"priority": 10}, {"priority": -1}, {"priority": True}, {"priority": 4.5}, {"priority": "7"}, {"priority": None},
    {"ttl": 0}, {"ttl": -1}, {"ttl": math.nan}, {"ttl": math.inf}, {"ttl": "60"}, {"ttl": True}, {"ttl": 1e12},
    {"ttl": timedelta(seconds=-1)}, {"ttl": timedelta(0)},
    {"delay": -0.001}, {"delay": math.nan}, {"delay": timedelta(seconds=-1)}, {"delay": b"5"}, {"delay": 10**30},
    {"deliver_at": datetime(2030, 1, 1)}, {"deliver_at": "tomorrow"}, {"deliver_at": math.inf},
    {"deliver_at": 1e12}, {"deliver_at": 2e9, "delay": 1},
    {"group": ""}, {"group": 7}, {"group": "\ud800"},
    {"until": "delivered"}, {"until": None}, {"until": []},
    {"type": 1}, {"content_type": b"x"}, {"correlation_id": 5}, {"correlation_id": "\udfff"},
    {"reply_to": "two words"}, {"reply_to": ""}, {"reply_to": "glob:x*"}, {"reply_to": b"q"},
    {"properties": [1]}, {"properties": []}, {"properties": {"a": 1j}}, {"properties": {"a": "\ud800"}},
    {"properties": {"big": "x" * 70_000}}, {"properties": {1: 1}},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_b04_a_wrong_option_is_refused_before_anything_changes(options: dict[str, Any]) -> None:
    host = RecordingHost()
    kept = host.publisher.send_nowait("q", b"before")
    batch = host.publisher._lanes["q"].open
    assert batch is not None
    for right in ({}, {"type": "t"}, {"priority": 1} if "priority" not in options else {}):
        with pytest.raises(BadArgument):
            host.publisher.send_nowait("q", b"wrong", **{**right, **options})
        with pytest.raises(BadArgument):
            host.publisher.try_send("q", b"wrong", **{**right, **options})
        with pytest.raises(BadArgument):
            host.publisher.send_many_nowait("q", [b"wrong"], **{**right, **options})
    assert host.publisher._lanes["q"].open is batch
    assert (batch.bodies, batch.headers, batch.plain) == ([b"before"], None, True)
    host.turn()
    host.published(host.sent[0])
    assert kept.done
    assert host.sent[0].bodies == [b"before"]


def test_b04_an_option_that_does_not_exist_is_a_mistake_of_the_program() -> None:
    host = RecordingHost()
    with pytest.raises(TypeError):
        host.publisher.send_nowait("q", b"", prioriti=4)  # type: ignore[call-arg]
    assert host.publisher._lanes["q"].open is None
