"""Unique ids: 128 bits, issued by nodes, cheap to compare (B-11).

    bits 127..118  site      10   configured
    bits 117..104  node      14   configured
    bits 103..64   start     40   milliseconds since 2025, when the issuing generator started
    bits  63..48   ordinal   16   which producer of that start
    bits  47..0    sequence  48   which message of that producer

A *producer id* is an id whose sequence part is zero; a message's id is its producer's id plus its
sequence, so a batch carries one id for all of its messages, unless they have gaps. Guarantees:

1. Two generators with different (site, node) never issue the same id.
2. A restarted generator never repeats an id of an earlier life, provided `start_after` is at least
   the last start it used (a node keeps it in a file) or its clock did not go backwards.
3. Overflow of the ordinal moves the start forward, never around; overflow of the sequence is
   refused (`next_producer` gives a new producer).
"""

from __future__ import annotations

from dataclasses import dataclass

EPOCH_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z."""
SEQUENCE_BITS = 48
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
SITE_MAX = (1 << 10) - 1
NODE_MAX = (1 << 14) - 1
_ORDINAL_MAX = (1 << 16) - 1
_START_MAX = (1 << 40) - 1


@dataclass(slots=True)
class IdGenerator:
    """Issues producer ids for one run of one node. Pure: the clock is an argument."""

    site: int
    node: int
    start_ms: int
    _ordinal: int = 0

    @classmethod
    def begin(cls, site: int, node: int, now_ms: int, start_after_ms: int = 0) -> IdGenerator:
        """A generator for a run that begins at `now_ms` (Unix time), later than `start_after_ms`."""
        if not 0 <= site <= SITE_MAX or not 0 <= node <= NODE_MAX:
            raise ValueError(f"site {site} or node {node} is out of range")
        start_ms = max(now_ms, start_after_ms + 1)
        if not 0 <= start_ms - EPOCH_MS <= _START_MAX:
            raise ValueError(f"the clock says {now_ms}, which no id can hold")
        return cls(site, node, start_ms)

    def next_producer(self) -> int:
        """A producer id never issued before."""
        if self._ordinal > _ORDINAL_MAX:
            self.start_ms += 1
            self._ordinal = 0
        identity = (
            self.site << 118 | self.node << 104 | (self.start_ms - EPOCH_MS) << 64 | self._ordinal << SEQUENCE_BITS
        )
        self._ordinal += 1
        return identity


def producer_of(message_id: int) -> int:
    """The producer part of a message's id."""
    return message_id & ~SEQUENCE_MAX


def node_of(message_id: int) -> int:
    """Who issued it: the site and node parts."""
    return message_id >> 104


def sequence_of(message_id: int) -> int:
    """The sequence of a message within its producer."""
    return message_id & SEQUENCE_MAX


def format_id(identity: int) -> str:
    """32 hexadecimal digits; sorts like the number."""
    return f"{identity:032x}"


def parse_id(text: str) -> int:
    """The inverse of `format_id`. Raises `ValueError` for anything else."""
    if len(text) != 32:
        raise ValueError(f"an id has 32 hexadecimal digits, not {len(text)}")
    return int(text, 16)
