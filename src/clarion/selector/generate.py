"""From the tree of a selector to a Python function.

Theory of operation
    Logic with three values is compiled away. For each condition there are two ordinary Python expressions: it is
    TRUE, it is FALSE; it is UNKNOWN when neither holds. `a AND b` is TRUE when both are TRUE, and FALSE when one is
    FALSE; NOT exchanges the two. A selector asks only for TRUE, so mostly one of the two is written.
    Arithmetic, and conditions whose value is compared, become local variables, written once each: so the
    function is at most twice as long as the selector, and nests no deeper.

Cost: `region = 'eu' AND amount > 100` takes about 0.2 µs, decoding not counted (benchmarks/selector.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clarion.selector import names, tree, values
from clarion.selector.like import compile_like
from clarion.selector.tree import Literal, Name, Node

Test = Callable[[Any, int, int, str | None], bool]
"""Takes headers, priority, timestamp ms, message id."""

_EXACT_DOUBLE_MAX = 1 << 53
"""Up to here a long is the same number as a double, so an int compares as Java compares it."""
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WORDS = {"=": "equal", "<>": "unequal", "<": "less", "<=": "at_most", ">": "greater", ">=": "at_least"}
_STEPS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_SIGNS = {"+": "plus", "-": "minus"}


def generate(node: Node) -> tuple[Test, frozenset[str]]:
    """The function that says whether a message matches, and the names that it looks at."""
    writer = _Writer()
    answer = writer.true(node)
    source = "\n    ".join(
        ("def test(headers, priority, timestamp_ms, message_id):", *writer.lines, f"return {answer}")
    )
    namespace: dict[str, Any] = {**_HELPERS, **writer.constants}
    exec(compile(source, "<selector>", "exec"), namespace)
    return namespace["test"], frozenset(writer.variables)


_HELPERS: dict[str, Any] = {
    "none": {},
    **{word: values.COMPARISONS[operator] for operator, word in _WORDS.items()},
    **{word: values.OPERATIONS[operator] for operator, word in _STEPS.items()},
    **{word: values.SIGNS[operator] for operator, word in _SIGNS.items()},
}


@dataclass(slots=True)
class _Writer:
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    """Name in the selector: local variable."""
    written: dict[int, str] = field(default_factory=dict)
    """Identity of a node whose value is in a local variable already: BETWEEN has one node in two places."""
    has_properties: bool = False

    # --- conditions -------------------------------------------------------------------------------

    def true(self, node: Node) -> str:
        """An expression that is True if the condition is TRUE, and False otherwise."""
        match node:
            case Literal():
                return str(node.value is True)
            case tree.And():
                return f"({' and '.join(map(self.true, node.operands))})"
            case tree.Or():
                return f"({' or '.join(map(self.true, node.operands))})"
            case tree.Not():
                return self.false(node.operand)
            case tree.Compare():
                return self._compared(node)
            case tree.IsNull():
                return f"{self._variable(node.name)} is None"
            case tree.In():
                name = self._variable(node.name)
                return f"(type({name}) is str and {name} in {self._constant(node.values)})"
            case tree.Like():
                name = self._variable(node.name)
                return f"(type({name}) is str and {self._constant(compile_like(node.pattern, node.escape))}({name}))"
            case _:
                return f"{self.value(node)} is True"

    def false(self, node: Node) -> str:
        """An expression that is True if the condition is FALSE, and False otherwise."""
        match node:
            case Literal():
                return str(node.value is False)
            case tree.And():
                return f"({' or '.join(map(self.false, node.operands))})"
            case tree.Or():
                return f"({' and '.join(map(self.false, node.operands))})"
            case tree.Not():
                return self.true(node.operand)
            case tree.Compare():
                sides = [self.value(side) for side in (node.left, node.right) if not isinstance(side, Literal)]
                known = "".join(f"{side} is not None and " for side in sides)
                return f"({known}not {self.true(node)})"
            case tree.IsNull():
                return f"{self._variable(node.name)} is not None"
            case tree.In() | tree.Like():
                return f"({self._variable(node.name)} is not None and not {self.true(node)})"
            case _:
                return f"{self.value(node)} is False"

    def _compared(self, node: tree.Compare) -> str:
        left, operator, right = node.left, node.operator, node.right
        if isinstance(left, Literal) and not isinstance(right, Literal):
            left, operator, right = right, _FLIPPED[operator], left
        if isinstance(left, Literal) and isinstance(right, Literal):
            return str(values.COMPARISONS[operator](left.value, right.value))
        subject = self.value(left)
        if isinstance(right, Literal):
            quick = _compared_to(subject, operator, right.value)
            if quick is not None:
                return quick
        return f"{_WORDS[operator]}({subject}, {self.value(right)})"

    # --- values -----------------------------------------------------------------------------------

    def value(self, node: Node) -> str:
        """A literal, or a local variable that holds the value; None is null or UNKNOWN."""
        match node:
            case Literal():
                return repr(node.value)
            case Name():
                return self._variable(node)
        known = self.written.get(id(node))
        if known is not None:
            return known
        match node:
            case tree.Sign():
                expression = f"{_SIGNS[node.operator]}({self.value(node.operand)})"
            case tree.Arithmetic():
                expression = self.value(node.first)
                for operator, operand in node.rest:
                    expression = self._assigned(f"{_STEPS[operator]}({expression}, {self.value(operand)})")
            case _:
                expression = f"True if {self.true(node)} else False if {self.false(node)} else None"
        self.written[id(node)] = variable = self._assigned(expression)
        return variable

    def _assigned(self, expression: str) -> str:
        variable = f"v{len(self.lines)}"
        self.lines.append(f"{variable} = {expression}")
        return variable

    def _variable(self, name: Name) -> str:
        variable = self.variables.get(name.name)
        if variable is None:
            source = names.BATCH_FIELDS.get(name.name) or names.HEADER_FIELDS.get(name.name)
            if source is None:
                if not self.has_properties:
                    self.has_properties = True
                    self.lines.append("properties = headers.properties or none")
                source = f"properties.get({name.name!r})"
            variable = self.variables[name.name] = self._assigned(source)
        return variable

    def _constant(self, value: object) -> str:
        constant = f"c{len(self.constants)}"
        self.constants[constant] = value
        return constant


def _compared_to(subject: str, operator: str, value: bool | int | float | str) -> str | None:
    """A comparison with a literal without a call, or None where only the general one is right."""
    if isinstance(value, str):
        return f"{subject} == {value!r}" if operator == "=" else f"(type({subject}) is str and {subject} != {value!r})"
    if isinstance(value, bool):
        return f"{subject} is {value if operator == '=' else not value}"
    if isinstance(value, int) and abs(value) <= _EXACT_DOUBLE_MAX:
        if operator == "=":
            return f"({subject} == {value!r} and type({subject}) is not bool)"
        symbol = "!=" if operator == "<>" else operator
        return f"((type({subject}) is int or type({subject}) is float) and {subject} {symbol} {value!r})"
    if isinstance(value, float) and operator not in ("=", "<>"):
        return f"((type({subject}) is int or type({subject}) is float) and float({subject}) {operator} {value!r})"
    return None
