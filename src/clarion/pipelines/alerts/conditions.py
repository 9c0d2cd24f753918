"""A selector as a condition over columns: the same language, evaluated by Spark and not message by message in Python.

Theory of operation
    The tree of a selector becomes one Spark expression. AND, OR and NOT of Spark know the same three values. Properties
    are texts in columns (`properties map<string,string>`), so it is the other side of a comparison that says
    what a property is taken for: a number beside a number, a truth beside TRUE and FALSE, else a text. As in the
    broker, a value that is not of that kind makes the comparison FALSE, and one that is absent makes it UNKNOWN.

Where this differs from the broker, because columns have no types
    1. `amount = '100'` is TRUE for the number 100 too, and `amount = 100` for the text '100'.
    2. Numbers are doubles: 7 / 2 is 3.5, longs above 2**53 are rounded, and a division by zero is null.
    3. `severity_level` is the number of the event's severity, as in the filters of the event system.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from clarion.events.event import PROPERTY_SEVERITY, PROPERTY_SEVERITY_LEVEL, Severity
from clarion.selector import compile_selector, grammar, tree, values
from clarion.selector.tree import Literal, Name, Node

_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_COLUMNS = ("destination", "type", "content_type", "reply_to", "correlation_id", "group_id")
_TEXT_FIELDS = {
    "JMSCorrelationID": "correlation_id",
    "JMSType": "type",
    "JMSReplyTo": "reply_to",
    "JMSXGroupID": "group_id",
}
NEEDED = ("destination", "sequence", "id", "time", "priority", "expires_at", "properties", *_COLUMNS[1:])
"""Columns that conditions and keys may look at."""


def condition(selector: str) -> Column:
    """TRUE for rows that match; FALSE or null for others. Raises `BadSelector`."""
    if compile_selector(selector).is_trivial:
        return F.lit(True)
    return _condition(grammar.parse(selector)[0])


def text_of(name: str) -> Column:
    """The text of a column that a key may be made of, or else of a property; null if there is none."""
    return F.col(name) if name in _COLUMNS else F.try_element_at(F.col("properties"), F.lit(name))


def _condition(node: Node) -> Column:
    match node:
        case Literal():
            return F.lit(bool(node.value))
        case Name():
            return _truth(_text(node.name))
        case tree.And():
            return _joined(Column.__and__, [_condition(operand) for operand in node.operands])
        case tree.Or():
            return _joined(Column.__or__, [_condition(operand) for operand in node.operands])
        case tree.Not():
            return ~_condition(node.operand)
        case tree.Compare():
            return _compared(node)
        case tree.IsNull():
            return _is_null(node.name)
        case tree.In():
            return _text(node.name.name).isin(*sorted(node.values))
        case tree.Like():
            return _text(node.name.name).rlike(_like(node.pattern, node.escape))
        case _:
            raise TypeError(f"{type(node).__name__} is no condition")


def _compared(node: tree.Compare) -> Column:
    left, right, operator = node.left, node.right, node.operator
    if isinstance(left, Literal) and isinstance(right, Literal):
        return F.lit(values.COMPARISONS[operator](left.value, right.value))
    kinds = {left.kind, right.kind} - {None}
    if kinds == {tree.CONDITION}:
        return _compared_truths(operator, left, right)
    unknown = _is_null(left) | _is_null(right)
    if len(kinds) > 1:
        answer = F.lit(False)
    elif tree.NUMBER in kinds or operator not in ("=", "<>"):
        answer = _applied(operator, _number(left), _number(right))
    elif tree.STRING in kinds:
        answer = _applied(operator, _text_of(left), _text_of(right))
    else:  # two names: numbers if both are, else texts
        first, second = _number(left), _number(right)
        answer = (
            F.when(first.isNotNull() & second.isNotNull(), _applied(operator, first, second))
            .when(first.isNotNull() | second.isNotNull(), F.lit(False))
            .otherwise(_applied(operator, _text_of(left), _text_of(right)))
        )
    return F.when(~unknown, F.coalesce(answer, F.lit(False)))


def _compared_truths(operator: str, left: Node, right: Node) -> Column:
    """Each side once: conditions may stand in conditions, and what is written twice would double at each depth."""
    if isinstance(left, Name):
        left, right = right, left
    if not isinstance(right, Name):
        return _applied(operator, _condition(left), _condition(right))
    text, unlike = _text(right.name), 2
    value = F.when(text == "true", F.lit(1)).when(text == "false", F.lit(0)).when(text.isNotNull(), F.lit(unlike))
    wanted = _condition(left).cast("int")
    return value == (wanted if operator == "=" else F.lit(1) - wanted)


def _joined(join: Callable[[Column, Column], Column], parts: list[Column]) -> Column:
    """As a balanced tree: a long chain would be as deep as it is long."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_joined(join, parts[:half]), _joined(join, parts[half:]))


