"""What a sender may say of a message besides its destination and body, checked before anything changes.

Rules
    1. Pure: the time is an argument.
    2. A wrong value raises `BadArgument`, whatever else is right.
    3. Time to live counts from sending, as in JMS, not from the end of a delay: a message that lives
       shorter than its delay expires undelivered.
    4. Times of delivery are rounded up to `DELIVERY_STEP_MS`, so that messages which are sent one
       after the other with the same delay share batches.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, TypedDict

import msgspec

from clarion import limits
from clarion.errors import BadArgument, BadName
from clarion.message import Headers, PropertyValue, check_properties, encode_headers, group_hash, parse_destination
from clarion.wire import frames

DELIVERY_STEP_MS = 10
TIME_S_MAX = 253_402_300_799
"""Times and durations end with the year 9999: no calendar of ours shows a later one."""

Until = Literal["stored", "any", "every"]


class SendOptions(TypedDict, total=False):
    """The options of `send`, `send_nowait`, `try_send`, `send_many` and `send_many_nowait`."""

    properties: dict[str, PropertyValue] | None
    """Typed facts for selectors and readers."""
    reply_to: str | None
    """A destination for answers."""
    correlation_id: str | None
    type: str | None
    content_type: str | None
    priority: int
    """0 to 9; 4 unless said otherwise."""
    ttl: float | timedelta | None
    """Seconds from now until it expires; None: never."""
    delay: float | timedelta | None
    """Seconds from now before which nobody gets it …"""
    deliver_at: datetime | float | None
    """… or that moment itself: an aware datetime, or Unix seconds."""
    group: str | None
    """Messages of one group go to one consumer at a time, in order."""
    until: Until
    """What a ticket waits for: `stored` durably, confirmed by `any` subscription, or by `every` one."""


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What all messages of a batch have in common."""

    priority: int
    deliver_at_ms: int
    until: int
    """The flag of PUBLISH: 0, `UNTIL_ANY` or `UNTIL_EVERY`."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """Options, checked and turned into what a batch takes."""

    terms: Terms
    headers: bytes
    expires_at_ms: int
    group_hash: int


PLAIN = Terms(limits.PRIORITY_DEFAULT, 0, 0)
NO_OPTIONS = Choice(PLAIN, b"", 0, 0)

_NUMBERS = (int, float)
_UNTIL = {"stored": 0, "any": frames.UNTIL_ANY, "every": frames.UNTIL_EVERY}


def chosen(
    now_ms: int,
    *,
    properties: dict[str, PropertyValue] | None = None,
    reply_to: str | None = None,
    correlation_id: str | None = None,
    type: str | None = None,
    content_type: str | None = None,
    priority: int = limits.PRIORITY_DEFAULT,
    ttl: float | timedelta | None = None,
    delay: float | timedelta | None = None,
    deliver_at: datetime | float | None = None,
    group: str | None = None,
    until: Until = "stored",
) -> Choice:
    """`SendOptions` of a message that is sent at `now_ms`. Raises `BadArgument`."""
    terms = PLAIN
    if delay is not None or deliver_at is not None or priority != limits.PRIORITY_DEFAULT or until != "stored":
        terms = Terms(_priority(priority), _deliver_at_ms(now_ms, delay, deliver_at), _until(until))
    expires_at_ms = 0
    if ttl is not None:
        expires_at_ms = now_ms + _duration_ms("ttl", ttl)
        if expires_at_ms <= now_ms:
            raise BadArgument(argument="ttl", detail=f"{ttl} is not more than 0; without ttl a message never expires")
    if reply_to is not None:
        _check_text("reply_to", reply_to)
        _check_reply_to(reply_to)
    if correlation_id is not None:
        _check_text("correlation_id", correlation_id)
    if type is not None:
        _check_text("type", type)
    if content_type is not None:
        _check_text("content_type", content_type)
    if group is not None:
        _check_text("group", group)
        if not group:
            raise BadArgument(argument="group", detail="it is empty")
    if not properties and properties is not None:
        check_properties(properties)  # `encode_headers` looks at those that have something in them
        properties = None
    headers = encode_headers(Headers(reply_to, correlation_id, group, type, content_type, expires_at_ms, properties))
    return Choice(terms, headers, expires_at_ms, group_hash(group) if group is not None else 0)


def only_properties(properties: dict[str, PropertyValue]) -> Choice:
    """As `chosen` for the usual case; half the price."""
    return Choice(PLAIN, encode_headers(Headers(properties=properties)), 0, 0)


def _priority(priority: int) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= limits.PRIORITY_MAX:
        raise BadArgument(argument="priority", detail=f"{priority!r} is not between 0 and {limits.PRIORITY_MAX}")
    return int(priority)


def _until(until: str) -> int:
    flag = _UNTIL.get(until) if isinstance(until, str) else None
    if flag is None:
        raise BadArgument(argument="until", detail=f"{until!r} is not one of {', '.join(_UNTIL)}")
    return flag


def _deliver_at_ms(now_ms: int, delay: float | timedelta | None, deliver_at: datetime | float | None) -> int:
    """When to deliver; 0 for at once."""
    if delay is None and deliver_at is None:
        return 0
    if delay is not None and deliver_at is not None:
        raise BadArgument(argument="deliver_at", detail="give it or delay, not both")
    if delay is not None:
        at_ms = now_ms + _duration_ms("delay", delay)
        if at_ms < now_ms:
            raise BadArgument(argument="delay", detail=f"{delay} is less than 0")
    else:
        if isinstance(deliver_at, datetime):
            if deliver_at.utcoffset() is None:
                raise BadArgument(argument="deliver_at", detail=f"{deliver_at} has no time zone")
            deliver_at = deliver_at.timestamp()
        assert deliver_at is not None
        at_ms = _milliseconds("deliver_at", deliver_at)
    return -(-at_ms // DELIVERY_STEP_MS) * DELIVERY_STEP_MS if at_ms > now_ms else 0


def _duration_ms(argument: str, duration: float | timedelta) -> int:
    """At least 1 ms unless it is 0."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    ms = _milliseconds(argument, seconds)
    return ms or int(seconds > 0)


def _milliseconds(argument: str, seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, _NUMBERS):
        raise BadArgument(argument=argument, detail=f"it is a {seconds.__class__.__name__}, not a time")
    if not abs(seconds) <= TIME_S_MAX:  # a NaN fails, too
        raise BadArgument(argument=argument, detail=f"{seconds} s is out of range")
    return round(seconds * 1000)


def _check_text(argument: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadArgument(argument=argument, detail=f"it is a {value.__class__.__name__}, not a str")


@lru_cache(maxsize=1_024)
def _check_reply_to(destination: str) -> None:
    try:
        parse_destination(destination, system=True)
    except BadName as error:
        raise BadArgument(argument="reply_to", detail=f"{destination[:300]!r}: {error.facts['detail']}") from None
