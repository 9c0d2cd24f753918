"""Entries of the ledger's log: facts in MessagePack, as arrays, so that later versions may add fields at the end.

An entry was admitted before it was written: applying one never fails and never decides. The head of an entry is in
the journal twice, so everything but the bytes of a dead event survives damage of one of the copies. Sections and
producers are ids of 128 bits, 16 bytes here. Numbers of kinds are part of the format.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from clarion.errors import NewerFormat

RANGES_PER_ENTRY_MAX = 1_024
"""Ranges in one entry; so one entry has at most some 20 KiB."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """Base of all."""


class Added(Entry, frozen=True):
    """A recipient has this slot and filter from this epoch on."""

    slot: int
    name: str
    filter: str
    epoch: int


class Removed(Entry, frozen=True):
    """The recipient in this slot is gone from this epoch on; what it was owed is settled as removed."""

    slot: int
    epoch: int
    owed: int
    forced: bool
    time_ms: int


class Adopted(Entry, frozen=True):
    """A section is known. `oldest_epoch`: no record of it is, or will be, of an older one."""

    section: bytes
    name: str
    kind: str
    first: int
    oldest_epoch: int


class Finished(Entry, frozen=True):
    """A section is gone, with everything that was known of it."""

    section: bytes


class Confirmed(Entry, frozen=True):
    """[first, end, first, end, …] of a section are settled for a recipient."""

    section: bytes
    slot: int
    bounds: list[int]


class Decided(Entry, frozen=True):
    """[first, end, bits, …]: for whom events are that nobody had decided when they were recorded."""

    section: bytes
    runs: list[int]


class Dead(Entry, frozen=True):
    """An event was given up for a recipient, and is settled by that; its headers and body are the record's body."""

    number: int
    slot: int
    recipient: str
    section: bytes
    at: int
    producer: bytes
    sequence: int
    time_ns: int
    severity: int
    bits: int
    epoch: int
    flags: int
    header_bytes: int
    attempts: int
    time_ms: int
    reason: str


class Purged(Entry, frozen=True):
    """These dead events are gone: an operator said so, or they were delivered after all."""

    numbers: list[int]


class Resent(Entry, frozen=True):
    """[number, at, …]: dead events that are owed again, under a sequence of the section of the dead."""

    pairs: list[int]


class DeadAgain(Entry, frozen=True):
    """A dead event that was sent again was given up again."""

    number: int
    reason: str
    attempts: int
    time_ms: int


class Value(Entry, frozen=True):
    """A named value; None removes it."""

    name: str
    value: bytes | None


class Recipient(Entry, frozen=True):
    """Only in checkpoints: a recipient with its history. `filters`: [epoch, text, …]."""

    slot: int
    name: str
    since: int
    removed: int
    owed: int
    removed_ms: int
    filters: list[tuple[int, str]]


class Counters(Entry, frozen=True):
    """Only in checkpoints."""

    epoch: int
    number_next: int
    resent_next: int


class DeadAt(Entry, frozen=True):
    """Only in checkpoints: a dead event and where its bytes are; a span of 0: they are lost."""

    dead: Dead
    position: int
    span: int
    resent_at: int


class Kind(IntEnum):
    """What an entry says."""

    ADDED = 32
    REMOVED = 33
    ADOPTED = 34
    FINISHED = 35
    CONFIRMED = 36
    DECIDED = 37
    DEAD = 38
    PURGED = 39
    RESENT = 40
    DEAD_AGAIN = 41
    VALUE = 42
    RECIPIENT = 128
    COUNTERS = 129
    DEAD_AT = 130


_TYPES: dict[Kind, type[Entry]] = {
    Kind.ADDED: Added,
    Kind.REMOVED: Removed,
    Kind.ADOPTED: Adopted,
    Kind.FINISHED: Finished,
    Kind.CONFIRMED: Confirmed,
    Kind.DECIDED: Decided,
    Kind.DEAD: Dead,
    Kind.PURGED: Purged,
    Kind.RESENT: Resent,
    Kind.DEAD_AGAIN: DeadAgain,
    Kind.VALUE: Value,
    Kind.RECIPIENT: Recipient,
    Kind.COUNTERS: Counters,
    Kind.DEAD_AT: DeadAt,
}
KIND_OF = {entry: kind for kind, entry in _TYPES.items()}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(entry) for kind, entry in _TYPES.items()
}
encode = msgspec.msgpack.Encoder().encode


def decode(kind: int, head: bytes) -> Entry:
    """The entry that was written. Raises `NewerFormat` for a kind that this version does not know."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise NewerFormat(path="the ledger", version=kind, supported=max(_DECODERS))
    entry: Entry = decoder.decode(head)
    return entry


def id_bytes(identity: int) -> bytes:
    return identity.to_bytes(16, "big")


def id_of(data: bytes) -> int:
    return int.from_bytes(data, "big")
