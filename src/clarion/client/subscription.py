"""What a consumer asks for, checked before it is asked."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, Literal, TypedDict, get_args

import msgspec

from clarion import limits
from clarion.core.patterns import is_pattern
from clarion.core.wellknown import is_temporary
from clarion.errors import BadArgument, BadPattern
from clarion.message import check_name, parse_destination

AckMode = Literal["individual", "auto", "client", "dups_ok"]
_MS_MAX = 1 << 53


class ReceiveOptions(TypedDict, total=False):
    """The options of `Session.receive` and `receive_batches`."""

    durable: str | None
    """The name of a topic's subscription that outlives its consumers."""
    shared: bool
    """Several consumers share the subscription."""
    subscription: str | None
    """The name of one that does not outlive them."""
    selector: str | None
    """SQL-92, over headers and properties: only messages for which it is true."""
    no_local: bool
    """Not what was sent through this connection."""
    start: int | None
    """The sequence to start from, where a destination retains messages …"""
    start_time: datetime | float | None
    """… or the time: an aware datetime, or Unix seconds."""
    visibility: float | None
    """Seconds after which a message that is not confirmed comes again, to anybody."""
    ack: AckMode
    """Who confirms: see `Session.receive`. Not in a transacted session."""
    prefetch_messages: int
    prefetch_bytes: int
    """What may be on its way, or wait here, before the application takes it."""
    unconfirmed_max: int
    """What may be delivered and not yet confirmed."""
    timeout: float | None
    """Idle seconds after which an iteration ends."""


BATCHES: ReceiveOptions = {
    "prefetch_messages": limits.CONSUMER_BATCHES_CREDIT_MESSAGES_DEFAULT,
    "prefetch_bytes": limits.CONSUMER_BATCHES_CREDIT_BYTES_DEFAULT,
}
"""What a consumer of batches has unless it says otherwise."""


class Subscription(msgspec.Struct, frozen=True):
    """What a consumer asks for."""

    destination: str
    subscription: str | None
    durable: bool
    shared: bool
    selector: str | None
    no_local: bool
    start: int | None
    start_ms: int | None
    visibility_ms: int | None
    ack: AckMode | None
    """None: a transaction."""
    prefetch_messages: int
    prefetch_bytes: int
    unconfirmed_max: int
    timeout: float | None

    @property
    def pattern(self) -> bool:
        """It is for every topic that matches."""
        return is_pattern(self.destination)

    @property
    def temporary(self) -> bool:
        """Its destination vanishes with the connection, and with it all that was in it."""
        return is_temporary(self.destination.rpartition(":")[2])

    def asked(self, *, first: bool, seen_end: int) -> dict[str, Any]:
        """The fields of SUBSCRIBE that say what is wanted; not the `first` time, from `seen_end` on."""
        said: dict[str, Any] = {
            "destination": self.destination,
            "subscription": self.subscription,
            "durable": self.durable,
            "shared": self.shared,
            "unconfirmed_max": self.unconfirmed_max,
        }
        optional = {"selector": self.selector, "no_local": self.no_local, "visibility_ms": self.visibility_ms}
        said |= {name: value for name, value in optional.items() if value}
        if first or not seen_end:
            if self.start is not None:
                said["start"] = self.start
            if self.start_ms is not None:
                said["start_ms"] = self.start_ms
        elif not self.pattern and (self.start is not None or self.start_ms is not None):
            said["start"] = seen_end  # where it was, not from the beginning once more
        return said


def wanted_of(
    destination: str,
    transacted: bool = False,
    *,
    durable: str | None = None,
    shared: bool = False,
    subscription: str | None = None,
    selector: str | None = None,
    no_local: bool = False,
    start: int | None = None,
    start_time: datetime | float | None = None,
    visibility: float | None = None,
    ack: AckMode | None = None,
    prefetch_messages: int = limits.CONSUMER_CREDIT_MESSAGES_DEFAULT,
    prefetch_bytes: int = limits.CONSUMER_CREDIT_BYTES_DEFAULT,
    unconfirmed_max: int = limits.UNCONFIRMED_MESSAGES_DEFAULT,
    timeout: float | None = None,
) -> Subscription:
    """A subscription from `ReceiveOptions`. Raises `BadName`, `BadPattern` or `BadArgument`."""
    _check_destination(destination, start)
    if durable is not None and subscription is not None:
        raise BadArgument(argument="subscription", detail="a durable subscription is named by durable alone")
    name = durable if durable is not None else subscription
    if name is not None:
        check_name(name)
    elif shared:
        raise BadArgument(argument="shared", detail="a shared subscription needs a name")
    for argument, value, least, most in (
        ("prefetch_messages", prefetch_messages, 1, limits.CONSUMER_CREDIT_MESSAGES_MAX),
        ("prefetch_bytes", prefetch_bytes, 1, limits.CONSUMER_CREDIT_BYTES_MAX),
        ("unconfirmed_max", unconfirmed_max, 1, 1 << 32),
        ("start", start or 0, 0, (1 << 63) - 1),
    ):
        if not least <= value <= most:
            raise BadArgument(argument=argument, detail=f"{value} is not between {least} and {most}")
    if start is not None and start_time is not None:
        raise BadArgument(argument="start_time", detail="give it or start, not both")
    if transacted and ack is not None:
        raise BadArgument(argument="ack", detail="in a transacted session commit confirms what was received")
    if ack is not None and ack not in get_args(AckMode):
        raise BadArgument(argument="ack", detail=f"{ack!r} is not one of {', '.join(get_args(AckMode))}")
    return Subscription(
        destination=destination,
        subscription=name,
        durable=durable is not None,
        shared=shared,
        selector=selector,
        no_local=no_local,
        start=start,
        start_ms=None if start_time is None else _unix_ms("start_time", start_time),
        visibility_ms=None if visibility is None else duration_ms("visibility", visibility, least_ms=1),
        ack=None if transacted else ack or "individual",
        prefetch_messages=prefetch_messages,
        prefetch_bytes=prefetch_bytes,
        unconfirmed_max=unconfirmed_max,
        timeout=timeout,
    )


def _check_destination(destination: str, start: int | None) -> None:
    """The broker reads the pattern itself; here only what would be no pattern for anybody."""
    if not is_pattern(destination):
        parse_destination(destination, system=True)
        return
    kind, _, pattern = destination.partition(":")
    if not pattern:
        raise BadPattern(pattern=destination, detail=f"{kind}: of what?")
    if len(destination.encode("utf-8", "surrogatepass")) > limits.PATTERN_BYTES_MAX:
        raise BadPattern(pattern=destination[:40] + "…", detail=f"the limit is {limits.PATTERN_BYTES_MAX} bytes")
    if start is not None:
        raise BadArgument(argument="start", detail="every topic of a pattern has sequences of its own; use start_time")


def _unix_ms(argument: str, value: datetime | float) -> int:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise BadArgument(argument=argument, detail=f"{value} has no time zone")
        value = value.timestamp()
    return duration_ms(argument, value)


def duration_ms(argument: str, seconds: float, least_ms: int = 0) -> int:
    """Seconds as milliseconds. Raises `BadArgument` for what is no time."""
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    value = round(seconds * 1000) if known else -1
    if not least_ms <= value < _MS_MAX:
        raise BadArgument(argument=argument, detail=f"{seconds!r} is not a number of seconds that can be")
    return value
