"""JMS 2.0, sections 4.1.5, 4.2.7, 6.2.2 and 6.2.3: temporary destinations, names."""

from __future__ import annotations

import pytest

from clarion.errors import ClarionError, NoSuchDestination, RequestError
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, take, until


async def gone(world: World, destination: str) -> None:
    """Wait until nobody can send there any more."""

    async def refused() -> bool:
        try:
            await world.session.send(destination, b"anybody?")
        except NoSuchDestination:
            return True
        return False

    await until(refused, f"{destination} is gone")


@scenario
async def test_b04_jms_4_1_5_a_temporary_queue_is_consumed_by_its_own_connection_alone(world: World) -> None:
    async with world.connect() as other, other.session() as stranger:
        queue = await world.session.temporary_queue()
        await stranger.send(queue, b"x")
        with pytest.raises(RequestError):
            async with stranger.receive(queue):
                pass
        async with world.session.receive(queue) as consumer:
            assert bodies(await take(consumer, 1)) == [b"x"]


@scenario
async def test_b04_jms_4_2_7_a_temporary_topic_is_consumed_by_its_own_connection_alone(world: World) -> None:
    async with world.connect() as other, other.session() as stranger:
        topic = await world.session.temporary_topic()
        with pytest.raises(RequestError):
            async with stranger.receive(topic):
                pass
        async with world.session.receive(topic) as one, world.session.receive(topic) as two:
            await stranger.send(topic, b"x")
            assert bodies(await take(one, 1)) == bodies(await take(two, 1)) == [b"x"]


@scenario
async def test_b04_jms_6_2_2_every_temporary_destination_is_unique(world: World) -> None:
    async with world.connect() as other, other.session() as stranger:
        made = [await world.session.temporary_queue(), await world.session.temporary_queue()]
        made += [await stranger.temporary_queue(), await stranger.temporary_topic()]
        assert len(set(made)) == 4


@scenario
async def test_b04_jms_6_2_2_any_session_of_the_connection_consumes(world: World) -> None:
    async with world.connection.session() as second:
        queue = await world.session.temporary_queue()
        await world.session.send(queue, b"x")
        async with second.receive(queue) as consumer:
            assert bodies(await take(consumer, 1)) == [b"x"]


@scenario
async def test_b04_jms_6_2_2_a_temporary_destination_outlives_the_session_that_made_it(world: World) -> None:
    await world.session.send(world.queue, b"this session is known")
    async with world.connection.session() as maker:
        queue = await maker.temporary_queue()
        await maker.send(queue, b"x")
    async with world.session.receive(queue) as consumer:
        assert bodies(await take(consumer, 1)) == [b"x"]


@scenario
async def test_b04_jms_6_2_2_a_temporary_destination_ends_with_its_connection(world: World) -> None:
    async with world.connect() as other, other.session() as session:
        made = [await session.temporary_queue(), await session.temporary_topic()]
        for destination in made:
            await world.session.send(destination, b"x")
    for destination in made:
        await gone(world, destination)


@scenario
async def test_b04_jms_6_2_2_a_temporary_destination_can_be_deleted(world: World) -> None:
    queue = await world.session.temporary_queue()
    await world.session.send(queue, b"x")
    await world.connection.command("drop", {"destination": queue})
    await gone(world, queue)


@scenario
async def test_b04_jms_6_2_3_names_are_made_by_clients(world: World) -> None:
    for name in (f"{world.name}.a.b-c_d", f"{world.name}.größe"):
        await world.session.send(name, b"x")
        assert await world.waiting(name) == [b"x"]


@scenario
async def test_b04_jms_10_2_all_errors_have_one_base_a_code_and_a_text(world: World) -> None:
    with pytest.raises(ClarionError) as raised:
        await world.waiting(f"{world.name}-nothing")
    assert raised.value.code == "CLN-205" and world.name in str(raised.value)
