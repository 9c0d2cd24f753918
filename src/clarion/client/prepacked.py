"""A batch whose messages are encoded already: columns and data as they stand on the wire.

For whoever has messages in columns (Arrow, say) and would only lose by cutting them into objects. The client adds
the destination, the ids and the checksum; nothing is done for a single message.

Guarantees
    1. What `check` lets pass, a broker takes: columns agree with each other and with the data, every bound holds.
    2. `encode` copies: the buffers may be used for something else afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from clarion import limits
from clarion.client.options import Terms
from clarion.errors import BadArgument, MessageTooLarge
from clarion.wire import batch as wire
from clarion.wire.batch import GROUPS, HEADERS, TIMES, Buffer

_Column = np.ndarray[tuple[int], np.dtype[np.uint32]]
_MS_MAX = (1 << 63) - 1


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one batch. Columns are little-endian u32, as bytes or anything that has them in its buffer."""

    count: int
    offsets: Any
    """count + 1 of them, from 0: where each message begins in `data`."""
    data: Any
    """For each message its headers (MessagePack, see docs/formats/wire.md), then its body."""
    header_sizes: Any = None
    """Bytes of each message's headers; None: no message has any."""
    group_hashes: Any = None
    """`clarion.message.group_hash` of each message's group, 0 for none; None: no message has one."""
    time_deltas: Any = None
    """When each message was handed over, in milliseconds after `created_ms`; None: all at that time."""
    priority: int = limits.PRIORITY_DEFAULT
    created_ms: int = 0
    """Unix milliseconds; 0: when it is sent."""
    deliver_at_ms: int = 0
    """Nobody gets it before; 0: at once."""
    expiry_first_ms: int = 0
    """When the first of its messages expires (their headers say it of each); 0: none does."""
    expiry_last_ms: int = 0
    """When the last one does; 0: some do not."""

    @property
    def terms(self) -> Terms:
        """What all its messages have in common."""
        return Terms(self.priority, self.deliver_at_ms, 0)

    def check(self, bytes_max: int = limits.BATCH_BYTES_MAX) -> None:
        """Raises `BadArgument` or `MessageTooLarge` unless a broker takes it; `bytes_max` is for columns and data."""
        if not 1 <= self.count <= limits.BATCH_MESSAGES_MAX:
            raise BadArgument(argument="count", detail=f"{self.count} is not between 1 and {limits.BATCH_MESSAGES_MAX}")
        if not 0 <= self.priority <= limits.PRIORITY_MAX:
            raise BadArgument(argument="priority", detail=f"{self.priority} is not between 0 and {limits.PRIORITY_MAX}")
        for name in ("created_ms", "deliver_at_ms", "expiry_first_ms", "expiry_last_ms"):
            if not 0 <= getattr(self, name) <= _MS_MAX:
                raise BadArgument(argument=name, detail=f"{getattr(self, name)} is no time")
        offsets = self._column("offsets", self.count + 1)
        lengths = np.diff(offsets.astype(np.int64))
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(_bytes(self.data)) or lengths.min() < 0:
            raise BadArgument(argument="offsets", detail="they do not ascend from 0 to the size of the data")
        if self.header_sizes is not None:
            sizes = self._column("header_sizes", self.count)
            if int(sizes.max()) > limits.HEADERS_BYTES_MAX or bool((sizes > lengths).any()):
                raise BadArgument(argument="header_sizes", detail="headers larger than their message or the limit")
        for name in ("group_hashes", "time_deltas"):
            if getattr(self, name) is not None:
                self._column(name, self.count)
        _, columns = self._columns()
        size = sum(map(len, columns)) + len(_bytes(self.data))
        if size > bytes_max:
            raise MessageTooLarge(size=size, limit=bytes_max)

    def _column(self, name: str, length: int) -> _Column:
        data = _bytes(getattr(self, name))
        if len(data) != 4 * length:
            raise BadArgument(argument=name, detail=f"it has {len(data)} bytes, not {length} numbers of 4")
        return np.frombuffer(data, np.dtype("<u4"))

    def _columns(self) -> tuple[int, list[Buffer]]:
        """The flags, and the columns in the order of the layout."""
        flags, columns = 0, [_bytes(self.offsets)]
        for flag, column in ((HEADERS, self.header_sizes), (GROUPS, self.group_hashes), (TIMES, self.time_deltas)):
            if column is not None:
                flags |= flag
                columns.append(_bytes(column))
        return flags, columns

    def encode(self, destination: bytes, first_id: int, now_ms: int) -> bytearray:
        """The batch as it goes over the wire."""
        flags, columns = self._columns()
        return wire.assemble(
            destination,
            first_id,
            self.count,
            flags,
            columns,
            (_bytes(self.data),),
            priority=self.priority,
            created_ms=self.created_ms or now_ms,
            deliver_at_ms=self.deliver_at_ms,
            expiry_first_ms=self.expiry_first_ms,
            expiry_last_ms=self.expiry_last_ms,
        )


def _bytes(buffer: Any) -> Buffer:
    return buffer if isinstance(buffer, bytes) else memoryview(buffer).cast("B")
