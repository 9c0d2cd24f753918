"""JMS 2.0, section 3.8: message selectors."""

from __future__ import annotations

import pytest

from clarion.errors import BadSelector
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, take

Properties = dict[str, bool | int | float | str | bytes | None]


async def matching(world: World, messages: dict[str, Properties], selectors: dict[str, str]) -> None:
    """`messages` by their bodies; each selector matches those whose bodies are named beside it."""
    for body, properties in messages.items():
        world.session.send_nowait(world.queue, body, properties=properties)
    await world.session.flush()
    for selector, wanted in selectors.items():
        got = [body.decode() for body in await world.waiting(selector=selector)]
        assert got == wanted.split(), selector


@scenario
async def test_b04_jms_3_8_1_only_matching_messages_are_delivered(world: World) -> None:
    for number in range(6):
        await world.session.send(world.queue, b"%d" % number, properties={"n": number})
    async with world.session.receive(world.queue, selector="n >= 4") as consumer:
        messages = await take(consumer, 2)
        assert bodies(messages) == [b"4", b"5"]
        await world.session.confirm(messages)
    assert await world.waiting() == [b"0", b"1", b"2", b"3"]


@scenario
async def test_b04_jms_3_8_1_1_an_empty_selector_is_none(world: World) -> None:
    await world.session.send(world.queue, b"x")
    async with world.session.receive(world.queue, selector="") as consumer:
        assert bodies(await take(consumer, 1)) == [b"x"]


@scenario
async def test_b04_jms_3_8_1_1_literals(world: World) -> None:
    sent: dict[str, Properties] = {
        "i": {"n": 57}, "neg": {"n": -957}, "f": {"n": 7000.0}, "long": {"n": 2**63 - 1}, "q": {"s": "it's ü"},
        "t": {"b": True}, "fa": {"b": False},
    }  # fmt: skip
    await matching(
        world,
        sent,
        {
            "n = 57": "i", "n = +57": "i", "n = 0x39": "i", "n = 071": "i", "n = 57L": "i", "n = -957": "neg",
            "n = 7E3": "f", "n = 7000.": "f", "n = 70.0E+2": "f", "n = 9223372036854775807": "long",
            "s = 'it''s ü'": "q", "b = TRUE": "t", "b = false": "fa", "b": "t", "b <> TRUE": "fa",
        },
    )  # fmt: skip


