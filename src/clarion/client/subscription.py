"""What a consumer asks for, checked before it is asked."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from clarion import limits
from clarion.errors import BadArgument
from clarion.message import check_name, parse_destination


class ReceiveOptions(TypedDict, total=False):
    """The options of `Session.receive` and `receive_batches`."""

    durable: str | None
    shared: bool
    subscription: str | None
    prefetch_messages: int
    prefetch_bytes: int
    unconfirmed_max: int
    timeout: float | None


class Subscription(msgspec.Struct, frozen=True):
    """What a consumer asks for."""

    destination: str
    subscription: str | None
    durable: bool
    shared: bool
    prefetch_messages: int
    prefetch_bytes: int
    unconfirmed_max: int


def wanted_of(
    destination: str,
    durable: str | None,
    shared: bool,
    subscription: str | None,
    prefetch_messages: int,
    prefetch_bytes: int,
    unconfirmed_max: int,
) -> Subscription:
    """A subscription, or `BadName` or `BadArgument`."""
    parse_destination(destination, system=True)
    if durable is not None and subscription is not None:
        raise BadArgument(argument="subscription", detail="a durable subscription is named by durable alone")
    name = durable if durable is not None else subscription
    if name is not None:
        check_name(name)
    elif shared:
        raise BadArgument(argument="shared", detail="a shared subscription needs a name")
    for argument, value, most in (
        ("prefetch_messages", prefetch_messages, limits.CONSUMER_CREDIT_MESSAGES_MAX),
        ("prefetch_bytes", prefetch_bytes, limits.CONSUMER_CREDIT_BYTES_MAX),
        ("unconfirmed_max", unconfirmed_max, 1 << 32),
    ):
        if not 1 <= value <= most:
            raise BadArgument(argument=argument, detail=f"{value} is not between 1 and {most}")
    return Subscription(
        destination, name, durable is not None, shared, prefetch_messages, prefetch_bytes, unconfirmed_max
    )
