"""What a selector says, as a tree: made by `grammar`, read by `generate`.

Rules
    1. Chains of AND, OR, `+ -` and `* /` are one node each, so the depth of a tree is bounded by
       `limits.SELECTOR_DEPTH_MAX` and not by the length of the text.
    2. `at` is where the node begins in the text, counted from 0. `depth` is how deep parentheses, NOT and signs
       nest in it.
    3. BETWEEN is not here: it is written as the comparisons that the specification says it equals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NUMBER, STRING, CONDITION = "a number", "a string", "a condition"
"""What a node is for certain. A property may be anything until a message is there."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: bool | int | float | str
    at: int
    depth: int = 0

    @property
    def kind(self) -> str:
        if isinstance(self.value, bool):
            return CONDITION
        return STRING if isinstance(self.value, str) else NUMBER


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    at: int
    depth: int = 0

    @property
    def kind(self) -> None:
        return None


class _Numeric:
    __slots__ = ()

    @property
    def kind(self) -> str:
        return NUMBER


class _Condition:
    __slots__ = ()

    @property
    def kind(self) -> str:
        return CONDITION


@dataclass(frozen=True, slots=True)
class Sign(_Numeric):
    operator: str
    operand: Node
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Arithmetic(_Numeric):
    """`first`, then each operator with its operand, from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Compare(_Condition):
    operator: str
    left: Node
    right: Node
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class In(_Condition):
    name: Name
    values: frozenset[str]
    at: int
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Like(_Condition):
    name: Name
    pattern: str
    escape: str | None
    at: int
    depth: int = 0


@dataclass(frozen=True, slots=True)
class IsNull(_Condition):
    name: Name
    at: int
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Not(_Condition):
    operand: Node
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class And(_Condition):
    operands: tuple[Node, ...]
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Or(_Condition):
    operands: tuple[Node, ...]
    at: int
    depth: int


Node = Literal | Name | Sign | Arithmetic | Compare | In | Like | IsNull | Not | And | Or


def deepest(*nodes: Node) -> int:
    """The depth of a node that has these and adds none of its own."""
    return max(node.depth for node in nodes)


def enclosed(node: Node, at: int) -> Node:
    """The same node in parentheses that begin at `at`."""
    return replace(node, at=at, depth=node.depth + 1)
