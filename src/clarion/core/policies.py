"""Policies: how a destination behaves when things go wrong, fill up or grow old.

Theory of operation
    A rule is a name or a pattern with a policy, and a policy says as many fields as somebody wanted. What holds for a
    destination is merged field by field, later rules over earlier ones:
        1. the defaults;
        2. the rules of the settings file, names and patterns alike, in the order of the file;
        3. the patterns that were set online, in the order in which they were first set;
        4. the name that was set online.
    Setting a rule again replaces its policy and keeps its place; removing it gives the place up.

Rules
    1. Pure, and a function of the rules and their order alone.
    2. Names that begin with `_` belong to the system: only rules that begin with `_` reach them (`_DMQ`,
       `glob:_temp.*`), so that `glob:*` does not turn the dead message queue into one that loses messages.
    3. Online rules are logged state: `set`, `remove` and `load` take what was admitted and do not fail on it; `check`
       admits. The file's rules belong to the process and are not dumped.
    4. Dumps name their fields: a field that a version does not know is skipped, one that is missing is not said.

docs/operating/policies.md explains each field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from clarion import limits
from clarion.core.patterns import PatternSet, is_pattern, parse_pattern
from clarion.errors import BadArgument, LimitReached
from clarion.message import check_name
from clarion.units import parse_unit

_Bytes = Annotated[int, msgspec.Meta(ge=0, le=limits.POLICY_BYTES_MAX)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=limits.POLICY_MS_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=limits.POLICY_COUNT_MAX)]
_Factor = Annotated[float, msgspec.Meta(ge=1.0, le=limits.POLICY_FACTOR_MAX)]
_WhenFull = Literal["block", "fail"]
_Expired = Literal["dead", "drop"]


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rule says. None: nothing of that."""

    quota_bytes: _Bytes | None = None
    when_full: _WhenFull | None = None
    deliveries_max: _Count | None = None
    redelivery_ms: _Milliseconds | None = None
    redelivery_factor: _Factor | None = None
    redelivery_ms_max: _Milliseconds | None = None
    expired: _Expired | None = None
    visibility_ms: _Milliseconds | None = None
    retain_ms: _Milliseconds | None = None
    retain_bytes: _Bytes | None = None
    ttl_ms_max: _Milliseconds | None = None
    message_bytes_max: _Bytes | None = None
    consumers_max: _Count | None = None
    pause_for_slowest: bool | None = None

    def said(self) -> dict[str, Any]:
        """The fields that it says something of, in their order."""
        return {field: value for field in FIELDS if (value := getattr(self, field)) is not None}


