"""A selector as nested tuples, printed in any of the ways a person may write it, and evaluated as the book says.

Independent of `clarion.selector`: three values are the letters T, F and U and tables of them; exact numbers are
divided by `Fraction`, approximate ones by numpy; LIKE tries everything.
"""

from __future__ import annotations

import random
import re
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

Tree = tuple[Any, ...]
Properties = dict[str, Any]

NAMES = ("a", "b", "c", "$d", "größe", "Not_", "_IN")
TEXTS = st.text(alphabet="ab%_\\' é", max_size=6)
INTEGERS = st.one_of(
    st.integers(-5, 5), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([1 << 53, (1 << 53) + 1, -(1 << 63)])
)
FLOATS = st.one_of(st.integers(-40, 40).map(lambda n: n / 8), st.floats(allow_nan=False), st.just(float(1 << 53)))
VALUES = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS, st.binary(max_size=3))
MESSAGES = st.dictionaries(st.sampled_from(NAMES), VALUES)

# --- trees --------------------------------------------------------------------------------------

_names = st.sampled_from(NAMES).map(lambda name: ("name", name))
_literal_numbers = st.one_of(
    st.integers(0, 6),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, 80).map(lambda n: n / 8),
    st.floats(min_value=0, allow_infinity=False, allow_nan=False),
).map(lambda value: ("number", value))
_numbers: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(_names, _literal_numbers),
    lambda inner: st.one_of(
        st.tuples(st.just("sign"), st.sampled_from("+-"), inner),
        st.tuples(st.just("arithmetic"), st.sampled_from("+-*/"), inner, inner),
    ),
    max_leaves=4,
)
_texts = TEXTS.map(lambda text: ("text", text))
_truths = st.booleans().map(lambda value: ("truth", value))


@st.composite
def _likes(draw: st.DrawFn) -> Tree:
    name, negated = draw(_names), draw(st.booleans())
    parts = draw(st.lists(st.sampled_from(["a", "b", "é", "'", "%", "_", "!%", "!_", "!!", " "]), max_size=6))
    escaped = draw(st.booleans())
    pattern = "".join(parts) if escaped else "".join(parts).replace("!", "")
    return ("like", negated, name, pattern, "!" if escaped else None)


def _conditions_of(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    flag = st.booleans()
    return st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.just("compare"), st.sampled_from(["=", "<>"]), inner, st.one_of(inner, _texts, _numbers)),
        st.tuples(st.just("between"), flag, _numbers, _numbers, _numbers),
    )


TREES: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(
        st.tuples(st.just("compare"), st.sampled_from(["<", "<=", ">", ">="]), _numbers, _numbers),
        st.tuples(
            st.just("compare"),
            st.sampled_from(["=", "<>"]),
            st.one_of(_names, _numbers, _texts, _truths),
            st.one_of(_names, _numbers, _texts, _truths),
        ),
        st.tuples(st.just("in"), st.booleans(), _names, st.lists(TEXTS, min_size=1, max_size=3)),
        _likes(),
        st.tuples(st.just("null"), st.booleans(), _names),
        _names,
        _truths,
    ),
    _conditions_of,
    max_leaves=10,
)

# --- printing -----------------------------------------------------------------------------------

_LEVELS = {"or": 1, "and": 2, "not": 3, "compare": 4, "between": 4, "in": 4, "like": 4, "null": 4}


def _level(tree: Tree) -> int:
    if tree[0] == "arithmetic":
        return 5 if tree[1] in "+-" else 6
    return _LEVELS.get(tree[0], 7)


def written(tree: Tree, chance: random.Random) -> str:
    """The tree as text, with white space, the case of words, and needless parentheses by chance."""
    text = ""
    for token in _tokens(tree, 0, chance):
        if token.upper() in _WORDS:
            token = "".join(chance.choice((c.upper(), c.lower())) for c in token)
        tight = not text or not (re.match(r"[\w$.'é]", token) and re.match(r"[\w$.'é]", text[-1]))
        text += "".join(chance.choices(" \t\n\r\f", k=chance.randint(0 if tight else 1, 2))) + token
    return text + " " * chance.randint(0, 1)


_WORDS = frozenset(("AND", "OR", "NOT", "BETWEEN", "LIKE", "IN", "IS", "NULL", "TRUE", "FALSE", "ESCAPE"))


def _tokens(tree: Tree, level: int, chance: random.Random) -> list[str]:
    """`level`: what binds less than this needs parentheses."""
    if _level(tree) < level or chance.random() < 0.1:
        return ["(", *_tokens(tree, 0, chance), ")"]
    negation = ["NOT"] if tree[1] is True else []
    match tree:
        case ("name", name):
            return [name]
        case ("number", value):
            return [_number_text(value, chance)]
        case ("text", text):
            return [_quoted(text)]
        case ("truth", value):
            return [str(value).upper()]
        case ("sign", sign, operand):
            return [sign, *_tokens(operand, 7, chance)]
        case ("arithmetic", operator, left, right):
            own = _level(tree)
            return [*_tokens(left, own, chance), operator, *_tokens(right, own + 1, chance)]
        case ("compare", operator, left, right):
            return [*_tokens(left, 5, chance), operator, *_tokens(right, 5, chance)]
        case ("between", _, value, low, high):
            parts = [_tokens(part, 5, chance) for part in (value, low, high)]
            return [*parts[0], *negation, "BETWEEN", *parts[1], "AND", *parts[2]]
        case ("in", _, name, values):
            listed = [token for value in values for token in (",", _quoted(value))][1:]
            return [name[1], *negation, "IN", "(", *listed, ")"]
        case ("like", _, name, pattern, escape):
            return [name[1], *negation, "LIKE", _quoted(pattern), *(["ESCAPE", _quoted(escape)] if escape else [])]
        case ("null", _, name):
            return [name[1], "IS", *negation, "NULL"]
        case ("not", operand):
            return ["NOT", *_tokens(operand, 3, chance)]
        case (word, left, right):
            own = _level(tree)
            return [*_tokens(left, own, chance), word.upper(), *_tokens(right, own, chance)]
    raise AssertionError(tree)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _number_text(value: int | float, chance: random.Random) -> str:
    if isinstance(value, float):
        suffix = chance.choice(("", "", "d", "D", "F"))
        return repr(value) + suffix
    octal = f"0{value:o}" if value else "0"
    return chance.choice((f"{value}", f"{value}", hex(value), octal, bin(value))) + chance.choice(("", "", "L", "l"))


