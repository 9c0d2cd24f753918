"""The language of selectors by example: what the specification says, what is refused and where, and batches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import selector as benchmark
from clarion import limits
from clarion.errors import BadSelector
from clarion.message import Headers, encode_headers
from clarion.selector import compile_selector
from clarion.wire.batch import Batch, encode

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "selectors.md"
ROW = re.compile(r"^\| `(?P<selector>.+)` \| `(?P<properties>\{.*\})` \| (?P<matches>yes|no) \|$", re.MULTILINE)

TRUE, FALSE, UNKNOWN = "TRUE", "FALSE", "UNKNOWN"


def _says(text: str, **properties: Any) -> str:
    headers = Headers(properties=properties)
    if compile_selector(text).matches_one(headers):
        return TRUE
    return FALSE if compile_selector(f"NOT ({text})").matches_one(headers) else UNKNOWN


@pytest.mark.parametrize(
    ("text", "properties", "says"),
    [
        # BETWEEN, IN, LIKE, IS NULL: the examples of section 3.8.1.1
        ("age BETWEEN 15 AND 19", {"age": 15}, TRUE),
        ("age BETWEEN 15 AND 19", {"age": 14}, FALSE),
        ("age NOT BETWEEN 15 AND 19", {"age": 14}, TRUE),
        ("age NOT BETWEEN 15 AND 19", {"age": 19}, FALSE),
        ("age BETWEEN 15 AND 19", {}, UNKNOWN),
        ("age NOT BETWEEN 15 AND 19", {"age": "16"}, FALSE),
        ("Country IN ('UK', 'US', 'France')", {"Country": "UK"}, TRUE),
        ("Country IN ('UK', 'US', 'France')", {"Country": "Peru"}, FALSE),
        ("Country NOT IN ('UK', 'US', 'France')", {"Country": "UK"}, FALSE),
        ("Country NOT IN ('UK', 'US', 'France')", {"Country": "Peru"}, TRUE),
        ("Country IN ('UK')", {}, UNKNOWN),
        ("Country NOT IN ('UK')", {}, UNKNOWN),
        ("phone LIKE '12%3'", {"phone": "123"}, TRUE),
        ("phone LIKE '12%3'", {"phone": "12993"}, TRUE),
        ("phone LIKE '12%3'", {"phone": "1234"}, FALSE),
        ("word LIKE 'l_se'", {"word": "lose"}, TRUE),
        ("word LIKE 'l_se'", {"word": "loose"}, FALSE),
        (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": "_foo"}, TRUE),
        (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": "bar"}, FALSE),
        ("phone NOT LIKE '12%3'", {"phone": "123"}, FALSE),
        ("phone NOT LIKE '12%3'", {"phone": "1234"}, TRUE),
        ("phone LIKE '12%3'", {}, UNKNOWN),
        ("s LIKE '%a_b_' AND s LIKE 'x_a%'", {"s": "x\na\rb\0"}, TRUE),
        ("n LIKE '1'", {"n": 1}, FALSE),
        ("n NOT LIKE '1' AND n NOT IN ('1')", {"n": 1}, TRUE),
        ("phone NOT LIKE '12%3'", {}, UNKNOWN),
        ("prop_name IS NULL", {}, TRUE),
        ("prop_name IS NULL", {"prop_name": None}, TRUE),
        ("prop_name IS NOT NULL", {"prop_name": ""}, TRUE),
        # literals
        ("s = 'literal''s'", {"s": "literal's"}, TRUE),
        ("s = ''", {"s": ""}, TRUE),
        ("s = 'a\nb'", {"s": "a\nb"}, TRUE),
        ("n = 57 AND n = +57 AND n = 0x39 AND n = 071 AND n = 57L AND n = 0b111001l AND n = 5_7", {"n": 57}, TRUE),
        ("n = -957", {"n": -957}, TRUE),
        ("n = - 9223372036854775808", {"n": -(2**63)}, TRUE),
        ("n = 0x8000000000000000", {"n": -(2**63)}, TRUE),
        ("n = 0xFFFFFFFF", {"n": 0xFFFFFFFF}, TRUE),
        ("n = 0xE+1", {"n": 15}, TRUE),
        ("x = 7E3 AND x = 7000. AND x = 7e+3 AND x = 7000D AND x = 7000f AND x = 70000.0e-1", {"x": 7000.0}, TRUE),
        ("x = -57.9E2 AND x < .5 AND x = -0x169e.p0", {"x": -5790.0}, TRUE),
        ("b = tRuE AND b <> false", {"b": True}, TRUE),
        # types
        ("NumberOfOrders > 1", {"NumberOfOrders": "2"}, FALSE),
        ("n = '2'", {"n": 2}, FALSE),
        ("n <> '2'", {"n": 2}, FALSE),
        ("b = 1", {"b": True}, FALSE),
        ("b < 2", {"b": True}, FALSE),
        ("n = TRUE", {"n": 1}, FALSE),
        ("n = m", {"n": 2, "m": 2.0}, TRUE),
        ("n = 9007199254740993.0", {"n": 9007199254740992}, TRUE),
        ("n > 9007199254740992.0", {"n": 9007199254740993}, FALSE),
        ("x = 9007199254740993", {"x": 9007199254740992.0}, TRUE),
        ("n <= m AND m >= n", {"n": 9007199254740993, "m": 9007199254740992.0}, TRUE),
        ("n > m OR m < n", {"n": 9007199254740993, "m": 9007199254740992.0}, FALSE),
        ("n = m", {"n": 9007199254740993, "m": 9007199254740992}, FALSE),
        ("5 <= n AND 5 >= n AND 4 < n AND 6 > n AND 5 = n AND 4 <> n", {"n": 5}, TRUE),
        ("5 < n OR 5 > n OR 6 <= n OR 4 >= n OR 4 = n OR 5 <> n", {"n": 5}, FALSE),
        ("s < t", {"s": "a", "t": "b"}, FALSE),
        ("s = t", {"s": "a", "t": "a"}, TRUE),
        ("y = z", {"y": b"1", "z": b"1"}, FALSE),
        ("y IS NOT NULL", {"y": b""}, TRUE),
        ("n", {"n": 1}, UNKNOWN),
        ("s AND TRUE", {"s": "TRUE"}, UNKNOWN),
        # precedence
        ("a = 1 OR a = 2 AND b = 3", {"a": 1, "b": 9}, TRUE),
        ("(a = 1 OR a = 2) AND b = 3", {"a": 1, "b": 9}, FALSE),
        ("NOT a = 1 AND b = 3", {"a": 2, "b": 3}, TRUE),
        ("2 + 3 * -a = -10 AND 20 - 5 - 5 = 10 AND 100 / 10 / 5 = 2", {"a": 4}, TRUE),
        ("a BETWEEN 1 AND 2 AND b BETWEEN 3 AND 4", {"a": 1, "b": 3}, TRUE),
        ("(a > 1) = (b > 1)", {"a": 2, "b": 2}, TRUE),
        # arithmetic
        ("-7 / 2 = -3 AND 7 / -2 = -3 AND 7 / 2 = 3 AND 7 / 2.0 = 3.5", {}, TRUE),
        ("n / 0 = 1", {"n": 1}, UNKNOWN),
        ("n / z > 0 OR TRUE", {"n": 1, "z": 0}, TRUE),
        ("x / 0 > 1E300", {"x": 1.0}, TRUE),
        ("x / 0 = x / 0", {"x": 0.0}, FALSE),
        ("n + 1 > 0", {"n": 2**63 - 1}, UNKNOWN),
        ("-n > 0", {"n": -(2**63)}, UNKNOWN),
        ("s + 1 > 0", {"s": "1"}, UNKNOWN),
        ("+s = '1'", {"s": "1"}, UNKNOWN),
        ("missing * 2 = 4", {}, UNKNOWN),
        ("n -- 1 = 3", {"n": 2}, TRUE),  # a minus and a sign: there are no comments
        # names
        ("$a_1 = 1 AND Größe = 2", {"$a_1": 1, "Größe": 2}, TRUE),
        ("b\u0663 = 1 AND a\u0301 = 2", {"b\u0663": 1, "a\u0301": 2}, TRUE),
        ("Name = 1", {"name": 1}, UNKNOWN),
        ("\u0131N = 1", {"\u0131N": 1}, TRUE),  # its capital is an I, and yet it is not IN
        ("nota = 1 AND inn = 2 AND android = 3", {"nota": 1, "inn": 2, "android": 3}, TRUE),
        ("JMSXGroupSeq = 3 AND JMS_vendor = 'x'", {"JMSXGroupSeq": 3, "JMS_vendor": "x"}, TRUE),
        ("__import__ = 'x' AND headers = 1 AND v0 = 2", {"__import__": "x", "headers": 1, "v0": 2}, TRUE),
    ],
)
def test_b04_selectors_say_what_the_specification_says(text: str, properties: dict[str, Any], says: str) -> None:
    assert _says(text, **properties) == says


def test_b04_three_valued_logic_is_that_of_the_tables() -> None:
    operands = {TRUE: "t = 1", FALSE: "t = 2", UNKNOWN: "missing = 1"}
    order = [FALSE, UNKNOWN, TRUE]
    for left, left_text in operands.items():
        for right, right_text in operands.items():
            both, either = (pick((left, right), key=order.index) for pick in (min, max))
            assert _says(f"{left_text} AND {right_text}", t=1) == both
            assert _says(f"{left_text} OR {right_text}", t=1) == either
        assert _says(f"NOT {left_text}", t=1) == {TRUE: FALSE, FALSE: TRUE, UNKNOWN: UNKNOWN}[left]


def test_b04_the_examples_of_the_reference_are_true() -> None:
    rows = list(ROW.finditer(DOCUMENT.read_text()))
    assert len(rows) == DOCUMENT.read_text().partition("## What can be written")[0].count("\n| `") >= 15
    for row in rows:
        headers = Headers(properties=json.loads(row["properties"]))
        assert compile_selector(row["selector"]).matches_one(headers) == (row["matches"] == "yes"), row[0]


@pytest.mark.parametrize(
    ("text", "column", "detail"),
    [
        ("a =", 4, "ends too early"),
        ("(a = 1", 7, "ends too early"),
        ("a = 1)", 6, ") cannot stand here; possible: the end"),
        ("a = 'x", 5, "does not end"),
        ("a =\n  'x", 7, "does not end"),
        ("a = 1 b", 7, "b cannot stand here"),
        ("a == 5", 4, "= cannot stand"),
        ("a != 5", 3, "<>"),
        ('"a" = 1', 1, "single quotes"),
        ("in = 5", 1, "reserved word IN"),
        ("a = 1 aNd Escape = 2", 11, "reserved word ESCAPE"),
        ("a = NULL", 5, "IS NULL"),
        ("a = b = c", 7, "= cannot stand"),
        ("a.b = 1", 2, "'.'"),
        ("a\u00a0= 1", 2, "U+00A0"),
        ("a\0 = 1", 2, "no meaning"),
        ("²a = 1", 1, "U+00B2"),
        ("a = 09", 5, "09 is not a number"),
        ("a = 0x", 5, "not a number"),
        ("a = 1_", 5, "not a number"),
        ("a = 5AND b", 5, "not a number"),
        ("a = 1.2.3", 5, "not a number"),
        ("a = 1e", 5, "not a number"),
        ("a = ٣", 5, "U+0663"),
        ("a = 9223372036854775808", 5, "64 bits"),
        ("a = - -9223372036854775808", 5, "64 bits"),
        ("a = 0x1_0000_0000_0000_0000", 5, "64 bits"),
        ("a = " + "9" * 5_000, 5, "64 bits"),
        ("a = 1e999", 5, "double"),
        ("a = 0x1p9999", 5, "double"),
        ("a > 'x'", 5, "> needs a number, not a string"),
        ("TRUE < a", 1, "< needs a number, not a condition"),
        ("a = 1 AND 'x' + 1 = 2", 11, "needs a number"),
        ("a BETWEEN 1 AND 'x'", 17, "BETWEEN needs a number"),
        ("-'x' = a", 2, "needs a number"),
        ("1", 1, "a selector needs a condition"),
        ("a + 1", 1, "a selector needs a condition"),
        ("a AND 'x'", 7, "AND needs a condition"),
        ("NOT 5", 5, "NOT needs a condition"),
        ("1 LIKE 'x'", 1, "LIKE needs the name"),
        ("a IN ()", 7, "a string"),
        ("a IN (1)", 7, "a string"),
        ("a LIKE b", 8, "a string"),
        ("a LIKE 'x' ESCAPE ''", 19, "one character"),
        ("a LIKE 'x' ESCAPE '!!'", 19, "one character"),
        ("a LIKE 'x!y' ESCAPE '!'", 8, "only stand before"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "only stand before"),
        ("a + 1 IS NULL", 1, "IS NULL needs the name"),
        ("JMSXDeliveryCount > 1", 1, "one delivery"),
        ("a = 1 OR JMSDestination = 'x'", 10, "JMSCorrelationID"),
        ("JMSfoo = 1", 1, "not a field"),
    ],
)
def test_b04_what_is_wrong_is_said_with_its_place(text: str, column: int, detail: str) -> None:
    with pytest.raises(BadSelector) as caught:
        compile_selector(text)
    assert detail in str(caught.value.facts["detail"])
    assert (caught.value.facts["column"], caught.value.facts["selector"]) == (column, text)


def _bad(text: str) -> str:
    with pytest.raises(BadSelector) as caught:
        compile_selector(text)
    return str(caught.value.facts["detail"])


@pytest.mark.parametrize(
    ("before", "after", "depth"),
    [
        ("(", ")", 1),
        ("NOT ", "", 1),
        ("(b = 2 OR b = 1 AND ", ")", 1),
        ("NOT (b = 2 OR b = 1 AND NOT ", ")", 3),
        ("(a = ", ")", 1),
        ("((", " OR b = 3) = TRUE)", 2),
    ],
)
def test_b04_nesting_works_up_to_the_bound_and_is_refused_beyond(before: str, after: str, depth: int) -> None:
    most = limits.SELECTOR_DEPTH_MAX
    levels, rest = divmod(most, depth)
    text = "(" * rest + before * levels + "a" + after * levels + ")" * rest
    assert compile_selector(text).matches_one(Headers(properties={"a": True, "b": 1}))
    assert "deeper" in _bad(f"({text})")


def test_b04_hostile_nesting_is_refused() -> None:
    sums = "(" * limits.SELECTOR_DEPTH_MAX + "b" + " + 1)" * limits.SELECTOR_DEPTH_MAX
    assert compile_selector(f"{sums} = 65").matches_one(Headers(properties={"b": 1}))
    for hostile in ("(" * 4_000 + "a" + ")" * 4_000, "NOT " * 2_000 + "a", "-" * 8_000 + "1 = a"):
        assert "deeper" in _bad(hostile)
    assert "too early" in _bad("(" * 8_000)


def test_b04_long_selectors_work_and_longer_ones_are_refused() -> None:
    headers = Headers(properties={"a": 1})
    assert compile_selector(" OR ".join(f"a = {n}" for n in range(700, 0, -1))).matches_one(headers)
    assert compile_selector("+".join("a" * 4_000) + " = 4000").matches_one(headers)
    assert not compile_selector("2*" * 4_000 + "a > 0").matches_one(headers)
    assert compile_selector(" AND ".join(f"p{n} IS NULL" for n in range(400))).matches_one(headers)
    fits = "a = 1".ljust(limits.SELECTOR_BYTES_MAX)
    assert compile_selector(fits).matches_one(headers)
    assert "8193 bytes" in _bad(fits + " ")
    assert "8193 bytes" in _bad("é" * 4_096 + "a")
    with pytest.raises(BadSelector) as caught:
        compile_selector("a = '\ud800'")
    assert caught.value.facts == {"selector": ascii("a = '\ud800'"), "column": 6, "detail": "it is not valid Unicode"}


def test_b04_a_blank_selector_matches_everything() -> None:
    batch = Batch(encode(b"q", 1, [b""] * 3, [b"\xc1", b"", b"\x80"]))
    for text in ("", " \t\r\n\f"):
        selector = compile_selector(text)
        assert (selector.is_trivial, selector.needs_headers, selector.canonical) == (True, False, "")
        assert selector.matches(batch, 0, 3).all() and selector.matches_one(Headers())
    assert not compile_selector("TRUE").is_trivial


def test_b04_the_canonical_text_forgets_white_space_and_case_of_words_only() -> None:
    one = compile_selector("a=1 and\tb  NOT like'x  Y' or true")
    same = compile_selector("a = 1 AND b not LIKE 'x  Y' OR True")
    assert one.canonical == same.canonical == "a = 1 AND b NOT LIKE 'x  Y' OR TRUE"
    assert (one.text, same is compile_selector(same.text)) == ("a=1 and\tb  NOT like'x  Y' or true", True)
    for other in ("A=1 and b not like 'x  Y' or true", "a=1 and b not like 'x Y' or true", "a=1 or b like 'x  Y'"):
        assert compile_selector(other).canonical != one.canonical


# --- batches ------------------------------------------------------------------------------------

FIRST_ID = (3 << 118) + (5 << 104) + (77 << 64) + (2 << 48) + 1_000


def _matching(text: str, batch: Batch, first: int = 0, end: int | None = None) -> list[int]:
    end = batch.count if end is None else end
    found = compile_selector(text).matches(batch, first, end)
    assert found.dtype == np.bool_ and len(found) == end - first
    return [first + int(n) for n in np.flatnonzero(found)]


def test_b04_header_fields_of_a_batch_can_be_selected_by() -> None:
    headers = [
        Headers(),
        Headers(correlation_id="c1", type="order", reply_to="queue:answers", group="g", expires_at_ms=9_000),
        Headers(properties={"JMSPriority": 1, "JMSType": "forged"}),
    ]
    buffer = encode(
        b"queue:q", FIRST_ID, [b"body"] * 3, list(map(encode_headers, headers)), None, [0, 10, 20],
        priority=7, created_ms=1_000,
    )  # fmt: skip
    batch = Batch.parse(buffer)
    for text, expected in {
        "JMSPriority = 7": [0, 1, 2],
        "JMSPriority < 7": [],
        "JMSDeliveryMode = 'PERSISTENT'": [0, 1, 2],
        "JMSTimestamp > 1000": [1, 2],
        f"JMSMessageID = 'ID:{FIRST_ID + 2:032x}'": [2],
        f"JMSMessageID IN ('ID:{FIRST_ID + 1:032x}', 'ID:{FIRST_ID:032x}') AND JMSType IS NULL": [0],
        "JMSCorrelationID = 'c1'": [1],
        "JMSType LIKE 'ord%'": [1],
        "JMSType IS NULL": [0, 2],
        "JMSReplyTo = 'queue:answers' AND JMSXGroupID = 'g'": [1],
        "JMSExpiration = 0": [0, 2],
        "JMSExpiration > 8999 AND JMSTimestamp = 1010 AND JMSPriority = 7": [1],
    }.items():
        assert _matching(text, batch) == expected, text
        assert _matching(text, batch, 1, 3) == [n for n in expected if n >= 1], text
        part = batch.sliced(1, 3)
        assert _matching(text, part) == [n - 1 for n in expected if n >= 1], text


def test_b04_a_batch_without_headers_is_decided_at_once_unless_its_messages_differ() -> None:
    plain = Batch.parse(encode(b"q", FIRST_ID, [b"x"] * 4, priority=3, created_ms=500))
    timed = Batch.parse(encode(b"q", FIRST_ID, [b"x"] * 4, None, None, [0, 1, 2, 3], created_ms=500))
    assert _matching("region IS NULL AND JMSPriority = 3 AND JMSExpiration = 0", plain) == [0, 1, 2, 3]
    assert _matching("region = 'eu'", plain, 1, 3) == []
    assert _matching("JMSTimestamp = 500", plain, 1, 3) == [1, 2]
    assert _matching("JMSTimestamp >= 502", timed, 1, 4) == [2, 3]
    assert _matching(f"JMSMessageID = 'ID:{FIRST_ID + 2:032x}'", plain) == [2]
    assert compile_selector("region = 'eu'").matches(plain, 2, 2).tolist() == []


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("JMSPriority > 3 AND JMSDeliveryMode = 'PERSISTENT' OR JMSTimestamp < 5", False),
        ("JMSMessageID = 'x'", False),
        ("TRUE", False),
        ("JMSPriority > 3 OR urgent", True),
        ("JMSType = 'x'", True),
        ("JMSExpiration = 0", True),
    ],
)
def test_b04_a_selector_knows_whether_it_needs_headers(text: str, needs: bool) -> None:
    selector = compile_selector(text)
    assert selector.needs_headers == needs
    undecodable = Batch(encode(b"q", 1, [b"x"], [b"\xc1"], priority=9, created_ms=1))
    if not needs:
        assert selector.matches(undecodable, 0, 1).tolist() == [text != "JMSMessageID = 'x'"]


def test_b04_headers_that_cannot_be_decoded_do_not_match_and_raise_nothing() -> None:
    odd = {
        b"": True,  # none at all: decodable
        b"\x80": True,
        b"\xc1": False,  # never used by MessagePack
        b"\x81\xa1p": False,  # cut off
        b"\x90": False,  # a list
        b"\x81\xa1p\x05": False,  # properties that are a number
        b"\x81\xa1p\x81\x01\x02": False,  # a property whose name is a number
        b"\x81\xa1p\x81\xa1s\xa1\xff": False,  # text that is not UTF-8
        b"\x81\xa1t\x05": False,  # a type that is a number
        b"\x91" * 5_000: False,
        b"\x81\xa1p\x81\xa1s\x91\x05": True,  # a list where a value should be: like nothing, and not null
        b"\x81\xa1p\x81\xa1s\xd6\xff\x00\x00\x00\x01": True,  # a timestamp
        b"\x81\xa1p\x81\xa1s\x81\xa1a\x01": True,
        b"\x81\xa1p\x81\xa1s\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00": True,  # not a number
        b"\x81\xa1p\x81\xa1s\xcf" + b"\xff" * 8: True,  # larger than a long
    }
    batch = Batch(encode(b"q", 1, [b"\xc1"] * len(odd), list(odd)))
    everything = "s IS NULL OR s IS NOT NULL"
    assert compile_selector(everything).matches(batch, 0, batch.count).tolist() == list(odd.values())
    for text in (
        "s = 1 OR s <> 1 OR s > 1.5 OR s = 'x' OR s <> 'x' OR s = TRUE OR s BETWEEN 1 AND 2",
        "s IN ('a') OR s LIKE '%' OR s LIKE '_' OR s = s OR s <> s OR s < s OR s",
        "s + 1 > 0 OR s * s > s OR -s / s = +s OR s / 0 > 0 OR NOT s",
        "s = 9007199254740993 OR s = 1.5 OR (s = 1) = (s = 2)",
    ):
        assert len(compile_selector(text).matches(batch, 0, batch.count)) == batch.count


def test_b04_any_part_of_any_slice_of_a_batch_can_be_asked_for() -> None:
    headers = [encode_headers(Headers(properties={"n": n, "pad": "x" * n})) for n in range(30)]
    batch = Batch.parse(encode(b"queue:q", FIRST_ID, [b"b" * (n % 7) for n in range(30)], headers))
    for cut in (0, 5, 21, 29):
        part = batch.sliced(cut, 30)
        for first in range(part.count):
            for end in range(first, part.count + 1):
                expected = [n - cut for n in range(cut + first, cut + end) if n >= 8 and n != 25]
                assert _matching("n >= 8 AND n <> 25", part, first, end) == expected


def test_b04_a_selector_never_looks_at_bodies() -> None:
    headers = [encode_headers(Headers(properties={"n": n})) for n in range(3)]
    buffer = encode(b"q", 1, [b"abc"] * 3, headers)
    batch = Batch(buffer)
    before = _matching("n >= 1", batch)
    for index in range(3):
        batch.record(index)[1][:] = b"\xc1\xc1\xc1"
    assert _matching("n >= 1", batch) == before == [1, 2]


def test_b04_the_benchmark_checks_its_own_result(monkeypatch: pytest.MonkeyPatch) -> None:
    for selector in benchmark.SELECTORS:
        speed = benchmark.measure(selector, 1_203)
        assert speed.messages == 1_203 and speed.per_second > 0
        assert (speed.matched > 0) == (selector != "JMSPriority > 4")
    monkeypatch.setattr(benchmark, "expected", lambda selector, number: number == 0)
    with pytest.raises(AssertionError, match="matched 606 of 1203, not 1"):
        benchmark.measure("amount BETWEEN 50 AND 150 AND missing IS NULL", 1_203)


def test_b04_importing_selectors_does_not_import_the_parser() -> None:
    program = (
        "import sys, clarion, clarion.selector as s; s.compile_selector(''); assert 'lark' not in sys.modules; "
        "s.compile_selector('a'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
