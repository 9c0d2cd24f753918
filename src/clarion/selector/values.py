"""What values do in a selector: comparison and arithmetic by the rules of JMS, which are those of Java.

Rules
    1. A value is a str, bool, int, float or None (null). Whatever else a property holds (bytes, or what a
       foreign encoder made) is a value of its own kind, that is neither null nor like any other.
    2. A comparison here answers whether it is TRUE. It is UNKNOWN if a side is null and FALSE otherwise, also for
       values that are not alike; an int and a float are alike, and compare as floats.
    3. Arithmetic gives None, which is null, if an operand is no number. Exact numbers are Java's long:
       a result that does not fit, or a division by zero, is None. Approximate ones are Java's double.
    4. Nothing here raises, and no number grows beyond 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
_NUMBERS = frozenset((int, float))
_COMPARABLE = frozenset((str, bool, int, float))

Number = int | float | None


def equal(left: Any, right: Any) -> bool:
    kind, other = type(left), type(right)
    if kind is other:
        return kind in _COMPARABLE and bool(left == right)
    return kind in _NUMBERS and other in _NUMBERS and float(left) == float(right)


def unequal(left: Any, right: Any) -> bool:
    kind, other = type(left), type(right)
    alike = kind in _COMPARABLE if kind is other else kind in _NUMBERS and other in _NUMBERS
    return alike and not equal(left, right)


def less(left: Any, right: Any) -> bool:
    kind, other = type(left), type(right)
    if kind not in _NUMBERS or other not in _NUMBERS:
        return False
    return bool(left < right) if kind is other else float(left) < float(right)


def at_most(left: Any, right: Any) -> bool:
    kind, other = type(left), type(right)
    if kind not in _NUMBERS or other not in _NUMBERS:
        return False
    return bool(left <= right) if kind is other else float(left) <= float(right)


def greater(left: Any, right: Any) -> bool:
    return less(right, left)


def at_least(left: Any, right: Any) -> bool:
    return at_most(right, left)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": equal,
    "<>": unequal,
    "<": less,
    "<=": at_most,
    ">": greater,
    ">=": at_least,
}


def _divide_exactly(left: int, right: int) -> int | None:
    if right == 0:
        return None
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _divide(left: float, right: float) -> float:
    if right:
        return left / right
    return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1.0, right)


def _operation(
    exactly: Callable[[int, int], int | None], approximately: Callable[[float, float], float]
) -> Callable[[Any, Any], Number]:
    def apply(left: Any, right: Any) -> Number:
        kind, other = type(left), type(right)
        if kind is int and other is int:
            result = exactly(left, right)
            return result if result is not None and LONG_MIN <= result <= LONG_MAX else None
        if kind in _NUMBERS and other in _NUMBERS:
            return approximately(float(left), float(right))
        return None

    return apply


add = _operation(int.__add__, float.__add__)
subtract = _operation(int.__sub__, float.__sub__)
multiply = _operation(int.__mul__, float.__mul__)
divide = _operation(_divide_exactly, _divide)

OPERATIONS: dict[str, Callable[[Any, Any], Number]] = {"+": add, "-": subtract, "*": multiply, "/": divide}


def minus(value: Any) -> Number:
    if type(value) is float:
        return -value
    return -value if type(value) is int and LONG_MIN <= -value <= LONG_MAX else None


def plus(value: Any) -> Number:
    return value if type(value) in _NUMBERS else None


SIGNS: dict[str, Callable[[Any], Number]] = {"+": plus, "-": minus}
