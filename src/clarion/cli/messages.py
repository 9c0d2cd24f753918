"""Messages as JSON objects and as lines for people."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.message import Headers, Message

_OPTIONAL = ("reply_to", "correlation_id", "group", "type", "content_type")


def facts(message: Message) -> dict[str, Any]:
    """Everything but the body: what each JSON line has, in this order."""
    from clarion.errors import BadBatch

    described: dict[str, Any] = {
        "id": message.id,
        "sequence": message.sequence,
        "destination": message.destination,
        "timestamp": instant(message.timestamp_ms),
        "timestamp_ms": message.timestamp_ms,
        "priority": message.priority,
        "redelivered": message.redelivered,
        "delivery_count": message.delivery_count,
    }
    try:
        headers = message.headers
    except BadBatch as error:  # a foreign sender's mistake: the body is still good
        return described | {"properties": {}, "headers_error": str(error)}
    return described | _headers(headers)


def _headers(headers: Headers) -> dict[str, Any]:
    properties = headers.properties or {}
    said: dict[str, Any] = {"properties": {name: _plain(value) for name, value in properties.items()}}
    for name in _OPTIONAL:
        if (value := getattr(headers, name)) is not None:
            said[name] = value
    if headers.expires_at_ms:
        said["expires_at_ms"] = headers.expires_at_ms
    return said


def _plain(value: object) -> object:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def body(data: bytes) -> dict[str, str]:
    """`body` if it is text, else `body_base64`."""
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(data).decode()}


def line(described: dict[str, Any]) -> bytes:
    """One JSON object, one line."""
    import msgspec

    return msgspec.json.encode(described) + b"\n"


def instant(unix_ms: int) -> str:
    """A time in UTC, with milliseconds; empty for one that no calendar has."""
    try:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_ms // 1000))
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{whole}.{unix_ms % 1000:03d}Z"


def printable(data: bytes, limit: int | None = None) -> str:
    """A body as text without control characters: a message must not steer a terminal."""
    text = "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in data.decode("utf-8", "backslashreplace")
    )
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
