"""Events as CloudEvents 1.0: the JSON format (structured mode) and HTTP headers beside a body (binary mode).

    body = to_structured(event)                  # send it as application/cloudevents+json
    headers, body = to_binary(event)             # ce-id, ce-source …, content-type
    event = from_http(headers, body)             # either

Theory of operation
    `severity`, and attributes that CloudEvents allows, are extension attributes of their own name; `subject` and
    `dataschema` are those of CloudEvents. What CloudEvents cannot carry (other names, floats, bytes, null, integers of
    more than 32 bits, a source that is no URI reference) goes as JSON text into the one extension `clarionextra`.

Guarantees
    1. from_structured(to_structured(event)) == event == from_binary(*to_binary(event)), body included, byte for byte.
    2. What others send becomes an event or raises `BadEvent`, which says what is wrong; nothing else is raised.
    3. What an intermediary changed wins over `clarionextra`.

Rules
    1. Pure: an event without a time gets the one that the caller passes.
    2. Header values are percent-encoded as the HTTP binding says (3.1.3.2), so no value can end a header.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from clarion import limits
from clarion.errors import BadEvent, EventTooLarge
from clarion.events.event import CONTENT_JSON, Event, Severity, format_time, is_json, is_text, parse_time
from clarion.message import PropertyValue

CONTENT_STRUCTURED: Final = "application/cloudevents+json"
CONTENT_BATCH: Final = "application/cloudevents-batch"
SPECVERSION: Final = "1.0"
EXTRA: Final = "clarionextra"
HEADER_PREFIX: Final = "ce-"

_FIELDS = frozenset(("specversion", "id", "source", "type", "time", "severity", "datacontenttype", "data", EXTRA))
"""Names that mean something else in a CloudEvent than an attribute of ours."""
_NAME = re.compile("[a-z0-9]+")
_NAME_CHARACTERS_MAX = 20
"""CloudEvents asks for no more; longer ones are read, but not written."""
_INTEGER_MIN, _INTEGER_MAX = -(1 << 31), (1 << 31) - 1
_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+(?:#[\w./?-]*)?", re.ASCII
)
_URI_REFERENCE = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*:|(?![^/?#]*:))"  # a scheme, or no colon before the first slash
    r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(?:#(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?",
    re.ASCII,
)
_NOT_A_STRING = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
    + "]"
)
"""Characters that CloudEvents does not allow in a string: controls, surrogates, what is no character."""
_HEADER_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


# --- structured mode ------------------------------------------------------------------------------


def to_structured(event: Event) -> bytes:
    """The event as JSON, to be sent as `application/cloudevents+json`."""
    members: dict[str, Any] = dict(_context(event, typed=True))
    if event.content_type:
        members["datacontenttype"] = event.content_type
    body = event.body
    if is_json(event.content_type) and _is_valid_json(body):
        members["data"] = msgspec.Raw(body)
    elif is_text(event.content_type) and _is_utf_8(body):
        members["data"] = body.decode()
    elif body or (event.content_type and not is_json(event.content_type)):
        members["data_base64"] = b64encode(body).decode()
    return msgspec.json.encode(members)


def from_structured(data: bytes | bytearray | memoryview, *, received_ns: int = 0) -> Event:
    """The event of a CloudEvent in JSON. Raises `BadEvent`. One that has no time was recognised at `received_ns`."""
    try:
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        payload, encoded = raw.pop("data", None), raw.pop("data_base64", None)
        members = {name: msgspec.json.decode(value) for name, value in raw.items()}
        if encoded is not None and bytes(encoded) != b"null":
            if payload is not None:
                raise BadEvent(what="data_base64", detail="there is data as well")
            content, body = "", b64decode(msgspec.json.decode(encoded, type=str).encode("ascii"), validate=True)
        elif payload is not None:
            content, body = _content_of(bytes(payload), members.get("datacontenttype"))
        else:
            content, body = "", b""
    except binascii.Error as error:
        raise BadEvent(what="data_base64", detail=str(error)) from None
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
        raise BadEvent(what="CloudEvent in JSON", detail=str(error)[:200]) from None
    for name, value in members.items():
        if value is not None and not isinstance(value, str | bool | int):
            raise BadEvent(what=name[:40], detail=f"CloudEvents has no attributes of type {type(value).__name__}")
    content = _text(members.pop("datacontenttype", None), "datacontenttype", content)
    return _event(members, body, content, received_ns)


def _content_of(payload: bytes, content_type: object) -> tuple[str, bytes]:
    """Content type (if it was not said) and body of the member `data`."""
    msgspec.json.decode(payload)  # a part that is skipped is not checked to the last byte
    if content_type is None:
        return CONTENT_JSON, payload
    if isinstance(content_type, str) and not is_json(content_type) and payload.startswith(b'"'):
        return "", msgspec.json.decode(payload, type=str).encode()
    return "", payload


def _is_valid_json(body: bytes) -> bool:
    """And without white space around it, which would not come back."""
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return body == body.strip(b" \t\r\n")


def _is_utf_8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- binary mode ----------------------------------------------------------------------------------


def to_binary(event: Event) -> tuple[dict[str, str], bytes]:
    """The event as HTTP headers, with lower-case names, and a body."""
    headers = {
        f"{HEADER_PREFIX}{name}": encode_header(_canonical(v)) for name, v in _context(event, typed=False).items()
    }
    if event.content_type:
        # Recorded long ago by somebody who did not check it, it might end the header.
        headers["content-type"] = quote(event.content_type, safe=_HEADER_SAFE + ' "%')
    return headers, event.body


def from_binary(headers: Mapping[str, str], body: bytes | bytearray | memoryview, *, received_ns: int = 0) -> Event:
    """The event of HTTP headers and a body; other headers are passed over. Raises `BadEvent`."""
    members: dict[str, Any] = {}
    content = ""
    for header, value in headers.items():
        name = header.lower() if isinstance(header, str) else ""
        if name == "content-type":
            content = _text(value, name, "")
        elif name.startswith(HEADER_PREFIX):
            name = name.removeprefix(HEADER_PREFIX)
            if name in members or name == "datacontenttype":
                raise BadEvent(what=header[:40], detail="it is said twice" if name in members else "use content-type")
            members[name] = decode_header(header, value)
    return _event(members, bytes(body), content, received_ns)


def from_http(headers: Mapping[str, str], body: bytes | bytearray | memoryview, *, received_ns: int = 0) -> Event:
    """The event of an HTTP message in either mode, which its content type tells. Raises `BadEvent`."""
    content = next((v for name, v in headers.items() if isinstance(name, str) and name.lower() == "content-type"), "")
    media = content.partition(";")[0].strip().lower() if isinstance(content, str) else ""
    if media == CONTENT_STRUCTURED:
        return from_structured(body, received_ns=received_ns)
    if media.startswith("application/cloudevents"):
        raise BadEvent(what="content-type", detail=f"{media[:80]} is not read, {CONTENT_STRUCTURED} is")
    return from_binary(headers, body, received_ns=received_ns)


def encode_header(text: str) -> str:
    """A value as a header has it: space, quote, percent and all but printable ASCII as %XX of its UTF-8."""
    return quote(text, safe=_HEADER_SAFE)


def decode_header(header: str, value: str) -> str:
    """The inverse of `encode_header`; takes quoted strings too, which older senders write. Raises `BadEvent`."""
    try:
        value.encode("ascii")
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        return unquote_to_bytes(value).decode()
    except (UnicodeError, AttributeError, TypeError) as error:
        raise BadEvent(what=header[:40], detail=f"it is not percent-encoded UTF-8: {error}"[:200]) from None


# --- both -----------------------------------------------------------------------------------------


def _context(event: Event, *, typed: bool) -> dict[str, str | bool | int]:
    """The attributes of the CloudEvent. `typed`: what carries them knows integers and booleans from text."""
    source = event.source if _URI_REFERENCE.fullmatch(event.source) else quote(event.source, safe="/")
    members: dict[str, str | bool | int] = {
        "specversion": SPECVERSION,
        "id": event.id,
        "source": source,
        "type": event.type,
        "time": format_time(event.time_ns, 9 if event.time_ns % 1_000 else 6),
        "severity": event.severity.text,
    }
    extra: dict[str, Any] = {} if source == event.source else {"source": event.source}
    for name, value in event.attributes.items():
        if isinstance(value, str | bool | int) and _is_native(name, value):
            members[name] = value
            if not typed and not isinstance(value, str):
                extra.setdefault("types", {})[name] = _kind(value)
        else:
            extra.setdefault("attributes", {})[name] = [_kind(value), _canonical(value)]
    if extra:
        # ASCII, and no control character: a string of CloudEvents may not have all that ours may.
        members[EXTRA] = json.dumps(extra, separators=(",", ":")).replace("\x7f", "\\u007f")
    return members


def _is_native(name: str, value: str | bool | int) -> bool:
    """Whether an attribute can be one of a CloudEvent, under its name and with its value."""
    if len(name) > _NAME_CHARACTERS_MAX or not _NAME.fullmatch(name) or name in _FIELDS:
        return False
    if isinstance(value, str):
        if name == "dataschema":
            return _URI.fullmatch(value) is not None
        return value != "" and not _NOT_A_STRING.search(value)
    return name not in ("subject", "dataschema") and _INTEGER_MIN <= value <= _INTEGER_MAX


def _kind(value: PropertyValue) -> str:
    """By what it is, not by its class: members of an enumeration are values too."""
    return next((name for name, kind in _KINDS if isinstance(value, kind)), "str")


_KINDS = (("null", type(None)), ("bool", bool), ("int", int), ("float", float), ("bytes", bytes))


def _canonical(value: PropertyValue) -> str:
    """A value as text, which `_PARSED` of its kind reads."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return repr(float(value))
        case bytes():
            return b64encode(value).decode()
        case _:
            return str(value)


