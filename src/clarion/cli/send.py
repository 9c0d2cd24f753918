"""`clarion send`: one message, or many copies of it, confirmed before the command ends."""

from __future__ import annotations

import math
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli import show
from clarion.cli.options import URL_DEFAULT, Destination, Json, Topic, Url, destination

if TYPE_CHECKING:
    from clarion.sync import Session, Ticket

CHUNK_MESSAGES = 1_000
CHUNK_BYTES = 1 << 20
"""Copies between two looks at what is confirmed …"""
CHUNKS_MAX = 64
"""… and how many chunks may be on their way: far below what the client's buffer holds."""
SILENT_S = 5.0
"""After so long without a confirmation, say that we wait."""


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
    """
    to = destination(dest, topic)
    data = _body(body, file)
    known = dict(_property(text) for text in properties or ())
    from clarion.cli.connecting import connected

    with connected(url, patient=True) as connection, connection.session() as session:
        first, last = _send(session, to, data, known, count, timeout)
    if json:
        one = {"destination": to, "count": count, "id": first}
        show.json(one if count == 1 else {**one, "last_id": last})
    else:
        typer.echo(first if count == 1 else f"{count:,} messages sent to {to}: {first} to {last}")


def _body(body: str | None, file: Path | None) -> bytes:
    if (body is None) == (file is None):
        raise typer.BadParameter("give one of BODY, --file F and -", param_hint="BODY")
    if file is not None:
        return file.read_bytes()
    return sys.stdin.buffer.read() if body == "-" else str(body).encode("utf-8", "surrogateescape")


def _property(text: str) -> tuple[str, Any]:
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


def _send(
    session: Session, to: str, data: bytes, properties: dict[str, Any], count: int, timeout: float | None
) -> tuple[str, str]:
    """Send `count` copies; the ids of the first and the last."""
    waiting: deque[tuple[int, Ticket]] = deque()
    given = properties or None
    first: Ticket | None = None
    sent, step = 0, max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // (len(data) + 1)))
    with show.progress("sending", count) as advance:
        while sent < count:
            chunk = min(step, count - sent)
            for _ in range(chunk):
                ticket = session.send_nowait(to, data, properties=given)
                first = first or ticket
            sent += chunk
            waiting.append((chunk, ticket))
            while waiting and (waiting[0][1].done or len(waiting) >= CHUNKS_MAX or sent == count):
                chunk, ticket = waiting.popleft()
                last = _confirmed(ticket, to, timeout)
                advance(chunk)
    assert first is not None
    return first.result(), last


def _confirmed(ticket: Ticket, to: str, timeout: float | None) -> str:
    """The id, once the message is durable. Raises `Blocked` when that takes longer than `timeout`."""
    from clarion.cli.connecting import note
    from clarion.errors import Blocked, Timeout

    left = math.inf if timeout is None else timeout
    while True:
        wait = min(SILENT_S, left)
        left -= wait
        try:
            return ticket.result(wait)
        except Timeout:
            if left <= 0:
                raise Blocked(destination=to, detail=f"nothing was confirmed for {timeout:g} s") from None
            note(f"{to} takes no messages at the moment; waiting")