def _applied(operator: str, left: Column, right: Column) -> Column:
    match operator:
        case "=":
            return left == right
        case "<>":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def _is_null(node: Node) -> Column:
    match node:
        case Literal():
            return F.lit(False)
        case Name():
            return _text(node.name).isNull()
        case tree.Sign() | tree.Arithmetic():
            return _number(node).isNull()
        case _:
            return _condition(node).isNull()


def _number(node: Node) -> Column:
    match node:
        case Literal():
            return F.lit(float(node.value))
        case Name():
            text = _text(node.name)
            return F.when(text.rlike(_NUMBER), text.try_cast("double"))
        case tree.Sign():
            signed = _number(node.operand)
            return -signed if node.operator == "-" else signed
        case tree.Arithmetic():
            result = _number(node.first)
            for operator, operand in node.rest:
                result = _step(operator, result, _number(operand))
            return F.nanvl(result, F.lit(None).cast("double"))
        case _:
            raise TypeError(f"{type(node).__name__} is no number")


def _step(operator: str, left: Column, right: Column) -> Column:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return F.try_divide(left, right)


def _text_of(node: Node) -> Column:
    return _text(node.name) if isinstance(node, Name) else F.lit(node.value if isinstance(node, Literal) else None)


def _truth(text: Column) -> Column:
    return F.when(text == "true", F.lit(True)).when(text == "false", F.lit(False))


def _text(name: str) -> Column:
    """What a name stands for, as text."""
    if name in _TEXT_FIELDS:
        return F.col(_TEXT_FIELDS[name])
    match name:
        case "JMSPriority":
            return F.col("priority").cast("string")
        case "JMSTimestamp":
            return F.unix_millis("time").cast("string")
        case "JMSExpiration":
            return F.coalesce(F.unix_millis("expires_at"), F.lit(0)).cast("string")
        case "JMSMessageID":
            return F.concat(F.lit("ID:"), F.col("id"))
        case "JMSDeliveryMode":
            return F.lit("PERSISTENT")
        case _ if name == PROPERTY_SEVERITY_LEVEL:
            severity = F.try_element_at(F.col("properties"), F.lit(PROPERTY_SEVERITY))
            known = F.create_map(*(F.lit(part) for each in Severity for part in (each.text, str(int(each)))))
            return F.try_element_at(known, severity)
        case _:
            return F.try_element_at(F.col("properties"), F.lit(name))


def _like(pattern: str, escape: str | None) -> str:
    """The pattern as a regular expression of Java over the whole text."""
    parts = ["(?s)^"]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            parts.append(_quoted(next(characters)))
        elif character == "%":
            parts.append(".*")
        else:
            parts.append("." if character == "_" else _quoted(character))
    return "".join(parts) + r"\z"


def _quoted(character: str) -> str:
    return "\\" + character if re.match(r"[^\w\s]", character, re.ASCII) and character.isascii() else character
