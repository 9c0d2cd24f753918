"""Many keys under one roof: what Spark keeps as one piece of state.

Theory of operation
    A call into Python for each key would cost more than all that is done for it. So keys are spread over
    `BUCKETS` buckets by their hash, and a bucket is one state in Spark: bytes, with an entry for each key that has its
    next time outside and everything else still encoded. Only entries that have rows, or whose time has come, are
    decoded. One timeout stands for a whole bucket: the earliest time of its entries.

Rules
    1. Pure. `BUCKETS` and `bucket_of` never change: a checkpoint depends on them.
    2. Entries of rules that there are no more are dropped; those of changed rules begin again; keys that a rule
       expects are entered: all when the bucket is asked for the first time under new rules.
    3. The result does not depend on the order of rows within a batch, and alerts are in the order of their times.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from clarion.pipelines.alerts.keyed import Keyed, new_keyed, replaced
from clarion.pipelines.alerts.machine import NEVER, Alert, Row
from clarion.pipelines.alerts.rules import Rule, Silence

BUCKETS = 32
_SEPARATOR = " "
"""Between the name of a rule, which has no blank, and a key."""


class Match(NamedTuple):
    """An event that matches a rule, as it comes from Spark."""

    rule: str
    key: str
    """JSON: a list of texts or nulls, one for each name in `by`."""
    time_us: int
    sequence: int
    row: Row


class Found(NamedTuple):
    """An alert, of which rule and key."""

    rule: Rule
    key: str
    alert: Alert


class Ruleset:
    """Rules by name, with what buckets ask of them."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: Mapping[str, Rule] = {rule.name: rule for rule in rules}
        defined = [(rule.name, rule.fingerprint, rule.condition) for rule in self.rules.values()]
        self.version = f"{zlib.crc32(msgspec.json.encode(defined)):08x}"
        """Another one for other rules."""
        self.expected: dict[int, list[tuple[Rule, str]]] = {}
        for rule in self.rules.values():
            for parts in rule.condition.expect if isinstance(rule.condition, Silence) else ():
                key = key_text(parts)
                self.expected.setdefault(bucket_of(rule.name, key), []).append((rule, key))


class Entry(msgspec.Struct, array_like=True):
    wake_ms: int
    keyed: msgspec.Raw


class Bucket(msgspec.Struct, array_like=True):
    """The state of one bucket."""

    version: str = ""
    entries: dict[str, Entry] = {}


_buckets = msgspec.msgpack.Decoder(Bucket)
_keyed = msgspec.msgpack.Decoder(Keyed)
_encode = msgspec.msgpack.Encoder().encode


def key_text(parts: Sequence[str | None]) -> str:
    """A key as Spark writes it."""
    return msgspec.json.encode(parts).decode()


def bucket_of(rule: str, key: str) -> int:
    """Where a key is; Spark computes the same by `crc32`."""
    return zlib.crc32(f"{rule}{_SEPARATOR}{key}".encode()) % BUCKETS


def handle(
    ruleset: Ruleset, number: int, blob: bytes | None, matches: Iterable[Match], batch_ms: int
) -> tuple[bytes | None, int, list[Found]]:
    """One batch of a bucket: its new state (None: nothing to remember), its next time or -1, and the alerts."""
    bucket = _buckets.decode(blob) if blob is not None else Bucket()
    found: list[Found] = []
    touched: dict[str, Keyed] = {}
    if bucket.version != ruleset.version:
        _renew(ruleset, number, bucket, touched, batch_ms, found)
    for name, rows in _by_entry(ruleset, matches).items():
        rule, key = _split(ruleset, name)
        keyed = touched[name] if name in touched else _opened(bucket, name, rule)
        found += (Found(rule, key, alert) for alert in keyed.rows(rule, rows, batch_ms))
        touched[name] = keyed
    for name, entry in bucket.entries.items():
        if name not in touched and NEVER < entry.wake_ms <= batch_ms:
            rule, key = _split(ruleset, name)
            keyed = touched[name] = _keyed.decode(entry.keyed)
            found += (Found(rule, key, alert) for alert in keyed.passed(rule, batch_ms))
    for name, keyed in touched.items():
        if keyed.is_gone:
            bucket.entries.pop(name, None)
        else:
            wake_ms = keyed.wake_ms(_split(ruleset, name)[0])
            bucket.entries[name] = Entry(wake_ms, msgspec.Raw(_encode(keyed)))
    found.sort(key=lambda each: (each.alert.time_ms, each.rule.name, each.key, each.alert.raised))
    wake_ms = min((entry.wake_ms for entry in bucket.entries.values() if entry.wake_ms != NEVER), default=NEVER)
    return (_encode(bucket) if bucket.entries else None), wake_ms, found


def _by_entry(ruleset: Ruleset, matches: Iterable[Match]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for match in sorted(matches, key=lambda each: (each.time_us, each.sequence, each.row.id)):
        if match.rule in ruleset.rules:
            rows.setdefault(f"{match.rule}{_SEPARATOR}{match.key}", []).append(match.row)
    return dict(sorted(rows.items()))


def _split(ruleset: Ruleset, name: str) -> tuple[Rule, str]:
    rule, _, key = name.partition(_SEPARATOR)
    return ruleset.rules[rule], key


def _opened(bucket: Bucket, name: str, rule: Rule) -> Keyed:
    entry = bucket.entries.get(name)
    return new_keyed(rule) if entry is None else _keyed.decode(entry.keyed)


def _renew(
    ruleset: Ruleset, number: int, bucket: Bucket, touched: dict[str, Keyed], batch_ms: int, found: list[Found]
) -> None:
    """Make entries fit rules that are not those of the last batch."""
    bucket.version = ruleset.version
    expected = {f"{rule.name}{_SEPARATOR}{key}" for rule, key in ruleset.expected.get(number, ())}
    for name in list(bucket.entries):
        if name.partition(_SEPARATOR)[0] not in ruleset.rules:
            del bucket.entries[name]
            continue
        rule, key = _split(ruleset, name)
        keyed = _keyed.decode(bucket.entries[name].keyed)
        if keyed.fingerprint != rule.fingerprint:
            keyed, alerts = replaced(rule, keyed, batch_ms)
            found += (Found(rule, key, alert) for alert in alerts)
            bucket.entries.pop(name)
            if name not in expected:
                continue
        keyed.state.expected = False
        touched[name] = keyed
    for name in sorted(expected):
        if name not in touched:
            touched[name] = new_keyed(_split(ruleset, name)[0])
        touched[name].expect(batch_ms)
