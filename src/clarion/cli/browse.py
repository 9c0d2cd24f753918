"""`clarion browse`: look at messages without taking them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli import show
from clarion.cli.options import URL_DEFAULT, Destination, Json, Url, destination

if TYPE_CHECKING:
    from clarion.message import Message

ROWS = 100
"""Messages that a table shows unless told otherwise; JSON has no such bound."""
BODY_CHARACTERS = 100
"""More is never shown; a narrow terminal cuts more."""


def browse(
    dest: Destination,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help=f"At most N. [default: {ROWS}; with --json all]")
    ] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", metavar="S", help="Only messages for which this SQL condition is true.")
    ] = None,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="From this sequence on.")] = 0,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Look at messages without taking them.

    Shows what somebody has not confirmed yet, oldest first. --json prints one object per line, as receive does.
    """
    where = destination(dest, False)
    limit = count if json or count is not None else ROWS
    from clarion.cli.connecting import connected

    rows: list[tuple[object, ...]] = []
    with connected(url) as connection, connection.session() as session:
        for message in session.browse(where, selector=selector, start=start, count=limit):
            if json:
                _line(message)
            else:
                rows.append(_row(message))
    if not json:
        show.table((">sequence", "sent", ">bytes", "~body"), rows)
        if limit is not None and len(rows) == limit:
            typer.echo(f"(the first {limit:,}; --count and --from show others)")


def _line(message: Message) -> None:
    from clarion.cli.messages import body, facts, line

    content = {"size": message.size} if message.is_large else body(message.body)
    sys.stdout.buffer.write(line(facts(message) | content))


def _row(message: Message) -> tuple[object, ...]:
    from clarion.cli.messages import instant, printable

    text = " ".join(printable(bytes(message.body_view[:BODY_CHARACTERS]), BODY_CHARACTERS).split())
    return message.sequence, instant(message.timestamp_ms)[:19].replace("T", " "), message.size, text
