"""The columns of a sink: what a row may say of its message, checked and brought into one form each.

Guarantees
    1. Whatever is wrong raises here, with the column and the row: `BadArgument`, `BadName` or `MessageTooLarge`.
    2. A null, and a column that is not there, is the default; without a default the message does not have it.
    3. Names of destinations, groups and raw headers are looked at once for each value that differs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clarion import limits
from clarion.client.options import DELIVERY_STEP_MS, TIME_S_MAX
from clarion.core.wellknown import sendable
from clarion.errors import BadArgument, BadName
from clarion.message import Headers, group_hash
from clarion.spark import msgpack_columns
from clarion.spark.headers import decoded
from clarion.spark.msgpack_columns import TEXT_BYTES_MAX
from clarion.spark.schema import BY_NAME
from clarion.spark.sink_reading import TIME_MS_MAX, ColumnReader, Numbers, kind_of, mask_of

TEXT_HEADERS: Final = {"reply_to": "r", "correlation_id": "c", "group_id": "g", "type": "t", "content_type": "m"}
_HEADERS: Final = (*TEXT_HEADERS, "ttl", "expires_at", "properties")
NAMES: Final = ("body", "value", "destination", "priority", *_HEADERS, "deliver_at", "time", "headers")
"""Every column that a sink takes."""


_TTL_WRONG: Final = "it is not more than 0, or out of range; without ttl a message never expires"


class SinkDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a row that does not say it, and what the broker takes."""

    destination: str | None = None
    priority: int = limits.PRIORITY_DEFAULT
    type: str | None = None
    content_type: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    group_id: str | None = None
    ttl: float | None = None
    """Seconds until a message expires."""
    batch_bytes_max: int = limits.BATCH_BYTES_MAX
    """What the broker said in its welcome."""


