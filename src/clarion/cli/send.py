"""`clarion send`: one message, or many copies of it, confirmed before the command ends."""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from clarion.cli import show
from clarion.cli.options import URL_DEFAULT, Destination, Json, Topic, Url, destination
from clarion.cli.send_large import is_large, send_large

if TYPE_CHECKING:
    from clarion.client.options import SendOptions
    from clarion.sync import Session, Ticket

CHUNK_MESSAGES = 1_000
CHUNK_BYTES = 1 << 20
"""Copies between two looks at what is confirmed …"""
CHUNKS_MAX = 64
"""… and how many chunks may be on their way: far below what the client's buffer holds."""
SILENT_S = 5.0
"""After so long without a confirmation, say that we wait."""


class Until(StrEnum):
    """What `--until` may be."""

    STORED = "stored"
    ANY = "any"
    EVERY = "every"


def send(
    dest: Destination,
    body: Annotated[
        str | None, typer.Argument(metavar="BODY|-", help="The body as text; - reads it from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="F", help="Read the body from a file.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("-p", "--property", metavar="NAME=VALUE", help="A property; may be given several times."),
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Send the message N times.")] = 1,
    ttl: Annotated[
        float | None, typer.Option("--ttl", metavar="S", min=0.001, help="It expires S seconds from now.")
    ] = None,
    delay: Annotated[
        float | None, typer.Option("--delay", metavar="S", min=0, help="Nobody gets it before S seconds from now.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", min=0, max=9, help="0 to 9; 4 unless given.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="G", help="Messages of one group go to one consumer at a time.")
    ] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="Its type, for those who read it.")] = None,
    reply_to: Annotated[
        str | None, typer.Option("--reply-to", metavar="DEST", help="A destination for answers.")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option("--correlation-id", metavar="C", help="What an answer belongs to.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="K", help="With --file: the same command, given again, goes on where it ended."),
    ] = None,
    until: Annotated[
        Until, typer.Option("--until", help="Wait until it is stored, or confirmed by any or every subscription.")
    ] = Until.STORED,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", min=0.001, help="Give up after S seconds without any confirmation."),
    ] = None,
    topic: Topic = False,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Send a message and wait until it is durable. Prints its id.

    The value of a property is a number, true, false or null if it looks like one, else text; '"5"' is the text 5.
    With --until any or every it also waits for the delivery, and prints how that went: confirmed, unwanted (there is
    no subscription), expired, or dead.
    """
    to = destination(dest, topic)
    large = (body is None or file is None) and is_large(file, key, count, timeout)
    data = b"" if large else _body(body, file)
    options = _options(
        {
            "properties": dict(parse_property(text) for text in properties or ()) or None,
            "ttl": ttl,
            "delay": delay,
            "priority": priority,
            "group": group,
            "type": type_,
            "reply_to": reply_to,
            "correlation_id": correlation_id,
            "until": until.value if until is not Until.STORED else None,
        }
    )
    from clarion.cli.connecting import connected

    with connected(url, patient=True) as connection, connection.session() as session:
        if large and file is not None:
            sent = _Sent(first=send_large(session, to, file, key, options))
        else:
            sent = _Copies(session, to, data, options, timeout).send(count)
    if json:
        one: dict[str, Any] = {"destination": to, "count": count, "id": sent.first}
        if count > 1:
            one["last_id"] = sent.last
        if sent.how:
            one["how"] = sent.how if count > 1 else next(iter(sent.how))
        show.json(one)
    elif count == 1:
        typer.echo(" ".join((sent.first, *sent.how)))
    else:
        how = "".join(f", {messages:,} {name}" for name, messages in sent.how.items())
        typer.echo(f"{count:,} messages sent to {to}: {sent.first} to {sent.last}{how}")


def _options(given: dict[str, Any]) -> SendOptions:
    """What was given, checked before a server is asked."""
    import time

    from clarion.client.options import chosen
    from clarion.errors import BadArgument

    options = cast("SendOptions", {name: value for name, value in given.items() if value is not None})
    try:
        chosen(time.time_ns() // 1_000_000, **options)
    except BadArgument as error:
        argument = str(error.facts["argument"])
        hint = f"--{argument.replace('_', '-')}" if argument in options and argument != "properties" else "-p"
        raise typer.BadParameter(f"{argument}: {error.facts['detail']}", param_hint=hint) from None
    return options


def _body(body: str | None, file: Path | None) -> bytes:
    if (body is None) == (file is None):
        raise typer.BadParameter("give one of BODY, --file F and -", param_hint="BODY")
    if file is not None:
        return file.read_bytes()
    return sys.stdin.buffer.read() if body == "-" else str(body).encode("utf-8", "surrogateescape")


def parse_property(text: str) -> tuple[str, Any]:
    """NAME=VALUE, with VALUE as JSON if it is a JSON scalar."""
    import msgspec

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="-p")
    try:
        scalar = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return name, value
    return name, value if isinstance(scalar, list | dict) else scalar


@dataclass
class _Sent:
    """The ids of the first and the last copy, and how many were delivered how, if that was asked for."""

    first: str = ""
    last: str = ""
    how: Counter[str] = field(default_factory=Counter)


class _Copies:
    """Sends copies of a message, a chunk at a time, with a bounded number of chunks on their way."""

    def __init__(self, session: Session, to: str, data: bytes, options: SendOptions, timeout: float | None) -> None:
        self._session = session
        self._to = to
        self._data = data
        self._options = options
        self._timeout = timeout
        self._sent = _Sent()

    def send(self, count: int) -> _Sent:
        """Return when all are confirmed."""
        waiting: deque[list[Ticket]] = deque()
        first: Ticket | None = None
        sent, step = 0, max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // (len(self._data) + 1)))
        with show.progress("sending", count) as advance:
            while sent < count:
                copies = range(min(step, count - sent))
                waiting.append([self._session.send_nowait(self._to, self._data, **self._options) for _ in copies])
                sent += len(copies)
                first = first or waiting[0][0]
                while waiting and (waiting[0][-1].done or len(waiting) >= CHUNKS_MAX or sent == count):
                    tickets = waiting.popleft()
                    self._take(tickets)
                    advance(len(tickets))
        assert first is not None
        self._sent.first = first.result()
        return self._sent

    def _take(self, tickets: list[Ticket]) -> None:
        """Messages are stored in order, so the last answer tells of all; each is delivered in its own time."""
        if "until" in self._options:
            for ticket in tickets:
                if ticket.how is None:
                    self._confirmed(ticket)
                self._sent.how[str(ticket.how)] += 1
        self._sent.last = self._confirmed(tickets[-1])

    def _confirmed(self, ticket: Ticket) -> str:
        """The id, once the message is confirmed. Raises `Blocked` when that takes longer than the time-out."""
        from clarion.cli.connecting import note
        from clarion.errors import Blocked, Timeout

        left = math.inf if self._timeout is None else self._timeout
        while True:
            wait = min(SILENT_S, left)
            left -= wait
            try:
                return ticket.result(wait)
            except Timeout:
                if left <= 0:
                    detail = f"nothing was confirmed for {self._timeout:g} s"
                    raise Blocked(destination=self._to, detail=detail) from None
                what = "nobody has confirmed yet" if "until" in self._options else "no messages are taken at the moment"
                note(f"{self._to}: {what}; waiting")
