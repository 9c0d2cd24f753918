"""Client manager: what it relays, in both directions, and what it answers itself (B-01, B-05)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clarion import ids
from clarion.errors import BadArgument, BadName, ClarionError, InternalFault, NotReady, from_code
from clarion.instruments import Registry
from clarion.nodes.identity import Identity
from clarion.wire import batch, commands, frames
from clarion.wire.frames import Type

from .test_client_manager_harness import RawClient, Setup, run

SUBSCRIBE: dict[str, Any] = {
    "request": 7,
    "consumer": 3,
    "destination": "queue:a",
    "subscription": None,
    "durable": False,
    "shared": False,
    "credit_messages": 100,
    "credit_bytes": 1_000,
    "unconfirmed_max": 10,
    "held": [[1, 4]],
}


async def error_of(client: RawClient) -> tuple[int, ClarionError]:
    said = frames.unpack(await client.next(Type.ERROR))
    return said["request"], from_code(said["code"], said["facts"])


def test_b01_the_handshake_tells_the_bounds() -> None:
    async def scenario(setup: Setup) -> None:
        client = await setup.connect()
        welcome = await client.hello(heartbeat_ms=3_000)
        assert welcome["version"] == 1
        assert welcome["heartbeat_ms"] == 3_000
        assert welcome["batch_bytes_max"] == 1 << 20
        assert welcome["producer_window_bytes"] == 2 << 20

    run(scenario, batch_bytes_max=1 << 20, producer_window_bytes=2 << 20)


def test_b01_opening_a_session_gives_a_producer_id_or_keeps_an_old_one() -> None:
    async def scenario(setup: Setup) -> None:
        client, first = await setup.ready()
        second = await client.open(2)
        old = (9 << 118 | 5 << 64).to_bytes(16, "big")
        assert first != second
        assert ids.sequence_of(first) == ids.sequence_of(second) == 0
        assert await client.open(3, old) == int.from_bytes(old, "big")
        assert setup.read("cm.sessions") == 3

    run(scenario)


def test_b05_frames_become_commands_unchanged_and_commands_frames() -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        encoded = bytes(batch.encode(b"queue:a", producer + 1, [b"one", b"two"]))
        client.send(Type.PUBLISH, 1, frames.FLOOR.pack(1), encoded, flags=frames.RESEND)
        client.say(Type.SUBSCRIBE, 1, **SUBSCRIBE)
        client.send(Type.CREDIT, 1, frames.CREDIT.pack(3, 10, 1_000))
        client.send(Type.CONFIRM, 1, frames.pack_ack(3, 8, [(1, 3)]))
        client.send(Type.REJECT, 1, frames.pack_ack(3, 0, [(3, 4)]))
        client.say(Type.REQUEST, 1, request=9, verb="status", arguments={})
        client.say(Type.UNSUBSCRIBE, 1, request=10, consumer=3, unseen=[[4, 6]], delete=False)
        published = await setup.scripted.next(Type.PUBLISH)
        assert bytes(published.payload) == frames.FLOOR.pack(1) + encoded
        assert published.flags == frames.RESEND
        subscribed = await setup.scripted.next(Type.SUBSCRIBE)
        assert frames.unpack(subscribed.payload) == SUBSCRIBE
        for kind in (Type.CREDIT, Type.CONFIRM, Type.REJECT, Type.REQUEST, Type.UNSUBSCRIBE):
            assert (await setup.scripted.next(kind)).session == published.session
        for kind, payload in (
            (Type.PUBLISHED, frames.SETTLED.pack(1, 2, 0)),
            (Type.REPLY, frames.pack({"request": 7, "result": {"held": []}})),
            (Type.DELIVER, frames.DELIVER.pack(3, 0)),
            (Type.CONSUMER_CLOSED, frames.CLOSED.pack(3, 0) + frames.pack({"code": "", "facts": {}})),
            (Type.RESUME, frames.FLOOR.pack(1) + b"queue:a"),
        ):
            setup.scripted.say(published.session, kind, payload)
            assert bytes(await client.next(kind)) == payload
        assert setup.read("cm.frames_in") == 8
        assert setup.read("cm.frames_out") == 6

    run(scenario)


def test_b01_sessions_of_a_connection_are_told_apart() -> None:
    async def scenario(setup: Setup) -> None:
        client, _ = await setup.ready()
        await client.open(2)
        for channel in (1, 2):
            client.say(Type.REQUEST, channel, request=channel, verb="status", arguments={})
        first = await setup.scripted.next(Type.REQUEST)
        second = await setup.scripted.next(Type.REQUEST)
        assert first.session != second.session
        setup.scripted.say(second.session, Type.REPLY, frames.pack({"request": 2, "result": 0}))
        frame = await client.frame()
        assert frame is not None and frame.channel == 2

    run(scenario)


def test_b01_a_closed_session_ends_cleanly_and_is_not_spoken_to_again() -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        client.send(Type.CLOSE, 1)
        ended = await setup.scripted.next(commands.SESSION_ENDED)
        assert frames.unpack(ended.payload) == {"clean": True, "producer": producer.to_bytes(16, "big")}
        await client.next(Type.CLOSED)
        setup.scripted.say(ended.session, Type.DELIVER, frames.DELIVER.pack(1, 0))
        assert await client.open() != producer  # the channel is free again, and nothing came in between

    run(scenario)


@pytest.mark.parametrize("how", ["close", "goodbye", "garbage"])
def test_b02_a_lost_connection_ends_its_sessions_uncleanly(how: str) -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        other = await client.open(2)
        if how == "close":
            await client.close()
        elif how == "goodbye":
            client.say(Type.GOODBYE, 0, code="", facts={})
        else:
            client.send(99, 5)
        ended = [frames.unpack((await setup.scripted.next(commands.SESSION_ENDED)).payload) for _ in range(2)]
        assert [said["clean"] for said in ended] == [False, False]
        assert {said["producer"] for said in ended} == {x.to_bytes(16, "big") for x in (producer, other)}

    run(scenario)


def test_b01_wrong_requests_are_answered_and_the_connection_goes_on() -> None:
    cases: list[tuple[Type, dict[str, Any], type[ClarionError]]] = [
        (Type.SUBSCRIBE, {**SUBSCRIBE, "destination": "exchange:a"}, BadName),
        (Type.SUBSCRIBE, {**SUBSCRIBE, "destination": "a b"}, BadName),
        (Type.SUBSCRIBE, {**SUBSCRIBE, "subscription": ""}, BadName),
        (Type.SUBSCRIBE, {**SUBSCRIBE, "consumer": -1}, BadArgument),
        (Type.SUBSCRIBE, {**SUBSCRIBE, "credit_messages": 1 << 40}, BadArgument),
        (Type.SUBSCRIBE, {**SUBSCRIBE, "credit_bytes": "many"}, BadArgument),
        (Type.SUBSCRIBE, {**SUBSCRIBE, "held": [[4, 4]]}, BadArgument),
        (Type.SUBSCRIBE, {**SUBSCRIBE, "held": [[n, n + 1] for n in range(20_000)]}, BadArgument),
        (Type.SUBSCRIBE, {"request": 7}, BadArgument),
        (Type.UNSUBSCRIBE, {"request": 7, "consumer": "x"}, BadArgument),
        (Type.REQUEST, {"request": 7, "verb": 5, "arguments": {}}, BadArgument),
        (Type.REQUEST, {"request": 7, "verb": "status", "arguments": [1]}, BadArgument),
    ]

    async def scenario(setup: Setup) -> None:
        client, _ = await setup.ready()
        for kind, said, error in cases:
            client.say(kind, 1, **said)
            request, answered = await error_of(client)
            assert (request, type(answered)) == (7, error)
        client.say(Type.REQUEST, 1, request=8, verb="no such verb", arguments=None)
        await setup.scripted.next(Type.REQUEST)  # whoever knows the verbs says so

    run(scenario)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


def test_b01_without_a_message_manager_requests_fail_and_late_answers_are_dropped() -> None:
    clock = Clock()

    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        client.say(Type.REQUEST, 1, request=1, verb="status", arguments={})
        client.say(Type.SUBSCRIBE, 1, **{**SUBSCRIBE, "request": 2})
        client.publish(producer, 1, b"stays unanswered")
        asked = await setup.scripted.next(Type.REQUEST)
        await setup.scripted.next(Type.SUBSCRIBE)
        await setup.scripted.next(Type.PUBLISH)
        clock.ms += 10_001
        for request in (1, 2):
            number, error = await error_of(client)
            assert (number, type(error)) == (request, NotReady)
        setup.scripted.say(asked.session, Type.REPLY, frames.pack({"request": 1, "result": "too late"}))
        setup.scripted.say(asked.session, Type.REPLY, frames.pack({"request": 77, "result": "a confirmation"}))
        assert frames.unpack(await client.next(Type.REPLY))["request"] == 77
        # A consumer that its client knows nothing of: only a new connection makes that right.
        setup.scripted.say(asked.session, Type.REPLY, frames.pack({"request": 2, "result": {}}))
        assert isinstance(await client.goodbye(), NotReady)

    run(scenario, clock=clock)


def test_b02_when_a_message_manager_comes_again_what_it_was_sent_is_sent_again() -> None:
    async def scenario(setup: Setup) -> None:
        member = setup.scripted.bus.join("mm/0")
        busy, producer = await setup.ready()
        idle, _ = await setup.ready()
        busy.publish(producer, 1, b"lost with the message manager")
        await setup.scripted.next(Type.PUBLISH)
        member.close()
        setup.scripted.bus.join("mm/0")
        assert isinstance(await busy.goodbye(), NotReady)
        await idle.open(2)

    run(scenario)


def test_b05_a_client_manager_is_a_member_and_follows_its_ids() -> None:
    generator = ids.IdGenerator.begin(1, 2, ids.EPOCH_MS + 5)
    generator._ordinal = (1 << 16) - 3

    async def scenario(setup: Setup) -> None:
        members: list[tuple[str, bool]] = []
        setup.scripted.bus.watch(lambda name, there: members.append((name, there)))
        client, _ = await setup.ready()  # uses the last two ids of this start
        await client.open(2)
        client.say(Type.REQUEST, 1, request=1, verb="status", arguments={})
        client.say(Type.REQUEST, 2, request=2, verb="status", arguments={})
        for request in (1, 2):
            session = (await setup.scripted.next(Type.REQUEST)).session
            setup.scripted.say(session, Type.REPLY, frames.pack({"request": request, "result": 0}))
            await client.next(Type.REPLY)
        halves = [generator.site << 54 | generator.node << 40 | start for start in (5, 6)]
        assert members == [(f"cm/{half:016x}", True) for half in halves]

    run(scenario, identity=Identity("test", generator))


def test_c01_test_points_stand_before_relaying_and_replying() -> None:
    async def scenario(setup: Setup) -> None:
        setup.registry.arm("cm.before_relay=fail:relay")
        client, producer = await setup.ready()
        client.publish(producer, 1, b"x")
        assert isinstance(await client.goodbye(), InternalFault)
        await setup.scripted.next(commands.SESSION_ENDED)
        setup.registry.arm("cm.before_reply=fail:reply")
        client, producer = await setup.ready()
        client.publish(producer, 1, b"x")
        session = (await setup.scripted.next(Type.PUBLISH)).session
        setup.scripted.say(session, Type.PUBLISHED, frames.SETTLED.pack(1, 1, 0))
        assert isinstance(await client.goodbye(), InternalFault)

    run(scenario)


def test_b01_stopping_says_goodbye_and_ends_the_sessions() -> None:
    async def scenario(setup: Setup) -> None:
        client, _ = await setup.ready()
        stopping = asyncio.create_task(setup.manager.stop())
        assert await client.goodbye() is None
        await client.close()
        await stopping
        assert not frames.unpack((await setup.scripted.next(commands.SESSION_ENDED)).payload)["clean"]
        with pytest.raises(OSError):
            await setup.connect()

    run(scenario)


def test_c01_every_protocol_error_has_its_counter() -> None:
    async def scenario(setup: Setup) -> None:
        assert isinstance(setup.registry, Registry)
        assert setup.read("cm.protocol_errors.cln_105") == 0
        assert setup.read("cm.connections") == 0

    run(scenario)