_PARSED: dict[str, Callable[[str], PropertyValue]] = {
    "null": lambda text: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": int,
    "float": float,
    "str": str,
    "bytes": lambda text: b64decode(text.encode("ascii"), validate=True),
}


class _Extra(msgspec.Struct, forbid_unknown_fields=False):
    source: str = ""
    types: dict[str, str] = {}
    attributes: dict[str, tuple[str, str]] = {}


def _event(members: dict[str, Any], body: bytes, content_type: str, received_ns: int) -> Event:
    """The event of a CloudEvent's attributes, which are str, bool, int or None, and its data."""
    if len(body) > limits.EVENT_BYTES_MAX_MAX:
        raise EventTooLarge(size=len(body), limit=limits.EVENT_BYTES_MAX_MAX)
    members = {name: value for name, value in members.items() if value is not None}
    for name in members:
        if not _NAME.fullmatch(name):
            raise BadEvent(what=name[:40], detail="a name has lower-case letters and digits only")
    version = _text(members.pop("specversion", None), "specversion")
    if version != SPECVERSION:
        raise BadEvent(what="specversion", detail=f"it is {version[:40]}, not {SPECVERSION}")
    identity, source, type_ = (_text(members.pop(name, None), name) for name in ("id", "source", "type"))
    time_ns = parse_time(members.pop("time")) if "time" in members else received_ns
    severity = Severity.of(_text(members.pop("severity", None), "severity", Severity.INFO.text))
    extra = _read_extra(_text(members.pop(EXTRA, None), EXTRA, "{}"))
    if extra.source and quote(extra.source, safe="/") == source:
        source = extra.source
    try:
        for name, kind in extra.types.items():
            if isinstance(members.get(name), str):
                members[name] = _retyped(kind, members[name])
        attributes = {name: _PARSED[kind](text) for name, (kind, text) in extra.attributes.items()}
    except (KeyError, ValueError) as error:
        raise BadEvent(what=EXTRA, detail=f"a value cannot be read: {error}"[:200]) from None
    # A body without a content type is bytes, and nothing without one is no data at all.
    data = body if body or content_type else None
    return Event(identity, time_ns, source, type_, severity, data, content_type, {**attributes, **members})


def _retyped(kind: str, text: str) -> PropertyValue:
    """Text that was a value of this kind when it was sent; text, if somebody changed it to something else."""
    try:
        return _PARSED[kind](text)
    except (KeyError, ValueError):
        return text


def _read_extra(text: str) -> _Extra:
    try:
        return msgspec.json.decode(text.encode(), type=_Extra)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadEvent(what=EXTRA, detail=str(error)[:200]) from None


def _text(value: object, what: str, default: str | None = None) -> str:
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value:
        raise BadEvent(what=what, detail="it is missing" if value is None else "it is not text, or empty")
    return value
