"""JMS 2.0, chapter 3: headers, properties, bodies."""

from __future__ import annotations

import time

import pytest

from clarion.client.options import DELIVERY_STEP_MS
from clarion.errors import BadArgument, BadName
from clarion.message import PropertyValue
from tests.conformance import World, scenario
from tests.integration.helpers import take


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@scenario
async def test_b04_jms_3_4_1_a_message_tells_where_it_was_sent_to(world: World) -> None:
    assert (await world.one()).destination == world.queue
    async with world.session.receive(world.topic) as consumer:
        await world.session.send(world.topic, b"x")
        assert (await take(consumer, 1))[0].destination == world.topic


@scenario
async def test_b04_jms_3_4_2_every_message_is_persistent(world: World) -> None:
    await world.session.send(world.queue, b"x")
    assert await world.waiting(selector="JMSDeliveryMode = 'PERSISTENT'") == [b"x"]
    assert await world.waiting(selector="JMSDeliveryMode = 'NON_PERSISTENT'") == []


@scenario
async def test_b04_jms_3_4_3_the_id_is_unique_and_known_to_both_sides(world: World) -> None:
    sent = [await world.session.send(world.queue, b"x") for _ in range(5)]
    async with world.connect() as other, other.session() as session:
        sent.append(await session.send(world.queue, b"x"))
    async with world.session.receive(world.queue) as consumer:
        messages = await take(consumer, 6)
    assert [message.id for message in messages] == sent
    assert len(set(sent)) == 6
    assert await world.waiting(selector=f"JMSMessageID = 'ID:{sent[2]}'") == [b"x"]
    assert len(await world.waiting(selector="JMSMessageID LIKE 'ID:%'")) == 6


@scenario
async def test_b04_jms_3_4_4_the_timestamp_lies_between_call_and_return(world: World) -> None:
    before_ms = now_ms()
    await world.session.send(world.queue, b"x")
    after_ms = now_ms()
    async with world.session.receive(world.queue) as consumer:
        (message,) = await take(consumer, 1)
    assert before_ms <= message.timestamp_ms <= after_ms


@scenario
async def test_b04_jms_3_4_5_the_correlation_id_arrives(world: World) -> None:
    assert (await world.one()).correlation_id is None
    first = await world.one(correlation_id="order 4711, ü")
    assert first.correlation_id == "order 4711, ü"
    assert (await world.one(correlation_id=first.id)).correlation_id == first.id


@scenario
async def test_b04_jms_3_4_6_reply_to_is_a_destination(world: World) -> None:
    assert (await world.one()).reply_to is None
    for destination in (world.topic, world.queue, await world.session.temporary_queue()):
        assert (await world.one(reply_to=destination)).reply_to == destination
    with pytest.raises(BadArgument):
        await world.session.send(world.queue, b"x", reply_to="no such:kind")


@scenario
async def test_b04_jms_3_4_7_redelivered_is_set_only_when_it_comes_again(world: World) -> None:
    await world.session.send(world.queue, b"x")
    async with world.session.receive(world.queue) as consumer:
        (first,) = await take(consumer, 1)
        assert not first.redelivered
        await first.reject()
        (again,) = await take(consumer, 1)
        assert again.redelivered and again.id == first.id


@scenario
async def test_b04_jms_3_4_8_the_type_arrives(world: World) -> None:
    assert (await world.one()).type is None
    assert (await world.one(type="car")).type == "car"


@scenario
async def test_b04_jms_3_4_9_expiration_is_the_time_of_sending_and_the_time_to_live(world: World) -> None:
    assert (await world.one()).expires_at_ms == 0
    before_ms = now_ms()
    message = await world.one(ttl=60)
    assert before_ms + 60_000 <= message.expires_at_ms <= now_ms() + 60_000
    async with world.connection.session(transacted=True) as transacted:
        await transacted.send(world.queue, b"x", ttl=60)
        sent_ms = now_ms()
        while now_ms() < sent_ms + 20:
            await transacted.flush()
        await transacted.commit()
    async with world.session.receive(world.queue) as consumer:
        assert (await take(consumer, 1))[0].expires_at_ms <= sent_ms + 60_000  # not the time of the commit


