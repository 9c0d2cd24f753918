"""Patterns over names: `glob:orders.*` and `regex:(eu|us)\\..+`, one by one and a thousand at a time.

Theory of operation
    Both kinds become one RE2 expression that must match a whole name. RE2 takes time linear in the name whatever the
    expression, and the memory of each is bounded (`limits.PATTERN_MEMORY_BYTES_MAX`): what needs more is refused.
    A `PatternSet` holds its patterns in blocks. A block is one automaton over at most 64 patterns: with more the
    number of its states grows faster than the saving (benchmarks/patterns.py), and patterns with large programs are
    left out of it, because an automaton cannot give up on them as a single match does. New patterns make a small
    block, small neighbours are joined, so a pattern is compiled a logarithmic number of times while a set grows by
    single steps. Removed patterns stay in their block unnoticed until half of it is gone.

Rules
    1. Pure, and the same everywhere: results are in the order of adding, never in the order of a hash.
    2. A match is never missed: an automaton whose memory ends reports nothing and says nothing. So each has one
       expression more, which matches everything; when even that is not reported, its patterns are asked one by one.
    3. Names are checked ones (`message.check_name`): valid UTF-8. Names that begin with `_` are matched like others;
       whether a pattern was written for them is `Pattern.is_system`, and the caller's to decide by.
    4. RE2 is imported with the first pattern, not before: most processes never see one.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from clarion import limits
from clarion.errors import BadPattern

GLOB, REGEX = "glob:", "regex:"

_EVERYTHING = r"\C*"
_SHOWN_MAX = 300
"""Characters of a wrong pattern in its error."""

K = TypeVar("K", bound=Hashable)


def is_pattern(text: str) -> bool:
    """Is it meant as a pattern? Names have no colon, so nothing is both."""
    return text.startswith((GLOB, REGEX))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that was understood. Equal to another of the same text."""

    text: str
    expression: str = field(compare=False, repr=False)
    """As RE2 takes it."""
    _compiled: Any = field(compare=False, repr=False)

    @property
    def is_system(self) -> bool:
        """Does it begin with `_`, as the names of the system do? `glob:_temp.*` does, `glob:*` does not."""
        return self.text.partition(":")[2].startswith("_")

    @property
    def steps(self) -> int:
        """The size of its program: what a character of a name costs at worst."""
        return int(self._compiled.programsize)

    def matches(self, name: str) -> bool:
        """Does it match the whole name? Linear in the length of the name."""
        return self._compiled.fullmatch(name.encode()) is not None


