"""From the text of a selector to its tree, by an LALR grammar.

The grammar takes any value where a value may stand; what only makes sense for numbers, conditions or names is checked
when the tree is made, because that can say in plain words what is wrong. This module imports `lark`, which takes
a tenth of a second: it is imported when the first selector is compiled.
"""

from __future__ import annotations

from functools import cache
from typing import NoReturn

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from clarion import limits
from clarion.selector import names, tree
from clarion.selector.like import BadEscape, compile_like
from clarion.selector.numbers import LONG_MIN_SIZE, parse_number, shortened
from clarion.selector.tree import CONDITION, NUMBER, Literal, Name, Node

_GRAMMAR = r"""
?start: disjunction

?disjunction: conjunction (OR conjunction)*
?conjunction: negation (AND negation)*
?negation: NOT negation -> negated
    | predicate
?predicate: sum
    | sum COMPARISON sum -> compare
    | sum [NOT] BETWEEN sum AND sum -> between
    | sum [NOT] IN "(" STRING ("," STRING)* ")" -> in_list
    | sum [NOT] LIKE STRING [ESCAPE STRING] -> like
    | sum IS [NOT] NULL -> is_null
?sum: product ((PLUS | MINUS) product)*
?product: signed ((STAR | SLASH) signed)*
?signed: (PLUS | MINUS) signed -> sign
    | atom
?atom: NUMBER -> number
    | STRING -> string
    | TRUE -> boolean
    | FALSE -> boolean
    | NAME -> name
    | LPAR disjunction RPAR -> parentheses

NAME: /[A-Za-z_$\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*/
NUMBER: /0[xX][\w$.]*(?:(?<=[pP])[+-][\w$]*)?|\.?[0-9][\w$.]*(?:(?<=[eE])[+-][\w$]*)?/
STRING: /'[^']*(?:''[^']*)*'/
COMPARISON: "<>" | "<=" | ">=" | "=" | "<" | ">"
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
LPAR: "("
RPAR: ")"

%declare AND OR NOT BETWEEN LIKE IN IS ESCAPE NULL TRUE FALSE
%ignore /[ \t\f\r\n]+/
"""

_SHOWN = {
    "NAME": "a name", "NUMBER": "a number", "STRING": "a string", "COMPARISON": "a comparison", "COMMA": ",",
    "PLUS": "+", "MINUS": "-", "STAR": "*", "SLASH": "/", "LPAR": "(", "RPAR": ")", "$END": "the end",
}  # fmt: skip


class SelectorError(Exception):
    """What is wrong, and where, counted from 0."""

    def __init__(self, at: int, detail: str) -> None:
        super().__init__(at, detail)
        self.at = at
        self.detail = detail


def parse(text: str) -> tuple[Node, str]:
    """The tree, and the canonical text: one space between tokens, reserved words in capitals.

    Raises `SelectorError`. The text is not blank, and not larger than the limit.
    """
    parser = _parser()
    try:
        canonical = " ".join(token.type if token.type in names.RESERVED else token for token in parser.lex(text))
        node = _condition(parser.parse(text), "a selector")  # type: ignore[arg-type]  # the transformer makes nodes
    except UnexpectedCharacters as error:
        at = error.pos_in_stream
        assert at is not None
        raise SelectorError(at, _stray(text[at])) from None
    except UnexpectedToken as error:
        _unexpected(error, text)
    return node, canonical


@cache
def _parser() -> Lark:
    callbacks = {"NAME": _name_or_word, "NUMBER": _checked_number}
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), lexer_callbacks=callbacks)


def _name_or_word(token: Token) -> Token:
    """Reserved words are the ASCII letters in any case, and nothing that Unicode takes for them."""
    if token.isascii() and token.upper() in names.RESERVED:
        return Token.new_borrow_pos(token.upper(), token, token)
    wrong = names.wrong_character(token)
    if wrong >= 0:
        raise SelectorError(_at(token) + wrong, f"U+{ord(token[wrong]):04X} cannot stand here in a name")
    return token


def _checked_number(token: Token) -> Token:
    """Here and not in the tree, so that `5AND b` is a bad number and not a misplaced `b`."""
    try:
        parse_number(token)
    except ValueError as error:
        raise SelectorError(_at(token), str(error)) from None
    return token