@scenario
async def test_b04_jms_3_4_10_ten_priorities_and_4_is_the_default(world: World) -> None:
    assert (await world.one()).priority == 4
    for priority in range(10):
        assert (await world.one(priority=priority)).priority == priority
    for wrong in (-1, 10):
        with pytest.raises(BadArgument):
            await world.session.send(world.queue, b"x", priority=wrong)


@scenario
async def test_b04_jms_3_4_11_what_the_provider_sets_cannot_be_set_by_a_client(world: World) -> None:
    fakes: dict[str, PropertyValue] = {
        "JMSMessageID": "ID:mine",
        "JMSPriority": 9,
        "JMSTimestamp": 1,
        "JMSDeliveryMode": "NON_PERSISTENT",
    }
    await world.session.send(world.queue, b"x", properties=dict(fakes))
    assert await world.waiting(selector="JMSPriority = 4 AND JMSTimestamp > 1") == [b"x"]
    for name, value in fakes.items():
        literal = f"'{value}'" if isinstance(value, str) else repr(value)
        assert await world.waiting(selector=f"{name} = {literal}") == [], name


@scenario
async def test_b04_jms_3_4_13_the_delivery_time_is_the_time_of_sending_and_the_delay(world: World) -> None:
    assert (await world.one()).deliver_at_ms == 0
    before_ms = now_ms()
    await world.session.send(world.queue, b"x", delay=0.1)
    after_ms = now_ms()
    async with world.session.receive(world.queue) as consumer:
        (message,) = await take(consumer, 1)
    assert before_ms + 100 <= message.deliver_at_ms <= after_ms + 100 + DELIVERY_STEP_MS
    assert now_ms() >= message.deliver_at_ms


@scenario
async def test_b04_jms_3_5_1_property_names_are_identifiers(world: World) -> None:
    names = ["a", "_a", "$a", "a1_$", "Größe", "名", "JMSX_mine", "JMS_Clarion"]
    await world.session.send(world.queue, b"x", properties=dict.fromkeys(names, 7))
    for name in names:
        assert await world.waiting(selector=f"{name} = 7") == [b"x"], name
    with pytest.raises(BadArgument):
        await world.session.send(world.queue, b"x", properties={"": 7})


@scenario
async def test_b04_jms_3_5_2_property_values_keep_their_types(world: World) -> None:
    properties = {
        "yes": True, "no": False, "byte": -128, "int": 2**31 - 1, "long": -(2**63), "double": 1.5e300,
        "whole": 2.0, "text": "Ünï", "empty": "", "null": None,
    }  # fmt: skip
    got = (await world.one(properties=properties)).properties
    assert got == properties
    assert {name: type(value) for name, value in got.items()} == {name: type(v) for name, v in properties.items()}


@scenario
async def test_b04_jms_3_5_3_properties_of_a_received_message_stay_those_that_were_sent(world: World) -> None:
    await world.session.send(world.queue, b"x", properties={"n": 1})
    async with world.session.receive(world.queue) as consumer:
        (message,) = await take(consumer, 1)
        message.properties["n"] = 2
        assert await world.waiting(selector="n = 1") == [b"x"]


@scenario
async def test_b04_jms_3_5_5_other_classes_are_refused_as_property_values(world: World) -> None:
    for value in ([1], {"a": 1}, object(), 2**63, float("nan")):
        with pytest.raises(BadArgument):
            await world.session.send(world.queue, b"x", properties={"n": value})  # type: ignore[dict-item]
    assert not (await world.one(b"fine")).redelivered
    assert await world.waiting() == []


@scenario
async def test_b04_jms_3_5_6_iteration_gives_properties_and_no_headers(world: World) -> None:
    message = await world.one(properties={"b": 1, "a": 2}, correlation_id="c", type="t", priority=7, group="g")
    assert sorted(message.properties) == ["a", "b"]


@scenario
async def test_b04_jms_3_5_8_a_property_that_was_not_set_is_null(world: World) -> None:
    message = await world.one()
    assert message.properties.get("nothing") is None
    await world.session.send(world.queue, b"y")
    assert await world.waiting(selector="nothing IS NULL") == [b"y"]


