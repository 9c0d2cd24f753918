"""A Clarion server as a recipient: each event one message, under its own id, whatever is sent again (A-08, A-12)."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

import clarion
from clarion import ids
from clarion.errors import ConnectionFailed, NotDelivered, Timeout
from clarion.events.event import Event
from clarion.events.memory.layout import Recorded
from clarion.events.recipients import ClarionServer, Partly
from clarion.ids import IdGenerator
from tests.integration.helpers import bodies, drain, is_idle, run, take
from tests.integration.topologies import Topology, free_port
from tests.unit.events.recipient_events import event
from tests.unit.events.test_recipient_runs import recorded

_generator = IdGenerator.begin(9, 9, time.time_ns() // 1_000_000)


def producer_id() -> int:
    """One that no other test has: brokers remember."""
    return _generator.next_producer()


def records(producer: int, numbers: range, types: str = "a", prefix: str = "") -> list[Recorded]:
    kinds = itertools.cycle(types.split())
    return [recorded(event(n, type=f"{prefix}{next(kinds)}", data=f"{n}"), n, producer) for n in numbers]


def test_a08_an_event_is_one_message_with_its_id_and_headers(server: Topology, name: str) -> None:
    producer = producer_id()

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            one = recorded(event(5, type=name, attributes={"rack": 4}), 5, producer)
            async with session.receive(f"topic:events.{name}") as consumer:
                await consumer.receive(timeout=0)  # it is subscribed
                async with ClarionServer(server.url) as recipient:
                    await recipient.deliver([one])
                (message,) = await take(consumer, 1)
                assert message.id == ids.format_id(producer + 5)
                assert message.type == name and message.timestamp_ms == one.time_ns // 1_000_000
                assert message.properties["source"] == "volume/7" and message.properties["rack"] == 4
                assert Event.from_recorded(one).data == {"free_bytes": 5} and message.body == one.body

    run(scenario())


def test_a08_what_is_sent_again_is_stored_once_however_it_is_cut(server: Topology, name: str) -> None:
    producer, destination = producer_id(), f"queue:{name}"

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            async with ClarionServer(server.url, destination=destination) as recipient:
                await recipient.deliver(records(producer, range(1, 8)))
                await recipient.deliver(records(producer, range(3, 12)))
            async with ClarionServer(server.url, destination=destination) as recipient:  # after a restart, say
                await recipient.deliver(records(producer, range(1, 5)))
                await recipient.deliver(records(producer, range(10, 15)))
            # A partner that replays under the origin's id, and what was left out comes later.
            async with ClarionServer(server.url, destination=destination) as recipient:
                await recipient.deliver(records(producer, range(20, 22)))
                await recipient.deliver(records(producer, range(14, 23)))
            got = [int(body) for body in bodies(await drain(session, destination))]
            assert sorted(got) == list(range(1, 23)), got
            assert got == [*range(1, 15), 20, 21, *range(15, 20), 22]

    run(scenario())


def test_a08_mixed_types_and_producers_keep_their_order(server: Topology, name: str) -> None:
    one, other, name = producer_id(), producer_id(), name[-20:].strip("-")
    first = records(one, range(1, 61), "a b b c")
    second = records(other, range(1, 61), "c a b")
    mixed = [record for pair in zip(first, second, strict=True) for record in pair]
    order = {id(record): number for number, record in enumerate(mixed)}

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            async with ClarionServer(server.url, destination=f"queue:{name}.{{type}}") as recipient:
                await recipient.deliver(mixed[:50])
                await recipient.deliver(mixed[40:])
            numbers = {ids.format_id(record.producer + record.sequence): order[id(record)] for record in mixed}
            total = 0
            for kind in "abc":
                messages = await drain(session, f"queue:{name}.{kind}")
                got = [numbers[message.id] for message in messages]
                assert got == sorted(got) and {message.type for message in messages} == {kind}
                total += len(got)
            assert total == len(mixed)

    run(scenario())


def test_a07_a_destination_that_refuses_does_not_hold_up_others(server: Topology, name: str) -> None:
    one, other, name = producer_id(), producer_id(), name[-20:].strip("-")
    mixed = [*records(one, range(1, 5), "large small"), *records(other, range(1, 5), "large small")]

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            rule = {"pattern": f"{name}.small", "policy": {"message_bytes_max": 1}}
            await connection.command("set_policy", rule)
            async with ClarionServer(server.url, destination=f"queue:{name}.{{type}}") as recipient:
                with pytest.raises(Partly) as caught:
                    await recipient.deliver(mixed)
                assert caught.value.done == {0, 2, 4, 6} and set(caught.value.failed) == {1, 3}
                with pytest.raises(NotDelivered, match="CLN-204") as refused:
                    await recipient.deliver(records(one, range(2, 3), "small"))
                assert refused.value.facts["permanent"] is True
                await connection.command("remove_policy", {"pattern": f"{name}.small"})
                await recipient.deliver(mixed)
            assert bodies(await drain(session, f"queue:{name}.large")) == [b"1", b"3"] * 2
            assert bodies(await drain(session, f"queue:{name}.small")) == [b"2", b"4"] * 2

    run(scenario())


def test_a07_one_event_that_is_too_large_is_named_and_the_others_are_stored(server: Topology, name: str) -> None:
    producer = producer_id()
    many = records(producer, range(1, 301))
    many[123].body = b"x" * 2_000

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("set_policy", {"pattern": name, "policy": {"message_bytes_max": 1_000}})
            async with ClarionServer(server.url, destination=f"queue:{name}") as recipient:
                with pytest.raises(Partly) as caught:
                    await recipient.deliver(many)
            assert set(caught.value.failed) == {123} and caught.value.done == set(range(300)) - {123}
            got = [int(body) for body in bodies(await drain(session, f"queue:{name}"))]
            assert got == [n for n in range(1, 301) if n != 124]

    run(scenario())


def test_a07_a_server_that_is_away_is_noticed_in_time_and_gets_everything_later(
    own_server: Topology, name: str
) -> None:
    producer, destination = producer_id(), f"queue:{name}"

    async def scenario() -> None:
        recipient = ClarionServer(own_server.url, destination=destination, timeout_s=0.5)
        async with recipient:
            await recipient.deliver(records(producer, range(1, 4)))
            own_server.kill()
            for _ in range(3):
                with pytest.raises(Timeout, match="500 ms"):
                    await recipient.deliver(records(producer, range(4, 8)))
            own_server.start()
            recipient._timeout_s = 60
            await recipient.deliver(records(producer, range(4, 8)))
            await recipient.deliver(records(producer, range(1, 10)))
        async with clarion.connect(own_server.url) as connection, connection.session() as session:
            got = [int(body) for body in bodies(await drain(session, destination))]
            assert got == list(range(1, 10))

    run(scenario())


def test_a04_a_server_that_is_not_there_yet(name: str) -> None:
    async def scenario() -> None:
        started = time.monotonic()
        async with ClarionServer(
            f"clarion://127.0.0.1:{free_port()}", timeout_s=0.3
        ) as recipient:  # opening needs none
            with pytest.raises((ConnectionFailed, Timeout)):
                await recipient.deliver(records(producer_id(), range(1, 3)))
        assert time.monotonic() - started < 30

    run(scenario())


def test_a08_another_sender_of_the_same_events_takes_over_and_back(server: Topology, name: str) -> None:
    """A partner sends our events; when we have them back we go on. Each is stored once."""
    producer, destination = producer_id(), f"queue:{name}"

    async def scenario() -> None:
        async with (
            ClarionServer(server.url, destination=destination) as ours,
            ClarionServer(server.url, destination=destination, name="partner") as partner,
        ):
            await ours.deliver(records(producer, range(1, 4)))
            await partner.deliver(records(producer, range(2, 6)))
            with pytest.raises(clarion.ClarionError, match="CLN-"):
                await ours.deliver(records(producer, range(4, 8)))
            await ours.deliver(records(producer, range(4, 8)))  # the engine tries again
        async with clarion.connect(server.url) as connection, connection.session() as session:
            assert [int(body) for body in bodies(await drain(session, destination))] == list(range(1, 8))

    run(scenario())


def test_a08_what_is_settled_is_forgotten_by_the_broker(server: Topology, name: str) -> None:
    producer, destination = producer_id(), f"queue:{name}"

    async def scenario() -> None:
        async with ClarionServer(server.url, destination=destination) as recipient:
            recipient.settled(producer, 1_000)
            await recipient.deliver(records(producer, range(1_000, 1_003)))
            assert recipient._senders[producer].floor == 1_003
            recipient.settled(producer, 2_000)
            assert recipient._senders[producer].floor == 2_000
            recipient.settled(producer, 5)  # never back
            await recipient.deliver(records(producer, range(2_000, 2_002)))
            recipient.finished(producer)
        async with clarion.connect(server.url) as connection, connection.session() as session:
            assert len(await drain(session, destination)) == 5
            async with session.receive(destination) as consumer:
                assert await is_idle(consumer)

    run(scenario())


def test_a08_more_producers_than_sessions(server: Topology, name: str) -> None:
    producers = [producer_id() for _ in range(300)]

    async def scenario() -> None:
        async with ClarionServer(server.url, destination=f"queue:{name}") as recipient:
            for start in range(0, len(producers), 100):
                await recipient.deliver([records(p, range(1, 2))[0] for p in producers[start : start + 100]])
            assert len(recipient._senders) <= 128
            await recipient.deliver([records(p, range(1, 3))[1] for p in producers])
        async with clarion.connect(server.url) as connection, connection.session() as session:
            assert len(await drain(session, f"queue:{name}")) == 600

    run(asyncio.wait_for(scenario(), 100))
