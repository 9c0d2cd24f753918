"""`clarion receive`: print messages, or write them to files, and confirm each after that.

Guarantee: a message is confirmed only when its line is flushed to stdout, or its file is on disk, whatever --ack
says. What ends the command earlier (a kill, a closed pipe, a full disk) leaves the message with the server, to come
again.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli import exits, show
from clarion.cli.options import URL_DEFAULT, Json, Topic, Url, destination

if TYPE_CHECKING:
    from clarion.cli.sinks import Sink
    from clarion.sync import Consumer, ReceivedMessage

PENDING_MAX = 1_000
"""Messages that are printed but not confirmed yet, at most."""


class Ack(StrEnum):
    """Who confirms, and when."""

    INDIVIDUAL = "individual"
    AUTO = "auto"
    CLIENT = "client"
    DUPS_OK = "dups_ok"


Source = Annotated[
    str,
    typer.Argument(
        metavar="DEST",
        help="queue:NAME, topic:NAME, or NAME: a queue unless it exists as a topic; or all topics of glob:… or regex:…",
    ),
]


def receive(
    dest: Source,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="End after N messages.")] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", metavar="S", help="Only messages for which this SQL condition is true.")
    ] = None,
    durable: Annotated[
        str | None, typer.Option("--durable", metavar="NAME", help="A subscription of a topic that stays.")
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Share the durable subscription with other consumers.")
    ] = False,
    start: Annotated[
        int | None, typer.Option("--start", metavar="N", min=0, help="From sequence N on, if the topic retains it.")
    ] = None,
    no_local: Annotated[bool, typer.Option("--no-local", help="Not what this connection sends.")] = False,
    ack: Annotated[
        Ack,
        typer.Option(
            "--ack", help="Confirm many together, one by one (auto), all so far (client), or lazily (dups_ok)."
        ),
    ] = Ack.INDIVIDUAL,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write each body to a file in DIR.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=0, help="End when nothing came for S seconds.")
    ] = None,
    topic: Topic = False,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Receive messages, print their bodies, confirm them.

    A body is a line; a message is confirmed after it was printed. Without --count and --timeout it goes on until
    Ctrl-C. It fails with status 1 if --count was given and --timeout passed without any message.
    """
    if shared and durable is None:
        raise typer.BadParameter("it needs --durable NAME", param_hint="--shared")
    from clarion import limits
    from clarion.cli.connecting import connected
    from clarion.cli.sinks import choose
    from clarion.core.patterns import is_pattern

    where = dest if is_pattern(dest) else destination(dest, topic)

    sink = choose(json, out)
    prefetch = min(count or limits.CONSUMER_CREDIT_MESSAGES_DEFAULT, limits.CONSUMER_CREDIT_MESSAGES_DEFAULT)
    with connected(url, patient=True) as connection, connection.session() as session:
        with session.receive(
            where,
            selector=selector,
            durable=durable,
            shared=shared,
            start=start,
            no_local=no_local,
            ack=ack.value,
            prefetch_messages=prefetch,
        ) as consumer:
            received = _receive(consumer, sink, count, timeout, ack)
        session.flush()
    if count is not None and not received:
        exits.say(f"nothing came from {where} within {timeout:g} s")
        raise typer.Exit(exits.OTHER)


def _receive(consumer: Consumer, sink: Sink, count: int | None, timeout: float | None, ack: Ack) -> int:
    """Take messages until there are `count`, or none comes for `timeout`; how many there were."""
    received = 0
    pending: list[ReceivedMessage] = []
    pending_max = PENDING_MAX if ack in (Ack.INDIVIDUAL, Ack.CLIENT) else 1  # the others confirm when we come back
    # A bar among lines on the same terminal would only garble them.
    with show.progress("receiving", None if sys.stdout.isatty() else count) as advance:
        while received < count if count is not None else True:
            message = consumer.receive(0 if pending else timeout)
            if message is not None:
                sink.write(message)
                pending.append(message)
                received += 1
            elif not pending:
                break
            if message is None or len(pending) >= pending_max or received == count:
                sink.flush()
                _confirm(pending, ack)
                advance(len(pending))
                pending.clear()
    return received


def _confirm(printed: list[ReceivedMessage], ack: Ack) -> None:
    if ack is Ack.INDIVIDUAL:
        for message in printed:
            message.confirm_nowait()
    elif ack is Ack.CLIENT:
        printed[-1].confirm_nowait()