@scenario
async def test_b04_jms_3_5_9_group_and_sequence_within_it_are_properties_for_selectors(world: World) -> None:
    for number in (1, 2, 3):
        await world.session.send(world.queue, b"%d" % number, group="g", properties={"JMSXGroupSeq": number})
    await world.session.send(world.queue, b"none")
    assert await world.waiting(selector="JMSXGroupID = 'g' AND JMSXGroupSeq > 1") == [b"2", b"3"]
    assert await world.waiting(selector="JMSXGroupID IS NULL AND JMSXUserID IS NULL") == [b"none"]


@scenario
async def test_b04_jms_3_5_10_provider_properties_are_ordinary_ones_for_readers(world: World) -> None:
    assert (await world.one(properties={"JMS_Clarion_trace": "t1"})).properties == {"JMS_Clarion_trace": "t1"}


@scenario
async def test_b04_jms_3_5_11_the_delivery_count_counts_deliveries(world: World) -> None:
    await world.session.send(world.queue, b"x")
    async with world.session.receive(world.queue) as consumer:
        for count in (1, 2, 3):
            (message,) = await take(consumer, 1)
            assert (message.delivery_count, message.redelivered) == (count, count > 1)
            await message.reject()


@scenario
async def test_b04_jms_3_5_11_redelivered_means_a_count_of_two_or_more(world: World) -> None:
    """Also for what was prefetched and never seen by the application."""
    await world.session.send_many(world.queue, [b"%d" % number for number in range(10)])
    async with world.connect() as other, other.session() as session, session.receive(world.queue) as consumer:
        await take(consumer, 3)
    async with world.session.receive(world.queue) as consumer:
        messages = await take(consumer, 10)
    assert [m.body for m in messages if m.redelivered != (m.delivery_count > 1)] == []
    assert sorted(m.body for m in messages if m.redelivered) == [b"0", b"1", b"2"]


@scenario
async def test_b04_jms_3_9_a_sent_message_does_not_change_with_the_senders_objects(world: World) -> None:
    body = bytearray(b"before")
    properties: dict[str, PropertyValue] = {"n": 1}
    world.session.send_nowait(world.queue, body, properties=properties)
    body[:], properties["n"] = b"after!", 2
    world.session.send_nowait(world.queue, body, properties=properties)
    await world.session.flush()
    assert await world.waiting(selector="n = 1") == [b"before"]
    assert await world.waiting(selector="n = 2") == [b"after!"]


@scenario
async def test_b04_jms_3_10_a_redelivered_message_is_the_original(world: World) -> None:
    await world.session.send(world.queue, b"x", properties={"n": 1}, correlation_id="c")
    async with world.session.receive(world.queue) as consumer:
        (message,) = await take(consumer, 1)
        message.properties["n"] = 2
        message.headers.correlation_id = "changed"
        await message.reject()
        (again,) = await take(consumer, 1)
    assert (again.body, again.properties, again.correlation_id) == (b"x", {"n": 1}, "c")


@scenario
async def test_b04_jms_3_11_bytes_and_text_arrive_as_they_were(world: World) -> None:
    for body in (b"", bytes(range(256)), bytes(100_000)):
        assert (await world.one(body)).body == body
    await world.session.send(world.queue, "Grüße")
    async with world.session.receive(world.queue) as consumer:
        assert (await take(consumer, 1))[0].body.decode() == "Grüße"


@scenario
async def test_b04_jms_3_11_2_the_body_of_a_received_message_is_read_only(world: World) -> None:
    message = await world.one(b"abc")
    with pytest.raises(AttributeError):
        message.body = b"other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.body_view[0] = 0
    assert message.body == b"abc"


@scenario
async def test_b04_jms_10_3_a_destination_that_is_not_understood_is_refused(world: World) -> None:
    for wrong in ("", "no such:kind", "a b"):
        with pytest.raises(BadName):
            await world.session.send(wrong, b"x")
        with pytest.raises(BadName):
            world.session.receive(wrong)
