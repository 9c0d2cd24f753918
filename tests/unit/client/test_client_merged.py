"""Consumers of patterns: topics by number, turns, confirmations, credit, reconnection."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import client
from clarion.client.inbox import Credit, Inbox, Part
from clarion.client.merged import Merged
from clarion.errors import BadArgument, BadPattern, NoSuchDestination
from clarion.wire import frames
from clarion.wire.batch import encode
from clarion.wire.frames import Slice, Type
from tests.unit.client.scripted_broker import ServerEnd, run
from tests.unit.client.scripted_semantics import FullBroker, full_broker
from tests.unit.client.traffic import take


async def filled(session: client.Session, name: str, count: int) -> None:
    await session.send_many(name, [b"%s %d" % (name.encode(), number) for number in range(count)])


def subscribes(there: FullBroker, connection: int) -> list[dict[str, object]]:
    return [frames.unpack(f.payload) for number, f in there.log if f.type == Type.SUBSCRIBE and number == connection]


def test_b15_one_consumer_gets_all_topics_and_those_that_come_later() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "topic:a.1", 3)
            await filled(session, "topic:b.1", 3)
            consumer = session.receive("glob:a.*")
            first = await take(consumer, 3)
            await filled(session, "topic:a.2", 3)
            await filled(session, "a.queue", 1)
            second = await take(consumer, 3)
            assert [m.destination for m in first + second] == ["topic:a.1"] * 3 + ["topic:a.2"] * 3
            assert [m.sequence for m in first + second] == [0, 1, 2, 0, 1, 2]
            await session.confirm(first[0], second[2], second[1])
            await first[2].confirm()
            assert there.confirmed == {"topic:a.1": {0, 2}, "topic:a.2": {1, 2}}
            confirms = [frames.unpack_ack(f.payload) for _, f in there.log if f.type == Type.CONFIRM]
            assert all(number >= frames.MERGED_NUMBER_MIN for number, _, _ in confirms)
            await first[1].reject("no")
            (again,) = await take(consumer, 1)
            assert (again.destination, again.sequence, again.delivery_count) == ("topic:a.1", 1, 2)

    run(main())


def test_b15_leaving_returns_what_was_prefetched_of_every_topic() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for name in ("topic:a.1", "topic:a.2", "topic:a.3"):
                await filled(session, name, 4)
            async for message in session.receive("glob:a.*"):
                if message.sequence == 1:
                    break
            await there.until(lambda: there.unsubscribed)
            (said,) = there.unsubscribed
            assert (said["consumer"], said["unseen"]) == (1, [])
            first = frames.MERGED_NUMBER_MIN
            assert said["unseen_merged"] == [[first, [[2, 4]]], [first + 1, [[0, 4]]], [first + 2, [[0, 4]]]]
            await message.confirm()  # of a consumer that is no more
            assert there.confirmed == {"topic:a.1": {1}}
            assert not session._receivers or session._receivers[1]._inboxes()[0].held

    run(main())


def test_b15_a_late_delivery_of_a_topic_is_given_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "topic:a.1", 2)
            consumer = session.receive("glob:a.*")
            await take(consumer, 1)
            leaving = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            number = frames.MERGED_NUMBER_MIN
            late = frames.deliver_parts(number, [(2, 1, False, [encode(b"topic:a.1", 1, [b"late"])])])
            there.end.send(Type.DELIVER, 1, b"".join(late))
            await leaving
            await there.until(lambda: len(there.unsubscribed) == 2)
            assert there.unsubscribed[1]["unseen_merged"] == [[number, [[2, 3]]]]

    run(main())


def test_b15_credit_is_shared_and_belongs_to_the_pattern() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for number in range(5):
                await filled(session, f"topic:a.{number}", 40)
            consumer = session.receive("glob:a.*", prefetch_messages=10)
            messages = await take(consumer, 200)
            assert len(messages) == 200
            for number in range(5):
                of_one = [m.sequence for m in messages if m.destination == f"topic:a.{number}"]
                assert of_one == list(range(40))
            assert {number for number, _, _ in there.credits} == {1}
            assert all(given >= 5 for _, given, _ in there.credits)
            assert subscribes(there, 0)[0]["held_merged"] == []

    run(main())


def test_b15_reconnection_claims_by_destination_and_numbers_are_new() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "topic:a.1", 4)
            await filled(session, "topic:a.2", 4)
            consumer = session.receive("glob:a.*", prefetch_messages=4)
            one = await take(consumer, 4)
            (two,) = await take(consumer, 1)
            await one[0].confirm()
            there.confirming = False
            confirming = asyncio.create_task(one[1].confirm())
            await there.until(lambda: 1 in there.confirmed.get("topic:a.1", set()))
            there.confirming = True
            there.end.cut()
            await confirming
            assert subscribes(there, 1)[0]["held_merged"] == [["topic:a.1", [[1, 4]]], ["topic:a.2", [[0, 1]]]]
            rest = await take(consumer, 3)
            assert [(m.destination, m.sequence) for m in rest] == [("topic:a.2", n) for n in (1, 2, 3)]
            await session.confirm(one[2:], two, rest)
            assert there.confirmed == {"topic:a.1": {0, 1, 2, 3}, "topic:a.2": {0, 1, 2, 3}}
            numbers = {frames.unpack_ack(f.payload)[0] for n, f in there.log if f.type == Type.CONFIRM and n == 1}
            assert numbers == {frames.MERGED_NUMBER_MIN + 2, frames.MERGED_NUMBER_MIN + 3}

    run(main())


def test_b15_confirmations_made_while_the_link_was_lost_go_with_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "topic:a.1", 2)
            consumer = session.receive("glob:a.*")
            messages = await take(consumer, 2)
            send = ServerEnd.send

            def late(end: ServerEnd, kind: int, channel: int, *parts: bytes) -> None:
                delay_s = 0.02 if kind == Type.REPLY else 0  # numbers come well before the reply
                asyncio.get_running_loop().call_later(delay_s, send, end, kind, channel, *parts)

            monkeypatch.setattr(ServerEnd, "send", late)
            lost = asyncio.Event()
            connection.on_state = lambda _state: lost.set()
            there.end.cut()
            await lost.wait()
            await session.confirm(messages)
            assert there.confirmed == {"topic:a.1": {0, 1}}

    run(main())


def test_b15_a_topic_that_vanished_while_we_were_away_fails_its_confirmations_only() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "topic:a.1", 2)
            await filled(session, "topic:a.2", 2)
            consumer = session.receive("glob:a.*")
            messages = await take(consumer, 4)
            there.dropped.add("topic:a.1")
            there.end.cut()
            with pytest.raises(NoSuchDestination):
                await messages[0].confirm()
            await messages[2].confirm()
            assert there.confirmed["topic:a.2"] == {0}

    run(main())


def test_b15_a_topic_that_vanishes_ends_alone_and_gives_its_credit_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "topic:a.1", 10)
            consumer = session.receive("glob:a.*", prefetch_messages=10)
            messages = await take(consumer, 2)
            error = frames.pack(frames.error_facts(NoSuchDestination(destination="topic:a.1")))
            closed = frames.CLOSED.pack(frames.MERGED_NUMBER_MIN, 0) + error
            there.end.send(Type.CONSUMER_CLOSED, 1, closed)
            await there.until(lambda: sum(given for _, given, _ in there.credits) == 10)
            with pytest.raises(NoSuchDestination):
                await messages[0].confirm()
            await filled(session, "topic:a.2", 10)
            assert [m.destination for m in await take(consumer, 10)] == ["topic:a.2"] * 10

    run(main())


def test_b15_modes_and_transactions_work_over_patterns() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "topic:a.1", 2)
            await filled(session, "topic:a.2", 2)
            async for message in session.receive("glob:a.*", ack="auto"):
                if message.destination == "topic:a.2":
                    break
            await session.flush()
            assert there.confirmed == {"topic:a.1": {0, 1}, "topic:a.2": {0}}
            await filled(session, "topic:a.3", 2)
            async with connection.session(transacted=True) as transacted:
                await take(transacted.receive("glob:a.[23]"), 3)
                await transacted.commit()
                (said,) = there.verbs("commit")
                assert all(number >= frames.MERGED_NUMBER_MIN for number, _ in said["consumed"])
            assert there.confirmed["topic:a.2"] == {0, 1}
            assert there.confirmed["topic:a.3"] == {0, 1}
            await filled(session, "topic:b.1", 2)
            await filled(session, "topic:b.2", 2)
            consumer = session.receive("glob:b.*", ack="client")
            messages = await take(consumer, 3)
            await messages[0].confirm()
            assert there.confirmed["topic:b.1"] == {0, 1}
            assert there.confirmed["topic:b.2"] == {0}

    run(main())


def test_b15_what_is_no_pattern_is_refused_and_sequences_need_a_topic() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for wrong in ("glob:", "regex:", "glob:" + "x" * 2_000):
                with pytest.raises(BadPattern):
                    session.receive(wrong)
            with pytest.raises(BadArgument, match="start_time"):
                session.receive("glob:*", start=3)
            consumer = session.receive("glob:*")
            for refused in (consumer.confirm(0, 1), consumer.reject(0, 1)):
                with pytest.raises(BadArgument):
                    await refused
            there.end.send(Type.MERGED, 1, frames.pack({"consumer": 77, "merged": [[1 << 31, "topic:x"]]}))
            await session.command("status")
            there.end.send(Type.MERGED, 1, b"\xc1")
            await there.until(lambda: len(there.ends) == 2)  # no broker of ours says such a thing

    run(main())


class Nobody:
    """An owner that does nothing."""

    def _mark(self, inbox: Inbox) -> None: ...

    def _check_open(self) -> None: ...


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 3)), max_size=40))
def test_b15_order_is_kept_within_a_topic_and_turns_are_fair(steps: list[tuple[bool, int, int]]) -> None:
    """Against a naive model: a list for each topic, and how long each has waited."""
    credit = Credit(10_000, 1 << 20)
    merged = Merged(lambda name: Inbox(Nobody(), 0, name))
    inboxes = [merged.numbered((1 << 31) + n, f"topic:{n}") for n in range(4)]
    waiting: dict[int, list[int]] = {n: [] for n in range(4)}
    nexts = [0, 0, 0, 0]
    passed_over = [0, 0, 0, 0]
    for deliver, topic, count in steps:
        if deliver:
            batch = encode(b"topic:%d" % topic, 1, [b"x"] * count)
            merged.deliver(Part(inboxes[topic], Slice(nexts[topic], 1, False, memoryview(bytes(batch))), credit))
            waiting[topic].append(nexts[topic])
            nexts[topic] += count
            continue
        part = merged.next_part()
        if part is None:
            assert not any(waiting.values())
            continue
        took = inboxes.index(part.inbox)
        assert part.first == waiting[took].pop(0)
        passed_over = [0 if n == took or not waiting[n] else passed_over[n] + 1 for n in range(4)]
        assert max(passed_over) <= 3
    assert sum(map(len, waiting.values())) == sum(len(inbox.parts) for inbox in inboxes)