@scenario
async def test_b04_jms_3_8_1_1_identifiers_are_case_sensitive_and_words_are_not(world: World) -> None:
    await matching(
        world,
        {"x": {"Name": 1}},
        {"Name = 1": "x", "name = 1": "", "Name = 1 aNd Name BeTween 0 AND 2 oR faLSe": "x", "name iS nUll": "x"},
    )
    for word in ("NULL", "true", "FALSE", "not", "AND", "Or", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"):
        with pytest.raises(BadSelector):
            await world.waiting(selector=f"{word} IS NULL")


@scenario
async def test_b04_jms_3_8_1_1_header_fields_are_referenced_by_their_names(world: World) -> None:
    identity = await world.session.send(world.queue, b"a", priority=7, correlation_id="c", type="t")
    await world.session.send(world.queue, b"b")
    for selector in (
        "JMSPriority = 7", f"JMSMessageID = 'ID:{identity}'", "JMSCorrelationID = 'c'", "JMSType = 't'",
        "JMSTimestamp > 0 AND JMSDeliveryMode = 'PERSISTENT' AND JMSType IS NOT NULL",
    ):  # fmt: skip
        assert await world.waiting(selector=selector) == [b"a"], selector
    assert await world.waiting(selector="JMSCorrelationID IS NULL AND JMSType IS NULL") == [b"b"]
    with pytest.raises(BadSelector):
        await world.waiting(selector="JMSDestination = 'x'")


@scenario
async def test_b04_jms_3_8_1_1_properties_keep_their_types_in_selectors(world: World) -> None:
    await matching(
        world,
        {"text": {"NumberOfOrders": "2"}, "number": {"NumberOfOrders": 2}},
        {"NumberOfOrders > 1": "number", "NumberOfOrders = '2'": "text", "NumberOfOrders = 2": "number"},
    )


@scenario
async def test_b04_jms_3_8_1_1_white_space_and_brackets(world: World) -> None:
    await matching(
        world,
        {"x": {"a": 1, "b": 2}},
        {" \t\n\r\f(a\t=\n1)AND((b)=2) ": "x", "(a = 9 OR b = 2) AND a = 9": "", "a = 1 OR (b = 2 AND a = 9)": "x"},
    )


@scenario
async def test_b04_jms_3_8_1_1_not_binds_closer_than_and_and_and_than_or(world: World) -> None:
    await matching(
        world,
        {"x": {"t": True, "f": False}},
        {"t OR t AND f": "x", "(t OR t) AND f": "", "NOT f AND t": "x", "NOT (f OR t)": "", "NOT f OR f": "x"},
    )


@scenario
async def test_b04_jms_3_8_1_1_comparison(world: World) -> None:
    await matching(
        world,
        {"1": {"n": 1}, "2": {"n": 2.0}, "3": {"n": 3}, "s": {"n": "2"}},
        {
            "n = 2": "2", "n <> 2": "1 3", "n < 2": "1", "n <= 2": "1 2", "n > 2.0": "3", "n >= 2.0": "2 3",
            "n = '2'": "s", "n <> '3'": "s",  # values that are not alike compare as false
        },
    )  # fmt: skip
    for ordered in ("n > '1'", "TRUE > FALSE"):
        with pytest.raises(BadSelector):
            await world.waiting(selector=ordered)


@scenario
async def test_b04_jms_3_8_1_1_arithmetic(world: World) -> None:
    await matching(
        world,
        {"x": {"a": 7, "b": 2, "d": 2.0}},
        {
            "a + b * 2 = 11": "x", "(a + b) * 2 = 18": "x", "a - b - 1 = 4": "x", "-a + 10 = 3": "x",
            "a / b = 3": "x", "a / d = 3.5": "x", "- - a = +7": "x", "a * d > 13.9": "x",
        },
    )  # fmt: skip


@scenario
async def test_b04_jms_3_8_1_1_between(world: World) -> None:
    await matching(
        world,
        {"14": {"age": 14}, "15": {"age": 15}, "19": {"age": 19}, "20": {"age": 20}, "none": {}},
        {"age BETWEEN 15 AND 19": "15 19", "age NOT BETWEEN 15 AND 19": "14 20", "age BETWEEN 10 + 5 AND 15": "15"},
    )


@scenario
async def test_b04_jms_3_8_1_1_in(world: World) -> None:
    await matching(
        world,
        {"UK": {"Country": "UK"}, "Peru": {"Country": "Peru"}, "none": {}},
        {"Country IN ('UK', 'US', 'France')": "UK", "Country NOT IN ('UK', 'US', 'France')": "Peru"},
    )


@scenario
async def test_b04_jms_3_8_1_1_like(world: World) -> None:
    words = ("123", "12993", "1234", "lose", "loose", "_foo", "bar", "a%b")
    await matching(
        world,
        {word: Properties(w=word) for word in words} | {"none": {}},
        {
            "w LIKE '12%3'": "123 12993", "w NOT LIKE '12%3'": "1234 lose loose _foo bar a%b",
            "w LIKE 'l_se'": "lose", r"w LIKE '\_%' ESCAPE '\'": "_foo", "w LIKE 'a!%b' ESCAPE '!'": "a%b",
        },
    )  # fmt: skip


@scenario
async def test_b04_jms_3_8_1_1_is_null(world: World) -> None:
    await matching(world, {"x": {"p": 1}, "y": {}, "z": {"p": None}}, {"p IS NULL": "y z", "p IS NOT NULL": "x"})


@scenario
async def test_b04_jms_3_8_1_1_a_wrong_selector_is_refused_when_it_is_presented(world: World) -> None:
    await world.session.send(world.queue, b"x")
    for wrong in ("a =", "a = 1 AND", "(a = 1", "a LIKE 5", "a IN (1)", "'a' BETWEEN 1", "a == 1", "1a = 2", "a b"):
        with pytest.raises(BadSelector):
            await world.waiting(selector=wrong)
        for destination in (world.queue, world.topic):
            with pytest.raises(BadSelector):
                async with world.session.receive(destination, selector=wrong):
                    pass


@scenario
async def test_b04_jms_3_8_1_2_null_is_unknown_and_logic_has_three_values(world: World) -> None:
    await matching(
        world,
        {"x": {"t": True, "f": False, "n": 1}},
        {
            "u = 1": "", "u <> 1": "", "NOT (u = 1)": "", "u + n = 1": "", "u BETWEEN 0 AND 9": "",
            "u AND t": "", "NOT (u AND f)": "x", "u AND f": "", "u OR t": "x", "u OR f": "", "NOT (u OR f)": "",
            "NOT u": "", "u IN ('a')": "", "u NOT IN ('a')": "", "u LIKE 'a'": "", "u NOT LIKE 'a'": "",
            "u IS NULL": "x", "u IS NOT NULL": "", "NOT (u IS NULL)": "",
        },
    )  # fmt: skip


@scenario
async def test_b04_jms_3_8_1_3_times_are_milliseconds_and_there_are_no_comments(world: World) -> None:
    await world.session.send(world.queue, b"x")
    async with world.session.receive(world.queue) as consumer:
        (message,) = await take(consumer, 1)
        assert await world.waiting(selector=f"JMSTimestamp = {message.timestamp_ms}") == [b"x"]
    for comment in ("TRUE -- never", "TRUE /* never */"):
        with pytest.raises(BadSelector):
            await world.waiting(selector=comment)
