"""Messages whose sender waits for their delivery: answers in pieces, reconnections, and nobody else held up."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.client.delivered import Deliveries, Delivery
from clarion.client.lanes import Lane
from clarion.client.options import Terms
from clarion.client.outbox import OutBatch
from clarion.errors import BadFrame, NoSuchDestination, ProducerForgotten, SessionClosed, WrongKind
from clarion.ids import format_id
from clarion.wire import frames
from clarion.wire.frames import CONFIRMED, DEAD, EXPIRED, RESEND, UNTIL_ANY, UNTIL_EVERY, UNWANTED
from tests.unit.client.recording_host import PRODUCER, RecordingHost
from tests.unit.client.scripted_broker import run


def test_b04_a_ticket_waits_for_delivery_and_says_how() -> None:
    async def main() -> None:
        host = RecordingHost()
        tickets = [host.publisher.send_nowait("q", b"%d" % number, until="any") for number in range(4)]
        plain = host.publisher.send_nowait("q", b"plain")
        host.flush()
        assert [one.flags for one in host.sent] == [UNTIL_ANY, 0]
        waiting = [asyncio.create_task(_await(ticket)) for ticket in (*tickets, plain)]
        host.published(*host.sent)
        for _ in range(3):
            await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [False] * 4 + [True]
        assert [ticket.done for ticket in (*tickets, plain)] == [False] * 4 + [True]
        assert host.publisher.buffered_bytes > 0
        for index, how in enumerate([CONFIRMED, UNWANTED, EXPIRED, DEAD]):
            assert tickets[index].how is None
            host.delivered((1 + index, 2 + index, how))
            assert await waiting[index] == format_id(PRODUCER + 1 + index)
            assert tickets[index].done
        assert [ticket.how for ticket in tickets] == ["confirmed", "unwanted", "expired", "dead"]
        assert plain.how is None
        assert host.publisher.buffered_bytes == 0
        assert await tickets[0] == format_id(PRODUCER + 1)

    run(main())


async def _await(ticket: object) -> str:
    return await ticket  # type: ignore[no-any-return, misc]


def test_b04_send_returns_when_it_is_delivered() -> None:
    async def main() -> None:
        host = RecordingHost()
        sending = asyncio.create_task(host.publisher.send("q", b"", until="every"))
        await asyncio.sleep(0)
        host.turn()
        assert host.sent[0].flags == UNTIL_EVERY
        host.published(host.sent[0])
        await asyncio.sleep(0)
        assert not sending.done()
        host.delivered((1, 2, UNWANTED))
        assert await sending == format_id(PRODUCER + 1)

    run(main())


def test_b04_what_is_stored_holds_up_neither_lane_nor_floor_nor_flush() -> None:
    async def main() -> None:
        host = RecordingHost(window=100_000)
        watched = host.publisher.send_nowait("q", bytes(90_000), until="every")
        host.turn()
        flushing = asyncio.create_task(host.publisher._flush_sends())
        await asyncio.sleep(0)
        assert not flushing.done()
        host.published(host.sent[0])
        await flushing
        assert not watched.done
        later = host.publisher.send_nowait("q", bytes(90_000))
        host.turn()
        assert host.sent[1].floor == host.sent[1].first == 2
        host.published(host.sent[1])
        assert later.done
        await host.publisher._flush_sends()

    run(main())


def test_b13_what_is_not_delivered_counts_against_the_buffer() -> None:
    async def main() -> None:
        host = RecordingHost(buffer_bytes=200_000)
        for _ in range(3):
            host.publisher.send_nowait("q", bytes(80_000), until="any")
            host.turn()
            host.published(host.sent[-1])
        assert host.publisher.is_blocked()
        waiting = asyncio.create_task(host.publisher.writable())
        host.loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        assert not waiting.done()
        host.delivered((1, 3, CONFIRMED))  # one answer for two batches
        await waiting
        assert not host.publisher.is_blocked()

    run(main())


def test_b02_what_is_stored_and_not_delivered_is_sent_again_before_the_rest() -> None:
    host = RecordingHost()
    there = host.publisher
    tickets = [there.send_nowait("q", b"%d" % number, until="any", priority=number) for number in range(3)]
    host.published(*host.flush())
    host.delivered((2, 3, CONFIRMED))
    unanswered = there.send_nowait("q", b"not answered")
    host.turn()
    waiting = there.send_nowait("q", b"not sent")
    host.reconnect()
    there.send_nowait("q", b"new")
    host.turn()
    again = host.sent[4:]
    assert [(one.first, one.flags, one.floor) for one in again] == [
        (1, UNTIL_ANY | RESEND, 1),
        (3, UNTIL_ANY | RESEND, 3),
        (4, RESEND, 4),
    ]
    assert not tickets[0].done
    host.published(*again)  # a double is answered like the first one
    host.delivered((1, 2, CONFIRMED), (2, 3, CONFIRMED))
    assert [ticket.how for ticket in tickets] == ["confirmed", "confirmed", None]
    host.delivered((3, 4, DEAD))
    assert tickets[2].how == "dead"
    host.turn()
    host.published(host.sent[-1])
    assert unanswered.done and waiting.done
    assert there.buffered_bytes == 0
    host.reconnect()
    host.turn()
    assert len(host.sent) == 8


def test_b02_a_delivery_may_be_told_before_or_without_the_answer_to_a_resend() -> None:
    host = RecordingHost()
    early = host.publisher.send_nowait("q", b"", until="any")
    host.turn()
    host.delivered((1, 2, CONFIRMED))
    assert [early.done, early.how] == [False, "confirmed"]  # not yet known to be stored
    host.published(host.sent[0])
    assert [early.done, early.how] == [True, "confirmed"]
    again = host.publisher.send_nowait("q", b"", until="any")
    host.turn()
    host.published(host.sent[1])
    host.reconnect()
    host.turn()
    host.delivered((2, 3, EXPIRED))
    assert again.done and again.how == "expired"
    assert host.publisher._lanes["q"].used > 0  # the resend is still to be answered: its bytes fill the window
    host.reconnect()
    assert host.publisher._lanes["q"].used == 0
    assert host.publisher.buffered_bytes == 0
    host.turn()
    assert len(host.sent) == 3


def test_b13_a_stored_batch_that_is_refused_when_sent_again_comes_again_in_order() -> None:
    host = RecordingHost()
    there = host.publisher
    watched = there.send_nowait("q", b"0", until="any")
    host.turn()
    host.published(host.sent[0])
    host.reconnect()
    there.send_nowait("q", b"1")
    host.flush()
    assert [one.first for one in host.sent[1:]] == [1, 2]
    host.refused(1)
    host.delivered((1, 2, CONFIRMED))  # the broker still wants to see it before anything else
    assert watched.done
    host.resume(1)
    host.turn()
    assert [one.first for one in host.sent[3:]] == [1, 2]
    host.published(*host.sent[3:])
    assert there.buffered_bytes == 0


def test_b02_what_can_no_longer_be_known_fails_for_those_who_wait() -> None:
    async def main() -> None:
        host = RecordingHost()
        there = host.publisher
        first = there.send_nowait("q", b"", until="any")
        second = there.send_nowait("q", b"", until="any", priority=9)
        host.published(*host.flush())
        host.reconnect()
        host.turn()
        host.failed(host.sent[2], NoSuchDestination(destination="q"))
        assert first.done and not second.done
        with pytest.raises(NoSuchDestination):
            await first
        there._failures.tell()  # it is stored: that is all that `flush` promises
        host.reconnect(PRODUCER + (1 << 48))
        with pytest.raises(ProducerForgotten):
            await second
        third = there.send_nowait("q", b"", until="any")
        half = [there.send_nowait("r", b"", until="any") for _ in range(2)]
        host.turn()
        assert host.sent[-1].first <= 3  # a new producer counts from 1
        host.published(*host.sent[-2:])
        host.delivered((host.sent[-1].first, host.sent[-1].first + 1, CONFIRMED))
        there._end_sends(SessionClosed())
        with pytest.raises(SessionClosed):
            await third
        assert await half[0] == format_id(PRODUCER + (1 << 48) + host.sent[-1].first)
        with pytest.raises(SessionClosed):
            await half[1]
        assert half[1].done and half[1].how is None
        assert there.buffered_bytes == 0

    run(main())


def test_b01_a_batch_that_is_never_stored_fails_its_tickets_once() -> None:
    async def main() -> None:
        host = RecordingHost()
        tickets = [host.publisher.send_nowait("q", b"", until="every") for _ in range(2)]
        host.turn()
        host.failed(host.sent[0], WrongKind(destination="q", kind="topic", wanted="queue"))
        with pytest.raises(WrongKind):
            await tickets[0]
        assert tickets[1].done
        with pytest.raises(WrongKind):
            host.publisher._failures.tell()
        assert host.publisher.buffered_bytes == 0
        assert len(host.publisher._deliveries) == 0

    run(main())


def test_b01_a_way_of_delivery_that_nobody_knows_costs_the_connection() -> None:
    host = RecordingHost()
    host.publisher.send_nowait("q", b"", until="any")
    host.turn()
    with pytest.raises(BadFrame):
        host.delivered((1, 2, 4))
    host.delivered((50, 60, CONFIRMED))  # nobody's: too late, or never


@given(st.data(), st.integers(1, 40))
def test_b04_answers_in_any_order_and_cut_anywhere_count_once(data: st.DataObject, count: int) -> None:
    delivery = Delivery(count)
    known: list[int | None] = [None] * count  # the naive model
    for _ in range(data.draw(st.integers(0, 12))):
        first = data.draw(st.integers(-5, count))
        end = data.draw(st.integers(first, count + 5))
        how = data.draw(st.sampled_from([CONFIRMED, UNWANTED, EXPIRED, DEAD]))
        delivery.note(first, end, how)
        for index in range(max(first, 0), min(end, count)):
            known[index] = how if known[index] is None else known[index]
        assert delivery.left == known.count(None)
        names = ["confirmed", "unwanted", "expired", "dead"]
        assert [delivery.how(index) for index in range(count)] == [how if how is None else names[how] for how in known]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=200), st.data())
def test_b04_the_batches_of_an_answer_are_found_among_those_that_wait(counts: list[int], data: st.DataObject) -> None:
    lane, deliveries, batches, at = Lane("q", 1 << 20), Deliveries(), [], 1
    for count in counts:
        batch = OutBatch(lane, 0, Terms(4, 0, UNTIL_ANY))
        batch.bodies = [b""] * count
        batch.seal(PRODUCER + at)
        deliveries.add(batch)
        batches.append(batch)
        at += count + data.draw(st.integers(0, 2))
    for _ in range(data.draw(st.integers(1, 30))):
        first, end = sorted((data.draw(st.integers(1, at)), data.draw(st.integers(1, at + 3))))
        end = max(end, first + 1)
        waiting = [one for one in batches if one.delivery is not None and one.delivery.left]
        found = list(deliveries.covered(first, end))
        assert found == [one for one in waiting if one.first < end and first < one.first + one.count]
        for batch in found:
            assert batch.delivery is not None
            batch.delivery.note(0, batch.count, CONFIRMED)
            deliveries.over()
        assert len(deliveries) == len(waiting) - len(found)
    assert list(deliveries) == [one for one in batches if one.delivery is not None and one.delivery.left]


def test_b04_many_waiters_of_one_batch_are_woken_by_many_answers() -> None:
    async def main() -> None:
        host = RecordingHost()
        tickets = [host.publisher.send_nowait("q", b"", until="any") for _ in range(1_000)]
        waiting = [asyncio.create_task(_await(ticket)) for ticket in tickets for _ in range(2)]
        host.turn()
        host.published(host.sent[0])
        waiting[1].cancel()
        await asyncio.sleep(0)
        cuts = [1, 2, 3, 500, 900, 1_001]
        for first, end in reversed(list(pairwise(cuts))):
            host.delivered((first, end, frames.CONFIRMED))
        ids = await asyncio.gather(*waiting, return_exceptions=True)
        assert ids[0] == format_id(PRODUCER + 1)
        assert isinstance(ids[1], asyncio.CancelledError)
        assert ids[2::2] == ids[3::2] == [format_id(PRODUCER + 1 + index) for index in range(1, 1_000)]

    run(main())
