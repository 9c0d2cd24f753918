"""JMS 2.0, sections 3.4.5, 3.4.6, 4.1.7 and 4.2.10: requests and replies."""

from __future__ import annotations

import asyncio

import pytest

from clarion.errors import BadArgument, NoReply
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, take


@scenario
async def test_b04_jms_3_4_6_a_reply_goes_where_the_request_asks_for_with_its_id(world: World) -> None:
    answers = await world.session.temporary_queue()
    async with world.connect() as other, other.session() as responder, responder.receive(world.queue) as requests:
        first = await world.session.send(world.queue, b"q1", reply_to=answers)
        await world.session.send(world.queue, b"q2", reply_to=answers, correlation_id="mine")
        for request in await take(requests, 2):
            await responder.reply(request, request.body.upper())
        async with world.session.receive(answers) as consumer:
            replies = await take(consumer, 2)
    assert [(reply.body, reply.correlation_id) for reply in replies] == [(b"Q1", first), (b"Q2", "mine")]


@scenario
async def test_b04_jms_3_4_6_a_message_without_reply_to_is_not_answered(world: World) -> None:
    with pytest.raises(BadArgument):
        await world.session.reply(await world.one(), b"to whom?")


@scenario
async def test_b04_jms_3_4_5_replies_are_found_by_correlation_id(world: World) -> None:
    answers = f"{world.queue}-answers"
    for number in range(4):
        await world.session.send(answers, b"%d" % number, correlation_id=f"c{number}")
    async with world.session.receive(answers, selector="JMSCorrelationID = 'c2'") as consumer:
        assert bodies(await take(consumer, 1)) == [b"2"]


@scenario
async def test_b04_jms_4_1_7_a_request_waits_for_its_reply(world: World) -> None:
    async with world.connect() as other, other.session() as responder, responder.receive(world.queue) as requests:
        asked = [asyncio.create_task(world.session.request(world.queue, b"%d" % number)) for number in range(5)]
        for request in reversed(await take(requests, 5)):  # whatever the order of the replies
            await responder.reply(request, b"re " + request.body)
        assert [(await reply).body for reply in asked] == [b"re %d" % number for number in range(5)]


@scenario
async def test_b04_jms_4_1_7_a_request_is_for_sessions_without_transactions(world: World) -> None:
    async with world.connection.session(transacted=True) as transacted:
        with pytest.raises(BadArgument):
            await transacted.request(world.queue, b"x")


@scenario
async def test_b04_jms_4_1_7_a_request_that_nobody_answers_ends(world: World) -> None:
    with pytest.raises(NoReply):
        await world.session.request(world.queue, b"x", timeout=0.02)


@scenario
async def test_b04_jms_4_2_10_a_request_to_a_topic_is_answered_by_a_subscriber(world: World) -> None:
    async with world.connect() as other, other.session() as responder, responder.receive(world.topic) as requests:
        asked = asyncio.create_task(world.session.request(world.topic, b"who?"))
        (request,) = await take(requests, 1)
        await responder.reply(request, b"me")
        assert (await asked).body == b"me"
