"""Batches are homogeneous, and say of their messages what is true of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import ids, limits
from clarion.client import publisher, sender
from clarion.errors import BadArgument, BadName, Blocked, MessageTooLarge
from clarion.message import group_hash
from clarion.wire import frames
from clarion.wire.batch import GROUPS, HEADERS
from tests.unit.client.recording_host import PRODUCER, RecordingHost

START_MS = 1_800_000_000_000


class Clock:
    """Wall time that stands still unless told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = START_MS
        fake = SimpleNamespace(time_ns=lambda: self.ms * 1_000_000)
        monkeypatch.setattr(publisher, "time", fake)
        monkeypatch.setattr(sender, "time", fake)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_b04_another_priority_begins_another_batch_and_the_order_stays() -> None:
    host = RecordingHost()
    for number, priority in enumerate([4, 4, 9, 9, 0, 4]):
        host.publisher.send_nowait("q", b"%d" % number, priority=priority)
    host.publisher.send_nowait("q", b"6")
    sent = host.flush()
    assert [(one.batch.priority, one.bodies) for one in sent] == [
        (4, [b"0", b"1"]),
        (9, [b"2", b"3"]),
        (0, [b"4"]),
        (4, [b"5", b"6"]),
    ]
    assert [one.first for one in sent] == [1, 3, 5, 6]


def test_b04_messages_with_the_same_delay_within_a_step_share_a_batch(clock: Clock) -> None:
    host = RecordingHost()
    for at_ms in (0, 1, 5, 10, 11, 14):
        clock.ms = START_MS + at_ms
        host.publisher.send_nowait("q", b"%d" % at_ms, delay=1)
    sent = host.flush()
    assert [(one.batch.deliver_at_ms - START_MS, one.bodies) for one in sent] == [
        (1000, [b"0"]),
        (1010, [b"1", b"5", b"10"]),
        (1020, [b"11", b"14"]),
    ]


def test_b04_a_batch_says_when_its_first_and_its_last_message_expire(clock: Clock) -> None:
    host = RecordingHost()
    lives: dict[str, list[int | None]] = {"all": [5, 2, 9], "some": [5, None, 9], "none": [None, None], "lone": [3]}
    for destination, ttls in lives.items():
        for ttl in ttls:
            host.publisher.send_nowait(destination, b"", ttl=ttl)
    sent = {one.destination: one for one in host.flush()}
    said = {
        name: tuple(ms and ms - START_MS for ms in (one.batch.expiry_first_ms, one.batch.expiry_last_ms))
        for name, one in sent.items()
    }
    assert said == {"all": (2000, 9000), "some": (5000, 0), "none": (0, 0), "lone": (3000, 3000)}
    assert [one.expires_at_ms for one in sent["some"].headers] == [START_MS + 5000, 0, START_MS + 9000]


def test_b04_groups_have_a_column_only_where_there_are_groups() -> None:
    host = RecordingHost()
    host.publisher.send_nowait("grouped", b"0")
    for number, group in enumerate(["a", "b", None, "a"]):
        host.publisher.send_nowait("grouped", b"%d" % (number + 1), group=group)
    host.publisher.send_nowait("grouped", b"5")
    host.publisher.send_nowait("plain", b"0", type="t")
    grouped, plain = host.flush()
    assert grouped.groups == [0, group_hash("a"), group_hash("b"), 0, group_hash("a"), 0]
    assert [one.group for one in grouped.headers] == [None, "a", "b", None, "a", None]
    assert grouped.batch.flags == HEADERS | GROUPS
    assert grouped.bodies == [b"%d" % number for number in range(6)]
    assert (plain.groups, plain.batch.flags) == (None, HEADERS)


def test_b04_the_largest_message_with_a_group_and_a_time_to_live_fits_exactly() -> None:
    host = RecordingHost(batch_bytes_max=50_000)
    options: Any = {"group": "g", "ttl": 60, "properties": {"n": 1}}
    with pytest.raises(MessageTooLarge) as refused:
        host.publisher.send_nowait("q", bytes(60_000), **options)
    limit = refused.value.facts["limit"]
    assert isinstance(limit, int)
    with pytest.raises(MessageTooLarge):
        host.publisher.send_nowait("q", bytes(limit + 1), **options)
    host.publisher.send_nowait("q", b"before", ttl=1)
    host.publisher.send_nowait("q", bytes(limit), **options)
    host.publisher.send_nowait("q", b"after")
    sent = host.flush()
    assert [[len(body) for body in one.bodies] for one in sent] == [[6], [limit], [5]]
    assert 50_000 - 3 <= sent[1].batch.size <= 50_000
    assert [bool(one.batch.expiry_last_ms) for one in sent] == [True, True, False]


