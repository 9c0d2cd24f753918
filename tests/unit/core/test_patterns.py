"""Patterns match what their text says, cost little whatever it says, and a thousand of them cost little too (B-15)."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import patterns as benchmark
from clarion import limits
from clarion.core import patterns
from clarion.core.patterns import Pattern, PatternSet, is_pattern, parse_pattern
from clarion.errors import BadPattern

NAMES = st.text(st.sampled_from("ab.é_(+\U0001f600"), min_size=1, max_size=8)
GLOBS = st.text(st.sampled_from("ab.é_(+\U0001f600**??"), min_size=1, max_size=8)


def glob_matches(glob: str, name: str) -> bool:
    """The naive model: each character in turn."""
    if not glob:
        return not name
    if glob[0] == "*":
        return glob_matches(glob[1:], name) or (bool(name) and glob_matches(glob, name[1:]))
    return bool(name) and glob[0] in ("?", name[0]) and glob_matches(glob[1:], name[1:])


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    """Regular expressions that Python and RE2 understand alike."""
    kind = draw(
        st.sampled_from(["literal", "any", "class"] if not depth else ["literal", "any", "+", "*", "?", "|", "."])
    )
    if kind in ("+", "*", "?"):
        return f"(?:{draw(expressions(depth=depth - 1))}){kind}"
    if kind in ("|", "."):
        first, second = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
        return f"(?:{first}|{second})" if kind == "|" else first + second
    return {"literal": draw(st.sampled_from(["a", "b", "é", r"\.", r"\(", r"\+"])), "any": ".", "class": "[^ab]"}[kind]


# --- one pattern ----------------------------------------------------------------------------------


@given(GLOBS, NAMES)
def test_b15_a_glob_matches_as_a_naive_model_does(glob: str, name: str) -> None:
    assert parse_pattern(f"glob:{glob}").matches(name) is glob_matches(glob, name)


@given(expressions(), NAMES)
def test_b15_a_regular_expression_must_match_the_whole_name(expression: str, name: str) -> None:
    assert parse_pattern(f"regex:{expression}").matches(name) is bool(re.fullmatch(expression, name))


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("glob:orders.*", "orders.eu.paris", True),
        ("glob:orders.*", "orders.", True),
        ("glob:orders.*", "orders", False),
        ("glob:*", "x", True),
        ("glob:??", "é😀", True),
        ("glob:?", "é😀", False),
        ("glob:[ab]", "a", False),
        ("glob:[ab]", "[ab]", True),
        ("glob:a\\*", "a\\x", True),
        ("glob:ORDERS", "orders", False),
        ("regex:orders", "orders.eu", False),
        ("regex:a|ab", "ab", True),
        ("regex:(?i)ORDERS", "orders", True),
        ("regex:^orders$", "orders", True),
        (r"regex:(?P<region>eu|us)\.[^.]+", "eu.é", True),
        (r"regex:\pL+", "straße", True),
    ],
)
def test_b15_examples(pattern: str, name: str, matches: bool) -> None:
    assert parse_pattern(pattern).matches(name) is matches


def test_b15_patterns_are_equal_by_their_text() -> None:
    first, second = parse_pattern("glob:a*"), parse_pattern("glob:a*")
    assert first == second
    assert len({first, second, parse_pattern("glob:a?")}) == 2
    assert first.text == "glob:a*"


@pytest.mark.parametrize("text", ["orders", "queue:orders", "topic:a", "blob:a", "glob", "", "GLOB:a", " glob:a"])
def test_b15_what_is_no_pattern_is_a_name_or_nothing(text: str) -> None:
    assert not is_pattern(text)
    with pytest.raises(BadPattern):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("glob:", "it is empty"),
        ("regex:", "it is empty"),
        ("regex:(a", "missing )"),
        ("regex:a**", "bad repetition"),
        ("regex:[", "missing ]"),
        ("regex:(?=a)", "(?="),
        (r"regex:(a)\1", r"\1"),
        ("regex:" + "\\", "trailing"),
        ("glob:\udcff", "not valid Unicode"),
        ("glob:" + "a" * limits.PATTERN_BYTES_MAX, "the limit is 1024"),
        ("glob:" + "é" * (limits.PATTERN_BYTES_MAX // 2), "the limit is 1024"),
        ("glob:" + "?" * 1_000, "too much memory"),
    ],
)
def test_b15_a_wrong_pattern_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(BadPattern) as raised:
        parse_pattern(text)
    assert says in str(raised.value.facts["detail"])
    assert len(str(raised.value.facts["pattern"])) <= 300
    assert raised.value.facts.keys() == {"pattern", "detail"}
    str(raised.value).encode()


def test_b15_whatever_a_name_may_be_a_pattern_can_say_it() -> None:
    for name in ("x" * limits.NAME_BYTES_MAX, "é" * (limits.NAME_BYTES_MAX // 2)):
        assert parse_pattern(f"glob:{name}").matches(name)
        assert parse_pattern(f"regex:{name}").matches(name)
        assert parse_pattern("glob:" + "?" * len(name)).matches(name)
        assert not parse_pattern("glob:" + "?" * (len(name) - 1)).matches(name)


HOSTILE = [
    "(a{1,1000}){1,1000}",
    "((a{1,30}){1,30})b",
    "(a+)+$",
    "(a|aa)+$",
    "(a?){250}a{250}",
    "(.*){1,1000}x",
    "(.*a.{10}){8}",
    ".*a.{100}",
    r"(\pL+\pN*){1,100}",
    "|".join(f".*{number}.*" for number in range(125)),
    "(" * 500 + "a" + ")" * 500,
    "a*" * 500,
    "[^a]" * 250,
    "(?i)" + "\u017f" * 400,
]


def test_b15_a_hostile_expression_costs_nothing() -> None:
    """Each is refused or answered within milliseconds, and takes no more memory than allowed."""
    before_kib = _memory_kib()
    began = time.thread_time()
    for expression in HOSTILE:
        try:
            pattern = parse_pattern(f"regex:{expression}")
        except BadPattern:
            continue
        for name in ("a" * 254 + "!", "é" * 127, "a.b" * 80):
            pattern.matches(name)
    assert time.thread_time() - began < 2.0  # all of them; backtracking would take years
    assert _memory_kib() - before_kib < 32 * 1024


def test_b15_hostile_expressions_among_others_cost_little_and_hide_none() -> None:
    mixed: PatternSet[int] = PatternSet()
    accepted: list[Pattern] = []
    for number, expression in enumerate(HOSTILE * 3):
        try:
            accepted.append(parse_pattern(f"regex:{expression}|b{{{number}}}"))
        except BadPattern:
            continue
    accepted += [parse_pattern(f"glob:*{number}.*") for number in range(500)]
    for number, pattern in enumerate(accepted):
        mixed.add(number, pattern)
    began = time.thread_time()
    for name in ("a" * 254 + "!", "a" * 255, "é" * 127, "x17.eu"):
        assert mixed.matching(name) == [number for number, pattern in enumerate(accepted) if pattern.matches(name)]
    assert time.thread_time() - began < 5.0


def _memory_kib() -> int:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0])


# --- many patterns --------------------------------------------------------------------------------


PATTERNS = st.one_of(
    st.text(st.sampled_from("ab*?"), min_size=1, max_size=3).map(lambda glob: f"glob:{glob}"),
    st.sampled_from(["regex:a+", "regex:(a|b)*", "regex:.{2,40}|é", "regex:(a?){60}"]),
)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 15), PATTERNS),
    st.tuples(st.just("remove"), st.integers(0, 15), st.just("")),
    st.tuples(st.just("look"), st.just(0), st.text(st.sampled_from("abé"), min_size=1, max_size=4)),
)


@pytest.mark.parametrize("size", [1, 3, 64])
@given(st.lists(STEPS, max_size=60))
def test_b15_any_life_of_a_set_matches_a_naive_model(size: int, steps: list[tuple[str, int, str]]) -> None:
    model: dict[int, str] = {}  # in the order of adding
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PATTERN_BLOCK_PATTERNS_MAX", size)
        found: PatternSet[int] = PatternSet()
        for what, key, text in [*steps, ("look", 0, "ab"), ("look", 0, "aé")]:
            if what == "add":
                model.pop(key, None)
                model[key] = text
                found.add(key, parse_pattern(text))
            elif what == "remove":
                assert found.remove(key) is (model.pop(key, None) is not None)
            else:
                assert found.matching(text) == [key for key, held in model.items() if parse_pattern(held).matches(text)]
            assert len(found) == len(model)
            assert (key in found) is (key in model)


@pytest.fixture
def engine_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """RE2 with options as the test sets the limits."""
    patterns._engine.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    patterns._engine.cache_clear()


@pytest.mark.parametrize(("memory_bytes", "together"), [(2_000, False), (400_000, False), (800_000, True)])
def test_b15_patterns_that_find_no_memory_together_are_matched_one_by_one(
    engine_again: pytest.MonkeyPatch, memory_bytes: int, together: bool
) -> None:
    engine_again.setattr(limits, "PATTERN_BLOCK_MEMORY_BYTES_MAX", memory_bytes)
    found: PatternSet[int] = PatternSet()
    for number in range(60):
        found.add(number, parse_pattern(f"glob:*{number:02}{'x' * 80}*"))
    found.add(60, parse_pattern("glob:*"))
    for number in (17, 59):
        assert found.matching(f"a{number}{'x' * 80}") == [number, 60]
    assert [bool(block._together) for block in found._blocks] == [together]


def test_b15_an_automaton_that_gives_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_EVERYTHING", "nobody")  # what must always be found is not, as when memory ends
    found: PatternSet[int] = PatternSet()
    for number in range(10):
        found.add(number, parse_pattern(f"regex:{number}|nobody"))
    assert found.matching("nobody") == list(range(10))
    assert [bool(block._together) for block in found._blocks] == [True]
    assert found.matching("nobody else") == []
    assert found.matching("7") == [7]
    assert [bool(block._together) for block in found._blocks] == [False]


def test_b15_a_thousand_patterns_added_one_by_one_are_compiled_a_few_times_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = 0

    class Counting(patterns._Block):
        __slots__ = ()

        def __init__(self, held: list[Pattern]) -> None:
            nonlocal compiled
            compiled += len(held)
            super().__init__(held)

    monkeypatch.setattr(patterns, "_Block", Counting)
    found: PatternSet[int] = PatternSet()
    for number in range(1_000):
        found.add(number, parse_pattern(f"glob:*.{number}"))
        assert found.matching(f"x.{number}") == [number]
    assert compiled < 8 * 1_000
    assert len(found._blocks) < 1_000 / limits.PATTERN_BLOCK_PATTERNS_MAX + 7
    for number in range(1_000):
        assert found.remove(number)
        assert found.matching(f"x.{number}") == []
    assert compiled < 16 * 1_000
    assert not found._blocks, "nothing is left behind"
    assert not found._homes


def test_b15_equal_patterns_of_many_are_matched_once_and_answered_in_order() -> None:
    found: PatternSet[str] = PatternSet()
    for number in range(5_000):
        found.add(f"consumer {number}", parse_pattern("glob:events.*" if number % 2 else "glob:events.a*"))
    assert found.matching("events.ab") == [f"consumer {number}" for number in range(5_000)]
    assert sum(len(block.patterns) for block in found._blocks) == 2


def test_b15_re2_is_not_loaded_before_there_is_a_pattern() -> None:
    code = (
        "import sys, clarion, clarion.settings; from clarion.core.patterns import PatternSet;"
        "from clarion.core.policies import PolicyTable; assert PatternSet().matching('a') == [];"
        "PolicyTable().effective('a'); clarion.settings.load(); print('re2' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize("kind", benchmark.KINDS)
def test_b15_the_benchmark_checks_its_own_result(kind: str) -> None:
    seen = benchmark.measure(kind, names=400, patterns=200)
    assert seen.matches > 0
    assert 1 <= seen.matches_of_a_name_max <= 10
    assert seen.lookup_p50_us < 1_000