def parse_pattern(text: str) -> Pattern:
    """`glob:` with `*` (any run of characters, also none, dots included) and `?` (exactly one), or `regex:` in RE2's
    syntax. Raises `BadPattern`, also for what would take too much memory."""
    kind, colon, body = text.partition(":")
    if kind + colon not in (GLOB, REGEX):
        raise _wrong(text, "it begins neither with glob: nor with regex:")
    if not body:
        raise _wrong(text, "it is empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _wrong(ascii(text), "it is not valid Unicode") from None
    if size > limits.PATTERN_BYTES_MAX:
        raise _wrong(text, f"{size} bytes, the limit is {limits.PATTERN_BYTES_MAX}")
    engine = _engine()
    expression = _expression(body, engine) if kind + colon == GLOB else body
    try:
        return Pattern(text, expression, engine.module.compile(expression, engine.one))
    except engine.module.error as error:
        raise _wrong(text, _detail(error)) from None


def _wrong(text: str, detail: str) -> BadPattern:
    return BadPattern(pattern=text[:_SHOWN_MAX], detail=detail)


def _detail(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    detail = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return "it would take too much memory" if detail.startswith("pattern too large") else detail[:_SHOWN_MAX]


# --- RE2 ------------------------------------------------------------------------------------------


class _Engine(NamedTuple):
    module: Any
    one: Any
    """Options of a pattern."""
    many: Any
    """Options of a block."""


@functools.cache
def _engine() -> _Engine:
    import re2  # type: ignore[import-untyped]

    def options(memory_bytes: int) -> Any:
        made = re2.Options()
        made.max_mem = memory_bytes
        made.never_capture = True
        made.log_errors = False  # RE2 writes to standard error by itself
        return made

    return _Engine(re2, options(limits.PATTERN_MEMORY_BYTES_MAX), options(limits.PATTERN_BLOCK_MEMORY_BYTES_MAX))


def _expression(glob: str, engine: _Engine) -> str:
    """A run of any characters is a run of any bytes, since names and literals are valid UTF-8: fewer steps."""
    parts: list[str] = []
    for character in glob:
        if character == "*":
            if parts[-1:] != [_EVERYTHING]:
                parts.append(_EVERYTHING)
        else:
            parts.append("(?s:.)" if character == "?" else engine.module.escape(character))
    return "".join(parts)


# --- many patterns --------------------------------------------------------------------------------


class _Block:
    """A few patterns: the light ones are matched together by one automaton, the heavy ones one by one."""

    __slots__ = ("_automaton", "_singly", "_together", "gone", "patterns")

    def __init__(self, patterns: list[Pattern]) -> None:
        self.patterns = patterns
        self.gone = 0
        """How many of them nobody holds any more."""
        self._together = [pattern for pattern in patterns if pattern.steps <= limits.PATTERN_STEPS_TOGETHER_MAX]
        self._singly = [pattern for pattern in patterns if pattern.steps > limits.PATTERN_STEPS_TOGETHER_MAX]
        engine = _engine()
        self._automaton: Any = engine.module.Set.FullMatchSet(engine.many)
        try:
            self._automaton.Add(_EVERYTHING)
            for pattern in self._together:
                self._automaton.Add(pattern.expression)
            self._automaton.Compile()
        except engine.module.error:
            self._part()

    def matching(self, name: str) -> list[Pattern]:
        """Those that match, in no order."""
        matching: list[Pattern] = []
        if self._together:
            found: list[int] | None = self._automaton.Match(name.encode())
            if found:
                matching = [self._together[index - 1] for index in found if index]
            else:  # not even what matches everything: there was no memory for its states
                self._part()
        return matching + [pattern for pattern in self._singly if pattern.matches(name)]

    def _part(self) -> None:
        """From now on one by one."""
        self._together, self._singly, self._automaton = [], self.patterns, None


class PatternSet(Generic[K]):
    """Which keys have a pattern that matches a name? A key has one pattern; keys with equal patterns share the work."""

    __slots__ = ("_added", "_blocks", "_fresh", "_holders", "_homes", "_patterns")

    def __init__(self) -> None:
        self._patterns: dict[K, Pattern] = {}
        self._holders: dict[Pattern, dict[K, int]] = {}
        """Keys of each pattern, with the number of their adding."""
        self._homes: dict[Pattern, _Block] = {}
        """Where a pattern is compiled; also of patterns that nobody holds and that are still in their block."""
        self._fresh: dict[Pattern, None] = {}
        """Held, and in no block yet; in the order of adding."""
        self._blocks: list[_Block] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._patterns)

    def __contains__(self, key: object) -> bool:
        return key in self._patterns

    def add(self, key: K, pattern: Pattern) -> None:
        """`key` has this pattern from now on, instead of an earlier one; it is the last in order."""
        self.remove(key)
        self._patterns[key] = pattern
        holders = self._holders.get(pattern)
        if holders is None:
            holders = self._holders[pattern] = {}
            if home := self._homes.get(pattern):
                home.gone -= 1
            else:
                self._fresh[pattern] = None
        self._added += 1
        holders[key] = self._added

    def remove(self, key: K) -> bool:
        """`key` has no pattern any more. Was there one?"""
        pattern = self._patterns.pop(key, None)
        if pattern is None:
            return False
        holders = self._holders[pattern]
        del holders[key]
        if not holders:
            del self._holders[pattern]
            if home := self._homes.get(pattern):
                home.gone += 1
                if 2 * home.gone > len(home.patterns):
                    self._dissolve(home)
            else:
                del self._fresh[pattern]
        return True

    def matching(self, name: str) -> list[K]:
        """The keys whose pattern matches, in the order of adding."""
        if self._fresh:
            self._compile_fresh()
        found: list[tuple[int, K]] = []
        for block in self._blocks:
            for pattern in block.matching(name):
                if holders := self._holders.get(pattern):
                    found += [(number, key) for key, number in holders.items()]
        found.sort(key=lambda numbered: numbered[0])
        return [key for _, key in found]

    def _compile_fresh(self) -> None:
        """Blocks for what is new, joined with the last block while that is no larger."""
        waiting = list(self._fresh)
        self._fresh.clear()
        size = limits.PATTERN_BLOCK_PATTERNS_MAX
        while self._blocks:
            last = self._blocks[-1]
            if len(last.patterns) > len(waiting) or len(last.patterns) == size:
                break
            waiting = self._taken_apart(last) + waiting
        for first in range(0, len(waiting), size):
            block = _Block(waiting[first : first + size])
            self._blocks.append(block)
            self._homes.update(dict.fromkeys(block.patterns, block))

    def _dissolve(self, block: _Block) -> None:
        self._fresh.update(dict.fromkeys(self._taken_apart(block)))

    def _taken_apart(self, block: _Block) -> list[Pattern]:
        """The patterns of a block that somebody holds; the block is no more."""
        self._blocks.remove(block)
        for pattern in block.patterns:
            del self._homes[pattern]
        return [pattern for pattern in block.patterns if pattern in self._holders]
