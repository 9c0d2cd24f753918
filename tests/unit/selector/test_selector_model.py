"""Selectors against a naive interpreter: any tree, written in any way, says the same of any message."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadSelector
from clarion.message import Headers, encode_headers
from clarion.selector import compile_selector
from clarion.selector.like import compile_like
from clarion.wire.batch import Batch, encode
from tests.unit.selector.selector_model import MESSAGES, TREES, Properties, Tree, evaluate, like, written


@settings(max_examples=250, deadline=None)
@given(TREES, st.lists(MESSAGES, min_size=1, max_size=5), st.integers(1, 3), st.integers(0, 1 << 32), st.data())
def test_b04_a_selector_says_what_the_naive_interpreter_says(
    tree: Tree, messages: list[Properties], repeats: int, seed: int, data: st.DataObject
) -> None:
    messages = messages * repeats
    selector = compile_selector(written(tree, random.Random(seed)))
    headers = [encode_headers(Headers(properties=message)) for message in messages]
    batch = Batch.parse(encode(b"queue:q", 1, [b"body"] * len(messages), headers))
    first = data.draw(st.integers(0, len(messages)))
    expected = [evaluate(tree, message) == "T" for message in messages]
    assert selector.matches(batch, 0, batch.count).tolist() == expected
    assert selector.matches(batch, first, batch.count).tolist() == expected[first:]
    assert [selector.matches_one(Headers(properties=message)) for message in messages] == expected


@settings(deadline=None)
@given(TREES, MESSAGES, st.integers(0, 1 << 32))
def test_b04_a_selector_and_its_negation_split_what_is_known(tree: Tree, message: Properties, seed: int) -> None:
    text = written(tree, random.Random(seed))
    headers = Headers(properties=message)
    answers = compile_selector(f"({text})").matches_one(headers), compile_selector(f"NOT ({text})").matches_one(headers)
    assert answers == {"T": (True, False), "F": (False, True), "U": (False, False)}[evaluate(tree, message)]


@settings(deadline=None)
@given(TREES, st.integers(0, 1 << 32))
def test_b04_the_canonical_text_is_a_selector_that_is_its_own_canonical_text(tree: Tree, seed: int) -> None:
    selector = compile_selector(written(tree, random.Random(seed)))
    assert compile_selector(selector.canonical).canonical == selector.canonical
    assert compile_selector(selector.canonical).needs_headers == selector.needs_headers


def _all(alphabet: str, sizes: range) -> list[str]:
    return ["".join(letters) for size in sizes for letters in itertools.product(alphabet, repeat=size)]


@pytest.mark.parametrize("steps_max", [4_096, 0], ids=["by expressions", "by masks"])
def test_b04_like_says_what_trying_everything_says(steps_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All short patterns of some shapes with all short texts, for each of the two ways to find a part."""
    monkeypatch.setattr("clarion.selector.like._STEPS_MAX", steps_max)
    parts = _all("ab_", range(1, 4))
    patterns = [f"%{one}%{two}%" for one in parts for two in parts if len(one + two) <= 5]
    patterns += [f"{one}%{two}" for one in _all("ab_", range(3)) for two in _all("ab_", range(3))]
    patterns += _all("a_%", range(6))
    texts = _all("ab", range(6))
    for pattern in patterns:
        matches = compile_like(pattern)
        assert [matches(text) for text in texts] == [like(text, pattern, None) for text in texts], pattern


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("pattern", "ending", "matches"),
    [
        ("%a" * 4_000 + "%b", "", False),
        ("%a" * 4_000 + "%b", "b", True),
        ("%a_" * 2_600 + "%b_", "", False),
        ("%a_" * 2_600 + "%b_", "bb", True),
        ("%" + "a_" * 3_900 + "b%", "", False),
        ("%" + "a_" * 3_900 + "b%", "bc", True),
        ("%" + "_" * 7_000 + "%b", "b", True),
        ("%" + "a" * 7_000 + "b%", "", False),
        ("a%" * 3_900 + "_", "", True),
        ("_" * 8_000, "", False),
    ],
)
def test_b04_hostile_patterns_end_soon(pattern: str, ending: str, matches: bool) -> None:
    """Backtracking would not end within the age of the universe; each of these takes milliseconds."""
    text = "a" * 60_000 + ending
    assert compile_selector(f"s LIKE '{pattern}'").matches_one(Headers(properties={"s": text})) == matches


_WORDS = ("and", "OR", "not", "BETWEEN", "like", "IN", "is", "null", "TRUE", "escape", "a", "b", "JMSType", "JMSX")
_PIECES = ("'x'", "''", "0x", "1.5", ".5", "7E3", "09", "<>", ">=", *"1'(),=<+-*/.;!\"\\$é\u00a0\u0131")
_SOUP = st.lists(st.sampled_from(_WORDS + _PIECES), max_size=14)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=20), _SOUP.map(" ".join), _SOUP.map("".join)))
def test_b04_any_text_is_a_selector_or_is_refused_with_a_place_in_it(text: str) -> None:
    try:
        selector = compile_selector(text)
    except BadSelector as error:
        column = error.facts["column"]
        assert isinstance(column, int) and 1 <= column <= len(text) + 1
        assert error.facts["detail"] and str(error)
    else:
        assert selector.matches_one(Headers(properties={"a": 1, "b": "x"})) in (True, False)
