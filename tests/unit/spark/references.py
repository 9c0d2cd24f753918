"""What columns must say, written by hand from `Message`, one message at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from clarion.errors import BadBatch
from clarion.message import Message
from clarion.spark.headers import property_text
from clarion.spark.references import Reference, format_reference
from clarion.wire.batch import Batch

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(milliseconds: int) -> datetime:
    """Unix milliseconds as Arrow gives a timestamp back."""
    return EPOCH + timedelta(milliseconds=milliseconds)


def rows_of(batch: Batch, first: int, destination: str) -> list[dict[str, Any]]:
    """Every column of every message."""
    return [_row(Message(batch, index, first + index), batch, index, destination) for index in range(batch.count)]


def _row(message: Message, batch: Batch, index: int, destination: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "destination": destination,
        "sequence": message.sequence,
        "id": message.id,
        "time": moment(message.timestamp_ms),
        "priority": message.priority,
        "headers": bytes(batch.record(index)[0]),
        "body": bytes(message.body_view),
        "body_bytes": len(message.body_view),
        "large": None,
    }
    try:
        headers = message.headers
    except BadBatch:
        names = ("type", "content_type", "reply_to", "correlation_id", "group_id", "expires_at", "properties")
        return row | dict.fromkeys(names)
    if headers.large is not None and not row["body"]:
        reference = Reference(destination, message.sequence, *headers.large)
        row |= {"body": None, "body_bytes": headers.large[1], "large": format_reference(reference)}
    return row | {
        "type": message.type,
        "content_type": message.content_type,
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
        "group_id": message.group,
        "expires_at": moment(message.expires_at_ms) if message.expires_at_ms else None,
        "properties": [(name, property_text(value)) for name, value in message.properties.items()],
    }