class Effective(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What holds for one destination: every field has a value, and reading one costs what an attribute costs."""

    quota_bytes: _Bytes = 0
    """0: what the destination was created with, or the server's usual quota."""
    when_full: _WhenFull = "block"
    deliveries_max: _Count = 0
    """0: as often as it takes. Nothing leaves a queue unless somebody asked for it."""
    redelivery_ms: _Milliseconds = 0
    redelivery_factor: _Factor = 2.0
    redelivery_ms_max: _Milliseconds = 60_000
    expired: _Expired = "dead"
    visibility_ms: _Milliseconds = 0
    retain_ms: _Milliseconds = 0
    retain_bytes: _Bytes = 0
    ttl_ms_max: _Milliseconds = 0
    message_bytes_max: _Bytes = 0
    consumers_max: _Count = 0
    pause_for_slowest: bool = False

    def redelivery_delay_ms(self, count: int) -> int:
        """How long a message that came back waits, after it was delivered `count` times.

        `redelivery_ms` after the first, then `redelivery_factor` times the one before, until `redelivery_ms_max`;
        a `redelivery_ms` above that is taken as it is.
        """
        if count < 1 or not self.redelivery_ms:
            return 0
        longest_ms = max(self.redelivery_ms, self.redelivery_ms_max)
        try:
            return int(min(self.redelivery_ms * self.redelivery_factor ** (count - 1), longest_ms))
        except OverflowError:
            return longest_ms


DEFAULTS = Effective()
FIELDS = Policy.__struct_fields__
_TYPES = {field.name: field.type for field in msgspec.structs.fields(Effective)}


def parse_policy(fields: Mapping[str, object]) -> Policy:
    """A policy as somebody wrote it: sizes, durations and numbers also as text ("64 MiB", "10 s", "5", "true").

    None says nothing of its field. Raises `BadArgument` with the field.
    """
    said: dict[str, Any] = {}
    for field, value in fields.items():
        if field not in _TYPES:
            raise BadArgument(
                argument=str(field)[:100], detail=f"there is no such field; there are {', '.join(FIELDS)}"
            )
        if value is None:
            continue
        try:
            said[field] = msgspec.convert(parse_unit(field, value), _TYPES[field], strict=not isinstance(value, str))
        except ValueError as error:  # also msgspec's
            raise BadArgument(argument=field, detail=str(error)) from None
    return Policy(**said)


def check_rule(pattern: str) -> None:
    """Is it what a rule may be for: a bare name, `glob:…` or `regex:…`? Raises `BadName` or `BadPattern`."""
    if is_pattern(pattern):
        parse_pattern(pattern)
    else:
        check_name(pattern)


# --- the table ------------------------------------------------------------------------------------


class _Rule(msgspec.Struct):
    pattern: str
    policy: Policy


class _Dump(msgspec.Struct):
    rules: list[_Rule] = []


_decode_dump = msgspec.msgpack.Decoder(_Dump).decode


class PolicyTable:
    """The rules of one message manager, and what follows from them for a name.

    Rules have numbers, given in the order in which they count: the file's first, then by first setting.
    """

    __slots__ = ("_by_name", "_by_rules", "_defaults", "_file", "_named", "_next", "_online", "_patterns", "_policies",
                 "_system", "version")  # fmt: skip

    def __init__(self, file_rules: Iterable[tuple[str, Policy]] = (), defaults: Effective = DEFAULTS) -> None:
        """Raises `BadPattern` or `BadName`."""
        self._defaults = defaults
        self._file = tuple(file_rules)
        self.version = 0
        """More with each change."""
        self._by_name: dict[str, Effective] = {}
        self._by_rules: dict[tuple[int, ...], Effective] = {}
        self._start()

    def _start(self) -> None:
        """As the file says, and nothing set online."""
        self._next = 0
        self._policies: dict[int, Policy] = {}
        self._patterns: PatternSet[int] = PatternSet()
        self._system: set[int] = set()
        """Patterns that begin with `_`."""
        self._named: dict[str, list[int]] = {}
        """Rules of the file that are names."""
        self._online: dict[str, int] = {}
        """Rules that were set online, in the order of first setting."""
        for pattern, policy in self._file:
            number = self._numbered(pattern, policy)
            if not is_pattern(pattern):
                check_name(pattern)
                self._named.setdefault(pattern, []).append(number)
        self._changed()

    def check(self, pattern: str) -> None:
        """May a rule for it be set? Raises `BadPattern`, `BadName` or `LimitReached`."""
        check_rule(pattern)
        if pattern not in self._online and len(self._online) >= limits.POLICY_RULES_MAX:
            raise LimitReached(what="policies", limit=limits.POLICY_RULES_MAX)

    def set(self, pattern: str, policy: Policy) -> None:
        """From now on `policy` is all that is said online for `pattern`: a name, or `glob:…`, `regex:…`.

        Raises `BadPattern` or `BadName`, and then nothing has changed.
        """
        check_rule(pattern)
        self._set(pattern, policy)
        self._changed()

    def remove(self, pattern: str) -> bool:
        """Nothing is said online for `pattern` any more. Was there something?"""
        number = self._online.pop(pattern, None)
        if number is None:
            return False
        del self._policies[number]
        self._patterns.remove(number)
        self._system.discard(number)
        self._changed()
        return True

    def effective(self, name: str) -> Effective:
        """What holds for the destination of this name: the same object until something changes."""
        found = self._by_name.get(name)
        if found is None:
            if len(self._by_name) >= 2 * limits.DESTINATIONS_MAX:  # beside those that are there, some that were
                self._forget()
            rules = self._rules_of(name)
            found = self._by_rules.get(rules)
            if found is None:
                found = self._by_rules[rules] = self._merged(rules)
            self._by_name[name] = found
        return found

    def rules(self) -> list[tuple[str, Policy]]:
        """What was set online, in the order in which it counts: patterns, then names."""
        in_order = [(pattern, self._policies[number]) for pattern, number in self._online.items()]
        return sorted(in_order, key=lambda rule: not is_pattern(rule[0]))  # stable: each kind keeps its order

    def file_rules(self) -> list[tuple[str, Policy]]:
        """What the settings file says, in its order."""
        return list(self._file)

    def dump(self) -> bytes:
        """What was set online, for a checkpoint."""
        rules = [_Rule(pattern, self._policies[number]) for pattern, number in self._online.items()]
        return msgspec.msgpack.encode(_Dump(rules))

    def load(self, data: bytes) -> None:
        """The inverse of `dump`: what was dumped is set online from now on, and nothing else."""
        dumped = _decode_dump(data)
        self._start()
        for rule in dumped.rules:
            self._set(rule.pattern, rule.policy)
        self._changed()

    # --- inside ---------------------------------------------------------------------------------------

    def _set(self, pattern: str, policy: Policy) -> None:
        number = self._online.get(pattern)
        if number is None:
            self._online[pattern] = self._numbered(pattern, policy)
        else:
            self._policies[number] = policy

    def _numbered(self, pattern: str, policy: Policy) -> int:
        """A new rule has the next number; `_patterns` is added to in the same order."""
        number = self._next
        if is_pattern(pattern):
            parsed = parse_pattern(pattern)
            self._patterns.add(number, parsed)
            if parsed.is_system:
                self._system.add(number)
        self._policies[number] = policy
        self._next += 1
        return number

    def _rules_of(self, name: str) -> tuple[int, ...]:
        """The rules that hold for a name, in the order in which they count."""
        numbers = self._patterns.matching(name)
        if name.startswith("_"):
            numbers = [number for number in numbers if number in self._system]
        numbers = sorted(numbers + self._named.get(name, []))
        if (own := self._online.get(name)) is not None:  # a name is no pattern, so this is the rule for just this name
            numbers.append(own)
        return tuple(numbers)

    def _merged(self, rules: tuple[int, ...]) -> Effective:
        said: dict[str, Any] = {}
        for number in rules:
            said |= self._policies[number].said()
        return msgspec.structs.replace(self._defaults, **said)

    def _changed(self) -> None:
        self.version += 1
        self._forget()

    def _forget(self) -> None:
        self._by_name.clear()
        self._by_rules.clear()