def _at(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos


def _stray(character: str) -> str:
    return {
        "'": "the string that begins here does not end",
        '"': "a string is written in single quotes",
        "!": "not equal is written <>",
    }.get(character, f"{character!a} has no meaning in a selector")


def _unexpected(error: UnexpectedToken, text: str) -> NoReturn:
    token = error.token
    possible = ", ".join(sorted(_SHOWN.get(name, name) for name in error.accepts or error.expected))
    if token.type == "$END":
        raise SelectorError(len(text), f"the selector ends too early; possible here: {possible}") from None
    if token.type == "NULL":
        raise SelectorError(_at(token), "null is not a value to compare with; it is asked for by IS NULL") from None
    found = f"the reserved word {token.type}" if token.type in names.RESERVED else shortened(token)
    raise SelectorError(_at(token), f"{found} cannot stand here; possible: {possible}") from None


# --- what may stand where -----------------------------------------------------------------------


def _in_range(node: Node) -> Node:
    if isinstance(node, Literal) and type(node.value) is int and node.value == LONG_MIN_SIZE:
        raise SelectorError(node.at, f"{node.value} does not fit into 64 bits")
    return node


def _number(node: Node, where: str) -> Node:
    if node.kind not in (NUMBER, None):
        raise SelectorError(node.at, f"{where} needs a number, not {node.kind}")
    return _in_range(node)


def _condition(node: Node, where: str) -> Node:
    if node.kind not in (CONDITION, None):
        raise SelectorError(node.at, f"{where} needs a condition, not {node.kind}")
    return node


def _name(node: Node, where: str) -> Name:
    if not isinstance(node, Name):
        raise SelectorError(node.at, f"{where} needs the name of a property or header field on its left")
    return node


def _deeper(depth: int, at: int) -> int:
    if depth >= limits.SELECTOR_DEPTH_MAX:
        raise SelectorError(at, f"parentheses, NOT and signs nest deeper than {limits.SELECTOR_DEPTH_MAX} from here")
    return depth + 1


def _unless(negated: Token | None, node: Node) -> Node:
    return tree.Not(node, node.at, node.depth) if negated else node


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Makes a node for each rule as soon as it is recognised, so there is no recursion over the text."""

    def disjunction(self, *parts: Node) -> Node:
        return self._joined(tree.Or, "OR", parts)

    def conjunction(self, *parts: Node) -> Node:
        return self._joined(tree.And, "AND", parts)

    def _joined(self, kind: type[tree.Or] | type[tree.And], word: str, parts: tuple[Node, ...]) -> Node:
        operands = tuple(_condition(node, word) for node in parts[::2])
        return kind(operands, operands[0].at, tree.deepest(*operands))

    def negated(self, word: Token, operand: Node) -> Node:
        return tree.Not(_condition(operand, "NOT"), _at(word), _deeper(operand.depth, _at(word)))

    def compare(self, left: Node, operator: Token, right: Node) -> Node:
        check = (lambda node: _number(node, str(operator))) if operator not in ("=", "<>") else _in_range
        return tree.Compare(str(operator), check(left), check(right), left.at, tree.deepest(left, right))

    def between(self, value: Node, negated: Token | None, _b: Token, low: Node, _a: Token, high: Node) -> Node:
        for node in (value, low, high):
            _number(node, "BETWEEN")
        at, depth = value.at, tree.deepest(value, low, high)
        if negated:
            return tree.Or(
                (tree.Compare("<", value, low, at, depth), tree.Compare(">", value, high, at, depth)), at, depth
            )
        return tree.And(
            (tree.Compare(">=", value, low, at, depth), tree.Compare("<=", value, high, at, depth)), at, depth
        )

    def in_list(self, subject: Node, negated: Token | None, _in: Token, *values: Token) -> Node:
        name = _name(subject, "IN")
        return _unless(negated, tree.In(name, frozenset(map(_unquoted, values)), name.at, name.depth))

    def like(
        self, subject: Node, negated: Token | None, _like: Token, pattern: Token, _e: Token | None, escape: Token | None
    ) -> Node:
        name = _name(subject, "LIKE")
        escape_character = None if escape is None else _unquoted(escape)
        if escape is not None and escape_character is not None and len(escape_character) != 1:
            raise SelectorError(_at(escape), "an escape is exactly one character")
        try:
            compile_like(_unquoted(pattern), escape_character)
        except BadEscape:
            detail = f"in a pattern {escape_character} can only stand before %, _ and itself"
            raise SelectorError(_at(pattern), detail) from None
        return _unless(negated, tree.Like(name, _unquoted(pattern), escape_character, name.at, name.depth))

    def is_null(self, subject: Node, _is: Token, negated: Token | None, _null: Token) -> Node:
        name = _name(subject, "IS NULL")
        return _unless(negated, tree.IsNull(name, name.at, name.depth))

    def sum(self, first: Node, *rest: Token | Node) -> Node:
        return self._arithmetic(first, rest)

    def product(self, first: Node, *rest: Token | Node) -> Node:
        return self._arithmetic(first, rest)

    def _arithmetic(self, first: Node, rest: tuple[Token | Node, ...]) -> Node:
        steps: list[tuple[str, Node]] = []
        for operator, operand in zip(rest[::2], rest[1::2], strict=True):
            assert isinstance(operator, Token) and not isinstance(operand, Token)
            _number(first, str(operator))
            steps.append((str(operator), _number(operand, str(operator))))
        return tree.Arithmetic(first, tuple(steps), first.at, tree.deepest(first, *(node for _, node in steps)))

    def sign(self, operator: Token, operand: Node) -> Node:
        at, depth = _at(operator), _deeper(operand.depth, _at(operator))
        if isinstance(operand, Literal) and operand.kind == NUMBER and operator == "-":
            return Literal(-operand.value, at, depth)  # type: ignore[operator]  # a number, says its kind
        return tree.Sign(str(operator), _number(operand, str(operator)), at, depth)

    def parentheses(self, opening: Token, inner: Node, _closing: Token) -> Node:
        _deeper(inner.depth, _at(opening))
        return tree.enclosed(inner, _at(opening))

    def number(self, token: Token) -> Node:
        return Literal(parse_number(token), _at(token))

    def string(self, token: Token) -> Node:
        return Literal(_unquoted(token), _at(token))

    def boolean(self, token: Token) -> Node:
        return Literal(token.type == "TRUE", _at(token))

    def name(self, token: Token) -> Node:
        reason = names.why_not(token)
        if reason is not None:
            raise SelectorError(_at(token), reason)
        return Name(str(token), _at(token))