def test_b04_a_large_message_leaves_the_times_of_the_batch_before_it_alone(clock: Clock) -> None:
    host = RecordingHost()
    host.publisher.send_nowait("q", b"for ever")
    host.publisher.send_nowait("q", bytes(limits.BATCH_BYTES_TARGET), ttl=1)
    small, large = host.flush()
    assert (small.batch.expiry_first_ms, small.batch.expiry_last_ms) == (0, 0)
    assert (large.batch.expiry_first_ms, large.batch.expiry_last_ms) == (START_MS + 1000, START_MS + 1000)


def test_b14_a_transaction_has_batches_of_its_own_and_they_are_staged() -> None:
    host = RecordingHost()
    there = host.publisher
    there.send_nowait("q", b"before")
    there.send_nowait("other", b"before")
    there._begin_transaction(3)
    there.send_nowait("q", b"in 3")
    there.send_many_nowait("q", [b"in 3, too"], priority=9)
    there._end_transaction()
    there.send_nowait("q", b"between")
    there._begin_transaction(4)
    there.send_nowait("q", b"in 4")
    there._end_transaction()
    sent = [(frames.Type(one.kind).name, one.transaction, one.bodies) for one in host.flush()]
    assert sent == [
        ("PUBLISH", 0, [b"before"]),
        ("STAGE", 3, [b"in 3"]),
        ("STAGE", 3, [b"in 3, too"]),
        ("PUBLISH", 0, [b"between"]),
        ("STAGE", 4, [b"in 4"]),
        ("PUBLISH", 0, [b"before"]),
    ]
    assert sorted(one.first for one in host.sent) == [1, 2, 3, 4, 5, 6]
    assert {one.floor for one in host.sent} == {1}


def test_b14_staged_batches_are_answered_refused_and_sent_again_like_others() -> None:
    host = RecordingHost()
    there = host.publisher
    there._begin_transaction(1)
    tickets = [there.send_nowait("q", b"%d" % number, priority=number) for number in range(3)]
    host.flush()
    host.published(host.sent[0])
    assert [ticket.done for ticket in tickets] == [True, False, False]
    host.refused(host.sent[1].first)
    assert there.is_blocked("q")
    host.resume(host.sent[1].first)
    host.turn()
    assert [(one.first, one.resend) for one in host.sent[3:]] == [(2, False), (3, False)]
    host.reconnect()
    host.turn()
    again = host.sent[5:]
    assert [(one.kind, one.transaction, one.first, one.resend) for one in again] == [
        (frames.Type.STAGE, 1, 2, True),
        (frames.Type.STAGE, 1, 3, True),
    ]
    host.published(*again)
    assert all(ticket.done for ticket in tickets)


def test_b14_delivery_cannot_be_waited_for_within_a_transaction() -> None:
    host = RecordingHost()
    host.publisher._begin_transaction(1)
    for until in ("any", "every"):
        with pytest.raises(BadArgument):
            host.publisher.send_nowait("q", b"", until=until)
    host.publisher.send_nowait("q", b"", until="stored")
    host.publisher._end_transaction()
    host.publisher.send_nowait("q", b"", until="any")
    with pytest.raises(BadArgument):
        host.publisher._begin_transaction(0)
    assert [one.flags for one in host.flush()] == [0, frames.UNTIL_ANY]


def test_b16_what_is_no_destination_is_refused() -> None:
    host = RecordingHost()
    for wrong in ("", "two words", "glob:x*", "bag:x"):
        with pytest.raises(BadName):
            host.publisher.send_nowait(wrong, b"")
    with pytest.raises(BadArgument):
        host.publisher.send_nowait(7, b"")  # type: ignore[arg-type]
    with pytest.raises(BadArgument):
        host.publisher.send_nowait("q", "\ud800")
    host.publisher.send_nowait("_temp.00000000000000000000000000000007.1", b"")


def test_b04_destinations_that_are_done_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "LANES_MIN", 10)
    host = RecordingHost()
    host.publisher._lanes_max = 10
    busy = host.publisher.send_nowait("busy", b"")
    host.turn()
    watched = host.publisher.send_nowait("watched", b"", until="any")
    host.turn()
    host.published(host.sent[1])
    for number in range(1_000):
        host.publisher.send_nowait(f"reply.{number}", b"")
        host.turn()
        host.published(host.sent[-1])
    assert len(host.publisher._lanes) <= 20
    assert {"busy", "watched"} <= host.publisher._lanes.keys()
    host.published(host.sent[0])
    host.delivered((host.sent[1].first, host.sent[1].end, frames.CONFIRMED))
    assert busy.done and watched.how == "confirmed"
    assert host.publisher.buffered_bytes == 0


OPTION = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 2),
        "ttl": st.sampled_from([None, 1, 5]),
        "delay": st.sampled_from([None, 0, 2]),
        "group": st.sampled_from([None, "a", "b"]),
        "until": st.sampled_from(["stored", "any", "every"]),
        "type": st.sampled_from([None, "t"]),
    },
)
STEP = st.tuples(st.sampled_from(["q", "r"]), st.integers(1, 3), st.sampled_from([0, 3, 40_000, 140_000]), OPTION)