# --- evaluation ---------------------------------------------------------------------------------

_TABLE_AND = {"TT": "T", "TF": "F", "TU": "U", "FT": "F", "FF": "F", "FU": "F", "UT": "U", "UF": "F", "UU": "U"}
_TABLE_OR = {"TT": "T", "TF": "T", "TU": "T", "FT": "T", "FF": "F", "FU": "U", "UT": "T", "UF": "U", "UU": "U"}
_TABLE_NOT = {"T": "F", "F": "T", "U": "U"}


def evaluate(tree: Tree, message: Properties) -> str:
    """T, F or U."""
    match tree:
        case ("and", left, right):
            return _TABLE_AND[evaluate(left, message) + evaluate(right, message)]
        case ("or", left, right):
            return _TABLE_OR[evaluate(left, message) + evaluate(right, message)]
        case ("not", operand):
            return _TABLE_NOT[evaluate(operand, message)]
        case ("compare", operator, left, right):
            return _compare(operator, _value(left, message), _value(right, message))
        case ("between", negated, value, low, high):
            subject, least, most = (_value(part, message) for part in (value, low, high))
            if negated:
                return _TABLE_OR[_compare("<", subject, least) + _compare(">", subject, most)]
            return _TABLE_AND[_compare(">=", subject, least) + _compare("<=", subject, most)]
        case ("in", negated, name, values):
            answer = "F"
            for value in values:
                answer = _TABLE_OR[answer + _compare("=", message.get(name[1]), value)]
            return _TABLE_NOT[answer] if negated else answer
        case ("like", negated, name, pattern, escape):
            subject = message.get(name[1])
            if subject is None:
                return "U"
            answer = "T" if isinstance(subject, str) and like(subject, pattern, escape) else "F"
            return _TABLE_NOT[answer] if negated else answer
        case ("null", negated, name):
            return "T" if (message.get(name[1]) is None) != negated else "F"
    return {True: "T", False: "F"}.get(_value(tree, message), "U") if _is_truth(_value(tree, message)) else "U"


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(tree: Tree, message: Properties) -> Any:
    match tree:
        case ("name", name):
            return message.get(name)
        case ("number" | "text" | "truth", value):
            return value
        case ("sign", sign, operand):
            value = _value(operand, message)
            if not _is_number(value):
                return None
            return value if sign == "+" else _as_long(-value)
        case ("arithmetic", operator, left, right):
            return _calculate(operator, _value(left, message), _value(right, message))
    return {"T": True, "F": False, "U": None}[evaluate(tree, message)]


def _as_long(value: Any) -> Any:
    return None if isinstance(value, int) and not -(2**63) <= value <= 2**63 - 1 else value


def _calculate(operator: str, left: Any, right: Any) -> Any:
    if not _is_number(left) or not _is_number(right):
        return None
    if isinstance(left, int) and isinstance(right, int):
        if operator == "/":
            return None if right == 0 else _as_long(int(Fraction(left, right)))
        return _as_long({"+": left + right, "-": left - right, "*": left * right}[operator])
    with np.errstate(all="ignore"):
        one, two = np.float64(left), np.float64(right)
        results = {"+": one + two, "-": one - two, "*": one * two, "/": one / two}
    return float(results[operator])


def _compare(operator: str, left: Any, right: Any) -> str:
    if left is None or right is None:
        return "U"
    if _is_number(left) and _is_number(right):
        if isinstance(left, float) or isinstance(right, float):
            left, right = float(left), float(right)
        order = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}
        return "T" if {"=": left == right, "<>": left != right, **order}[operator] else "F"
    alike = any(isinstance(left, kind) and isinstance(right, kind) for kind in (str, bool))
    if not alike or operator not in ("=", "<>"):
        return "F"
    return "T" if (left == right) == (operator == "=") else "F"


def like(text: str, pattern: str, escape: str | None) -> bool:
    """Every way to match, tried."""

    @cache
    def rest(at: int, of: int) -> bool:
        if of == len(pattern):
            return at == len(text)
        if pattern[of] == escape:
            return at < len(text) and text[at] == pattern[of + 1] and rest(at + 1, of + 2)
        if pattern[of] == "%":
            return any(rest(further, of + 1) for further in range(at, len(text) + 1))
        return at < len(text) and pattern[of] in ("_", text[at]) and rest(at + 1, of + 1)

    return rest(0, 0)
