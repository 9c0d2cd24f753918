"""Whole lists of bodies in one call: all or nothing, in order, without a loop over messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import client, limits
from clarion.client.outbox import BATCH_KEPT_BYTES
from clarion.errors import BadArgument, Blocked, MessageTooLarge, SessionClosed, WrongKind
from clarion.wire import frames
from tests.unit.client.recording_host import RecordingHost
from tests.unit.client.scripted_broker import broker, run


def sent_bodies(host: RecordingHost) -> list[bytes]:
    return [body for one in host.flush() for body in one.bodies]


def test_b04_a_list_arrives_complete_and_in_order_between_other_messages() -> None:
    host = RecordingHost(window=1 << 30)
    bodies = [b"%d" % number + bytes(number % 300) for number in range(20_000)]
    host.publisher.send_nowait("q", b"before")
    host.publisher.send_many_nowait("q", bodies)
    host.publisher.send_nowait("q", b"after")
    assert sent_bodies(host) == [b"before", *bodies, b"after"]
    assert max(one.batch.size for one in host.sent) < 2 * limits.BATCH_BYTES_TARGET
    assert max(one.count for one in host.sent) <= limits.BATCH_MESSAGES_TARGET
    assert len(host.sent) <= 2 + sum(map(len, bodies)) // limits.BATCH_BYTES_TARGET * 2


def test_b04_lists_share_batches_with_what_was_sent_before() -> None:
    host = RecordingHost()
    for number in range(100):
        host.publisher.send_many_nowait("q", [b"%d" % number, b"x"])
        host.publisher.send_nowait("q", b"y")
    sent_bodies(host)
    assert [one.count for one in host.sent] == [300]
    host.publisher.send_many_nowait("q", [])
    assert host.publisher._lanes["q"].open is None


@given(st.lists(st.sampled_from([0, 1, 30, 5_000, 30_000, 65_000, 70_000]), max_size=30), st.integers(0, 70_000))
def test_b04_however_large_the_bodies_are_batches_keep_the_limit(sizes: list[int], before: int) -> None:
    host = RecordingHost(window=1 << 30, batch_bytes_max=70_500)
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    host.publisher.send_nowait("q", bytes(before), group="g")
    host.publisher.send_many_nowait("q", bodies, group="h", properties={"n": 1})
    host.publisher.send_many_nowait("q", bodies)
    assert sent_bodies(host) == [bytes(before), *bodies, *bodies]
    assert max(one.batch.size for one in host.sent) <= 70_500
    assert {one.batch.size for one in host.sent} == {len(one.batch.buffer) for one in host.sent}


def test_b04_options_are_those_of_every_message_of_the_list() -> None:
    host = RecordingHost()
    bodies = [b"%d" % number for number in range(9_000)]
    host.publisher.send_many_nowait("q", bodies, priority=9, properties={"n": 1}, group="g", ttl=60, type="t")
    assert sent_bodies(host) == bodies
    for one in host.sent:
        assert one.batch.priority == 9
        assert one.batch.expiry_first_ms == one.batch.expiry_last_ms > 0
        assert {(h.type, h.group, str(h.properties), h.expires_at_ms > 0) for h in one.headers} == {
            ("t", "g", "{'n': 1}", True)
        }
        assert one.groups is not None and len(set(one.groups)) == 1


def test_b04_bodies_are_converted_and_copied() -> None:
    host = RecordingHost()
    changing = bytearray(b"before")
    given_list: list[Any] = [b"a", "tëxt", changing, memoryview(changing)[:2]]
    host.publisher.send_many_nowait("q", given_list)
    host.publisher.send_many_nowait("q", (body for body in ("gen", "erator")))
    changing[:] = b"after!"
    given_list.clear()
    assert sent_bodies(host) == [b"a", "tëxt".encode(), b"before", b"be", b"gen", b"erator"]


@pytest.mark.parametrize("wrong", [b"bytes", "text", bytearray(b"x"), memoryview(b"x"), [b"", 7], [b"", "\ud800"]])
def test_b04_what_is_no_list_of_bodies_is_refused(wrong: Any) -> None:
    host = RecordingHost()
    with pytest.raises(BadArgument, match="bodies"):
        host.publisher.send_many_nowait("q", wrong)
    assert sent_bodies(host) == []


@pytest.mark.parametrize("options", [{}, {"properties": {"n": 1}}, {"group": "g"}])
def test_b04_a_body_that_is_too_large_is_named_and_nothing_is_sent(options: Any) -> None:
    async def main() -> None:
        host = RecordingHost(batch_bytes_max=100_000, answering=True)
        bodies = [b"fine"] * 5_000 + [bytes(100_000)] + [b"fine", bytes(200_000)]
        for call in (host.publisher.send_many_nowait, host.publisher.send_many):
            with pytest.raises(MessageTooLarge) as refused:
                made = call("q", bodies, **options)
                if made is not None:
                    await made
            assert refused.value.facts["index"] == 5_000
            assert refused.value.__notes__ == ["it is bodies[5000]"]
        assert sent_bodies(host) == []
        limit = refused.value.facts["limit"]
        assert isinstance(limit, int)
        bodies[5_000:] = [bytes(limit), b"last"]
        await host.publisher.send_many("q", bodies, **options)
        assert sent_bodies(host) == bodies

    run(main())


def test_b13_a_full_buffer_refuses_the_whole_list_and_writable_waits() -> None:
    async def main() -> None:
        async with (
            broker() as there,
            client.connect(there.url, buffer_bytes=500_000) as connection,
            connection.session() as session,
        ):
            there.answering = False
            session.send_many_nowait("q", [bytes(10_000)] * 100)  # more than the buffer: it was not full
            assert session.is_blocked()
            with pytest.raises(Blocked):
                session.send_many_nowait("q", [bytes(10_000)] * 20)
            with pytest.raises(Blocked):
                session.send_many_nowait("other", [b"few"])
            waiting = asyncio.create_task(session.send_many("q", [b"last"] * 3))
            await there.until(lambda: there.published)
            assert not waiting.done()
            there.answering = True
            for one in list(there.published):
                there.answer(one)
            await waiting
            assert there.bodies("q") == [bytes(10_000)] * 100 + [b"last"] * 3
            assert not session.is_blocked()

    run(main())


def test_b13_a_long_list_is_sent_without_filling_the_buffer() -> None:
    async def main() -> None:
        window = 400_000
        host = RecordingHost(window=window, answering=True)
        most = 0
        bodies = [b"%06d" % number + bytes(94) for number in range(60_000)]

        def look(_: object) -> None:
            nonlocal most
            most = max(most, host.publisher.buffered_bytes)

        host.on_sent = look
        other = asyncio.create_task(host.publisher.send("other", b"gets its turn"))
        await host.publisher.send_many("q", bodies)
        assert [body for one in host.sent if one.destination == "q" for body in one.bodies] == bodies
        assert other.done()
        assert host.publisher.buffered_bytes == 0
        assert 0 < most < 4 * window < sum(map(len, bodies))

    run(main())


def test_b13_a_list_waits_for_room_in_a_small_buffer() -> None:
    async def main() -> None:
        host = RecordingHost(buffer_bytes=200_000, answering=True)
        host.loop = asyncio.get_running_loop()
        bodies = [b"%05d" % number + bytes(95) for number in range(20_000)]
        lists = [host.publisher.send_many(name, bodies) for name in ("a", "b", "c")]
        await asyncio.gather(*lists)
        for name in ("a", "b", "c"):
            assert [body for one in host.sent if one.destination == name for body in one.bodies] == bodies

    run(main())


def test_b01_failures_of_a_list_are_told_once_with_their_number() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.failing["topic:t"] = WrongKind(destination="t", kind="queue", wanted="topic")
            with pytest.raises(WrongKind) as failed:
                await session.send_many("topic:t", [b"x"] * 10)
            assert failed.value.__notes__ == ["10 of 10 messages failed, from bodies[0] on"]
            await session.flush()  # it was told already
            session.send_many_nowait("topic:t", [b"x"] * 10)
            with pytest.raises(WrongKind):
                await session.flush()
            await session.flush()
            ticket = session.send_nowait("topic:t", b"somebody else's")
            sending = asyncio.create_task(session.send_many("topic:t", [b"x"] * 10))
            with pytest.raises(WrongKind):
                await sending
            with pytest.raises(WrongKind):  # the ticket's, which nobody awaited
                await session.flush()
            assert ticket.done

    run(main())


def test_b01_after_a_failure_the_rest_of_a_list_is_not_sent() -> None:
    async def main() -> None:
        host = RecordingHost(window=200_000)
        sending = asyncio.create_task(host.publisher.send_many("q", [bytes(10_000)] * 500))
        error = WrongKind(destination="q", kind="topic", wanted="queue")
        while not sending.done():
            host.turn()
            for one in host.sent:
                host.failed(one, error)
            await asyncio.sleep(0)
        with pytest.raises(WrongKind):
            await sending
        taken = sum(one.count for one in host.sent)
        assert 0 < taken < 200
        assert host.publisher.buffered_bytes == 0

    run(main())


def test_b01_a_list_in_a_session_that_ends_fails() -> None:
    async def main() -> None:
        host = RecordingHost()
        sending = asyncio.create_task(host.publisher.send_many("q", [b"x"] * 10))
        await asyncio.sleep(0)
        host.publisher._end_sends(SessionClosed())
        with pytest.raises(SessionClosed):
            await sending
        with pytest.raises(SessionClosed):
            await host.publisher.send_many("q", [b"x"])
        with pytest.raises(SessionClosed):
            host.publisher.send_many_nowait("q", [b"x"])

    run(main())


def test_b04_a_list_can_wait_for_its_delivery() -> None:
    async def main() -> None:
        host = RecordingHost()
        bodies = [b"%d" % number for number in range(6_000)]
        earlier = host.publisher.send_nowait("q", b"of somebody else", until="every")
        sending = asyncio.create_task(host.publisher.send_many("q", bodies, until="every"))
        await asyncio.sleep(0)
        host.flush()
        assert {one.flags for one in host.sent} == {frames.UNTIL_EVERY}
        host.published(*host.sent)
        host.delivered((2, 4_000, frames.CONFIRMED))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not sending.done()
        host.delivered((4_000, 6_002, frames.EXPIRED))
        await sending
        assert not earlier.done
        with pytest.raises(BadArgument):
            host.publisher.send_many_nowait("q", bodies, until="any")

    run(main())


def test_b13_what_small_batches_cost_is_counted() -> None:
    host = RecordingHost()
    for number in range(1_000):
        host.publisher.send_nowait("q", b"", priority=number % 2)
    assert host.publisher.buffered_bytes >= 999 * BATCH_KEPT_BYTES