@given(st.lists(STEP, max_size=25))
def test_b04_whatever_is_sent_every_batch_tells_the_truth(steps: list[tuple[str, int, int, dict[str, Any]]]) -> None:
    host = RecordingHost(window=1 << 30)
    wanted: dict[str, list[tuple[bytes, dict[str, Any]]]] = {}
    for number, (destination, count, size, options) in enumerate(steps):
        bodies = [b"%d.%d" % (number, index) + bytes(size) for index in range(count)]
        if count > 1 and options.get("until", "stored") == "stored":
            host.publisher.send_many_nowait(destination, bodies, **options)
        else:
            for body in bodies:
                host.publisher.send_nowait(destination, body, **options)
        wanted.setdefault(destination, []).extend((body, options) for body in bodies)
    host.flush()
    got: dict[str, list[tuple[bytes, dict[str, Any]]]] = {name: [] for name in wanted}
    for one in host.sent:
        sent = wanted[one.destination][len(got[one.destination]) :][: one.count]
        for (body, options), headers, carried in zip(sent, one.headers, one.bodies, strict=True):
            got[one.destination].append((carried, options))
            assert carried == body
            assert one.batch.priority == options.get("priority", 4)
            assert (one.batch.deliver_at_ms > 0) == bool(options.get("delay"))
            assert one.flags == {"stored": 0, "any": 2, "every": 4}[options.get("until", "stored")]
            assert (headers.type, headers.group) == (options.get("type"), options.get("group"))
            assert (headers.expires_at_ms > 0) == (options.get("ttl") is not None)
        times = [headers.expires_at_ms for headers in one.headers]
        assert one.batch.expiry_first_ms == min((ms for ms in times if ms), default=0)
        assert one.batch.expiry_last_ms == (max(times) if all(times) else 0)
        groups = [options.get("group") for _, options in sent]
        assert one.groups == ([group_hash(name) if name else 0 for name in groups] if any(groups) else None)
    assert got == wanted


def test_b04_a_lone_message_after_a_lone_one_does_not_wait_for_the_turn() -> None:
    async def main() -> None:
        host = RecordingHost()
        sending: list[asyncio.Task[str]] = []

        async def send(*bodies: bytes) -> int:
            """How many batches have left before the turn."""
            before = len(host.sent)
            sending[:] = [asyncio.create_task(host.publisher.send("q", body)) for body in bodies]
            await asyncio.sleep(0)
            return len(host.sent) - before

        async def answered() -> None:
            while not all(task.done() for task in sending):
                host.turn()
                host.published(*[one for one in host.sent if one.first in host.publisher._by_first])
                await asyncio.sleep(0)

        assert await send(b"0") == 0  # nothing is known yet
        await answered()
        assert await send(b"1") == 1
        await answered()
        assert await send(b"2", b"3", b"4") == 1  # nobody can know that more are to come …
        host.turn()
        assert len(host.sent) == 3  # … but they go together, when the first one is answered
        await answered()
        assert await send(b"5", b"6") == 0  # and from then on
        await answered()
        host.scheduled = True
        assert await send(b"7") == 0  # whatever waits for the turn goes first
        await answered()
        assert [one.bodies for one in host.sent] == [
            [b"0"], [b"1"], [b"2"], [b"3", b"4"], [b"5", b"6"], [b"7"],
        ]  # fmt: skip
        assert await sending[0] == ids.format_id(PRODUCER + 8)

    asyncio.run(main())


def test_b04_a_lone_message_that_fails_is_told_once() -> None:
    async def main() -> None:
        host = RecordingHost()
        first = asyncio.create_task(host.publisher.send("q", b"0"))
        await asyncio.sleep(0)
        host.turn()
        host.published(host.sent[0])
        await first
        second = asyncio.create_task(host.publisher.send("q", b"1"))
        await asyncio.sleep(0)
        host.failed(host.sent[1], Blocked(destination="q", detail="full"))
        with pytest.raises(Blocked):
            await second
        host.publisher._failures.tell()  # by nobody else

    asyncio.run(main())


def test_b04_senders_that_take_turns_come_to_share_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        host = RecordingHost(answering=True)
        answer, loop = host._answer, asyncio.get_running_loop()
        monkeypatch.setattr(host, "_answer", lambda sent: loop.call_soon(answer, sent))  # no answer within a turn

        async def work(number: int, messages: int) -> None:
            for _ in range(messages):
                await host.publisher.send("q", b"%d" % number)

        await work(0, 3)
        await asyncio.gather(*(work(number, 20) for number in range(5)))
        # The first message of five went at once, the others with the next one of its sender: all in step.
        assert [one.count for one in host.sent[3:]] == [1, *[5] * 19, 4]

    asyncio.run(main())