def check_names(names: list[str], defaults: SinkDefaults) -> None:
    """Raises `BadArgument` for columns that a sink does not take, or not together."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        known = [name for name in unknown if name in BY_NAME]
        hint = f" ({', '.join(known)}: the broker gives them, so leave them out)" if known else ""
        detail = f"a message has no {', '.join(unknown)}{hint}; columns are {', '.join(NAMES)}"
        raise BadArgument(argument="columns", detail=detail)
    if len(set(names)) != len(names):
        raise BadArgument(argument="columns", detail="one is there twice")
    if ("body" in names) == ("value" in names):
        detail = "there are body and value: give one of them" if "body" in names else "there is no body"
        raise BadArgument(argument="columns", detail=detail)
    if "ttl" in names and "expires_at" in names:
        raise BadArgument(argument="columns", detail="there are ttl and expires_at: give one of them")
    if "headers" in names:
        others = [name for name in _HEADERS if name in names or getattr(defaults, name, None) is not None]
        if others:
            detail = f"headers are whole: {', '.join(others)} cannot be given beside them"
            raise BadArgument(argument="columns", detail=detail)
    if "destination" not in names and defaults.destination is None:
        raise BadArgument(argument="destination", detail="there is neither a column nor an option of this name")


class Rows(ColumnReader):
    """Rows of a record batch, of which the first is row `at`; `check_names` has passed."""

    def __init__(self, rows: pa.RecordBatch, defaults: SinkDefaults, now_ms: int, at: int) -> None:
        super().__init__(rows, at)
        self._defaults = defaults
        self._now_ms = now_ms

    # --- what a batch has in common ------------------------------------------------------------------

    def destinations(self) -> tuple[Numbers | None, list[str]]:
        """For each row which of the names it has, None if all have the first; and the names."""
        if "destination" in self._rows.schema.names:
            column = self.text("destination", self._defaults.destination)
            assert column is not None
            self.refuse("destination", column.is_null(), "there is none, and no default")
            codes, names = _coded(column)
        else:
            codes, names = np.zeros(1, np.int64), [self._defaults.destination or ""]
        for code, name in enumerate(names):
            try:
                sendable(name)
            except BadName as error:
                row = self._at + int(np.argmax(codes == code))
                detail = f"{error.facts['detail']} (row {row})"
                raise BadName(name=error.facts["name"], detail=detail, row=row) from None
        return codes if len(names) > 1 else None, names

    def priorities(self) -> Numbers | None:
        """0 to 9; None if all have the default."""
        _check_priority(self._defaults.priority)
        column = self.column("priority", pa.int64())
        if column is None:
            return None
        values: Numbers = column.fill_null(self._defaults.priority).to_numpy()
        self.refuse(
            "priority", (values < 0) | (values > limits.PRIORITY_MAX), f"it is not between 0 and {limits.PRIORITY_MAX}"
        )
        return values

    def deliver_at_ms(self) -> Numbers | None:
        """Rounded up, as for every sender; 0 for at once; None if all go at once."""
        column = self.moments("deliver_at")
        if column is None:
            return None
        rounded = -(-column // DELIVERY_STEP_MS) * DELIVERY_STEP_MS
        return np.where(column > self._now_ms, rounded, 0)

    # --- the message ---------------------------------------------------------------------------------

    def bodies(self) -> pa.BinaryArray:
        """Text is in UTF-8."""
        name = "body" if "body" in self._rows.schema.names else "value"
        column = self.column(name, pa.binary())
        assert column is not None
        self.refuse(name, column.is_null(), "it is null: a large body has to be opened, and sent by itself")
        return column

    def times_ms(self) -> Numbers | None:
        """When each message was handed over, if rows say it."""
        if "time" not in self._rows.schema.names:
            return None
        column = self.moments("time", self._now_ms)
        assert column is not None
        return column

    def headers(self) -> tuple[pa.BinaryArray | None, Numbers | None, Numbers | None]:
        """Encoded headers, hashes of groups (0: none), times of expiry (0: never); None for a column of nothing."""
        if "headers" in self._rows.schema.names:
            return self._raw_headers()
        fields: list[tuple[str, pa.Array]] = []
        hashes: Numbers | None = None
        for name, short in TEXT_HEADERS.items():
            column = self.text(name, getattr(self._defaults, name))
            if column is None or column.null_count == self.count:
                continue
            if name == "group_id":
                self.refuse(name, pc.equal(column, ""), "it is empty")
                codes, groups = _coded(column)
                hashes = np.array([*map(group_hash, groups), 0], np.int64)[codes]
            elif name == "reply_to":
                self.each_name(name, column)
            fields.append((short, msgpack_columns.text(column)))
        expires_ms = self._expires_ms()
        if expires_ms is not None:
            fields.append(("x", msgpack_columns.unsigned(expires_ms, expires_ms == 0)))
        properties = self._properties()
        if properties is not None:
            fields.append(("p", properties))
        if not fields:
            return None, None, None
        encoded = msgpack_columns.headers(fields, self.count)
        self.limit("headers", encoded, limits.HEADERS_BYTES_MAX)
        return encoded, hashes, expires_ms

    def _raw_headers(self) -> tuple[pa.BinaryArray | None, Numbers | None, Numbers | None]:
        column = self.column("headers", pa.binary())
        assert column is not None
        self.limit("headers", column, limits.HEADERS_BYTES_MAX)
        column = column.fill_null(b"")
        coded = column.dictionary_encode()
        codes: Numbers = coded.indices.to_numpy()
        hashes, expires_ms = np.zeros(len(coded.dictionary), np.int64), np.zeros(len(coded.dictionary), np.int64)
        for code, each in enumerate(decoded(coded.dictionary, properties=True)):
            wrong = _wrong(each)
            if wrong:
                raise self.error("headers", int(np.argmax(codes == code)), wrong)
            assert isinstance(each, Headers)
            hashes[code] = 0 if each.group is None else group_hash(each.group)
            expires_ms[code] = min(each.expires_at_ms, TIME_MS_MAX)
        if not len(column) or not pc.max(pc.binary_length(column.fill_null(b""))).as_py():
            return None, None, None
        return (
            column.fill_null(b""),
            hashes[codes] if hashes.any() else None,
            expires_ms[codes] if expires_ms.any() else None,
        )

    def _expires_ms(self) -> Numbers | None:
        """When each message expires; 0 for never. None if none does."""
        if "expires_at" in self._rows.schema.names:
            return self.moments("expires_at", 0 if self._defaults.ttl is None else self._ends_ms(self._defaults.ttl))
        seconds = self.column("ttl", pa.float64())
        if seconds is None:
            ttl = self._defaults.ttl
            return None if ttl is None else np.full(self.count, self._ends_ms(ttl), np.int64)
        self.refuse("ttl", pc.is_nan(seconds), _TTL_WRONG)
        lives = seconds.fill_null(np.nan).to_numpy()
        never = np.isnan(lives)
        self.refuse("ttl", ~never & ~((lives > 0) & (lives <= TIME_S_MAX)), _TTL_WRONG)
        default_ms = 0 if self._defaults.ttl is None else self._ends_ms(self._defaults.ttl)
        lives_ms = np.maximum(np.rint(np.where(never, 0, lives) * 1_000).astype(np.int64), 1)
        return np.where(never, default_ms, self._now_ms + lives_ms)

    def _ends_ms(self, ttl: float) -> int:
        if not 0 < ttl <= TIME_S_MAX:
            raise BadArgument(argument="ttl", detail=f"{ttl}: {_TTL_WRONG}")
        return self._now_ms + max(1, round(ttl * 1_000))

    def _properties(self) -> pa.Array | None:
        if "properties" not in self._rows.schema.names:
            return None
        maps = self._rows.column("properties")
        if maps.null_count == self.count:
            return None
        if not pa.types.is_map(maps.type):
            raise BadArgument(argument="properties", detail=f"it is a {maps.type}, not a map")
        edges = maps.offsets.to_numpy()
        many = (np.diff(edges) > limits.PROPERTIES_MAX) & maps.is_valid().to_numpy(zero_copy_only=False)
        self.refuse("properties", many, f"there are more than {limits.PROPERTIES_MAX}")
        names, values = maps.keys[edges[0] : edges[-1]], maps.items[edges[0] : edges[-1]]
        names = self.converted("properties", names, pa.string())

        def row_of(wrong: Any) -> int:
            return int(np.searchsorted(edges - edges[0], int(np.argmax(mask_of(wrong))), side="right")) - 1

        long = pc.greater(pc.binary_length(names), TEXT_BYTES_MAX)
        for what, wrong in (
            ("a name is empty", pc.equal(names, "")),
            ("a name is too long", long),
            *_wrong_values(values),
        ):
            if mask_of(wrong).any():
                raise self.error("properties", row_of(wrong), what)
        try:
            return msgpack_columns.properties(maps)
        except pa.ArrowInvalid as error:
            raise BadArgument(argument="properties", detail=str(error)[:200]) from None


def _check_priority(priority: int) -> None:
    if not 0 <= priority <= limits.PRIORITY_MAX:
        raise BadArgument(argument="priority", detail=f"{priority} is not between 0 and {limits.PRIORITY_MAX}")


def _coded(column: pa.StringArray) -> tuple[Numbers, list[str]]:
    """For each row which of the values it has, -1 for null; and the values."""
    coded = column.dictionary_encode()
    return coded.indices.fill_null(-1).to_numpy(), coded.dictionary.to_pylist()


def _wrong(headers: object) -> str:
    """What is wrong with raw headers; empty if nothing is."""
    if not isinstance(headers, Headers):
        return "these are no headers of a message"
    if headers.large is not None:
        return "they are those of a large body, which has to be opened, and sent by itself"
    if headers.dead is not None:
        return "they tell the story of a dead message, which the broker alone writes; resend it by the broker's command"
    return "the time of expiry is negative" if headers.expires_at_ms < 0 else ""


def _wrong_values(values: pa.Array) -> list[tuple[str, Any]]:
    kind = kind_of(values.type)
    if kind not in ("text", "bytes", "integer", "floating", "bool", "null"):
        raise BadArgument(argument="properties", detail=f"a value cannot be a {values.type}")
    if kind == "floating":
        return [("a value is not a number", pc.is_nan(values.cast(pa.float64())))]
    if kind in ("text", "bytes"):
        values = values.cast(pa.string() if kind == "text" else pa.binary())
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadArgument(argument="properties", detail=str(error)[:200]) from None
        long = pc.greater(pc.binary_length(values), TEXT_BYTES_MAX)
        return [(f"a value has more than {TEXT_BYTES_MAX} bytes", long)]
    return []
