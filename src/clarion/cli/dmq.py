"""`clarion dmq`: dead messages. Look at them, send them back where they were, remove them.

Guarantee: a message leaves `_DMQ` only if it was named, by its sequence, by --destination or by --all; and it is
either still there or durable where it went, whenever the command ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli import exits, show
from clarion.cli.admin import sequence_range
from clarion.cli.options import URL_DEFAULT, Json, Url, destination

if TYPE_CHECKING:
    from clarion.errors import RequestError
    from clarion.message import Message
    from clarion.sync import Session

DEAD = "queue:_DMQ"
ROWS = 100
"""Messages that a table shows unless told otherwise; JSON has no such bound."""
BODY_CHARACTERS = 4_000
"""More of a body is not printed; --out has all of it."""
CHUNK = 1_000
"""Messages that one request sends back, so that none keeps the server busy for long."""
_HEADERS = ("reply_to", "correlation_id", "group", "type", "content_type")

app = typer.Typer(help="Dead messages: look at them, send them back, remove them.", no_args_is_help=True)

Sequences = Annotated[
    list[str] | None, typer.Argument(metavar="SEQ[-SEQ]…", help="Sequences, or first-last; list shows them.")
]
All = Annotated[bool, typer.Option("--all", help="All dead messages.")]
Origin = Annotated[
    str | None, typer.Option("--destination", metavar="D", help="Only those that were in destination D.")
]


# --- looking --------------------------------------------------------------------------------------


@app.command("list")
def listed(
    origin: Origin = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help=f"At most N. [default: {ROWS}; with --json all]")
    ] = None,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """List dead messages, oldest first.

    With when and why each died, where it was, and how often it was delivered. --json prints one object per line.
    """
    _check(origin)
    limit = count if json or count is not None else ROWS
    from clarion.cli.connecting import connected

    shown = 0
    rows: list[tuple[object, ...]] = []
    with connected(url) as connection, connection.session() as session:
        for message in _dead(session, [(0, sys.maxsize)], origin):
            if shown == limit:
                break
            shown += 1
            if json:
                _line(message)
            else:
                rows.append(_row(message))
    if not json:
        show.table((">sequence", ">died", "was in", "~reason", ">deliveries", ">size"), rows)
        if shown == limit:
            typer.echo(f"(the first {limit:,}; --count shows more)")


def _dead(session: Session, ranges: Iterable[tuple[int, int]], origin: str | None) -> Iterator[Message]:
    """The dead messages of these ranges of sequences that were in `origin`."""
    for first, end in ranges:
        for message in session.browse(DEAD, start=first, count=end - first):
            if message.sequence >= end:
                break
            if origin is None or _story(message).get("destination") in (origin, f"queue:{origin}", f"topic:{origin}"):
                yield message


def _story(message: Message) -> dict[str, Any]:
    return message.dead or {}


def _row(message: Message) -> tuple[object, ...]:
    story = _story(message)
    return (
        message.sequence,
        show.moment(story.get("time_ms")),
        _origin(story),
        story.get("reason", "-"),
        story.get("deliveries", "-"),
        show.size(len(message.body_view)),
    )


def _origin(story: dict[str, Any]) -> str:
    name = story.get("subscription")
    return f"{story.get('destination', '-')}{f' ({name})' if name else ''}"


def _line(message: Message) -> None:
    from clarion.cli.messages import facts, line

    sys.stdout.buffer.write(line(facts(message) | {"size": len(message.body_view), "dead": _story(message)}))


@app.command("show")
def shown(
    sequence: Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="As list shows it.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the body to FILE.")] = None,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Show one dead message: its story, headers and body."""
    from clarion.cli import messages
    from clarion.cli.connecting import connected

    with connected(url) as connection, connection.session() as session:
        message = next(_dead(session, [(sequence, sequence + 1)], None), None)
    if message is None:
        exits.say(f"there is no dead message {sequence}")
        raise typer.Exit(exits.OTHER)
    body = message.body
    if out is not None:
        out.write_bytes(body)
    if json:
        content = messages.body(body) if out is None else {"file": str(out)}
        show.json(messages.facts(message) | {"size": len(body), "dead": _story(message)} | content)
        return
    show.facts(_told(message))
    if out is not None:
        typer.echo(f"\n{show.size(len(body))} written to {out}")
        return
    typer.echo(f"\n{messages.printable(body, BODY_CHARACTERS)}")
    if len(body) > BODY_CHARACTERS:
        typer.echo(f"({show.size(len(body))} in all; --out FILE has them as they are)")


def _told(message: Message) -> list[tuple[str, object]]:
    """Everything but the body."""
    from clarion.cli.messages import instant

    story, headers = _story(message), message.headers
    told: list[tuple[str, object]] = [
        ("sequence", message.sequence),
        ("id", message.id),
        ("died", instant(story.get("time_ms", 0))),
        ("reason", story.get("reason", "-")),
        ("was in", f"{_origin(story)}, sequence {story.get('sequence', '-')}"),
        ("deliveries", story.get("deliveries", "-")),
    ]
    told += [("returned", f"{instant(time_ms)}  {reason}") for time_ms, reason in story.get("history", ())]
    told += [("sent", instant(message.timestamp_ms)), ("priority", message.priority)]
    told += [(name, value) for name in _HEADERS if (value := getattr(headers, name)) is not None]
    told += [(f"property {name}", repr(value)) for name, value in (headers.properties or {}).items()]
    return [*told, ("size", show.size(len(message.body_view)))]


# --- changing -------------------------------------------------------------------------------------


@app.command()
def resend(
    sequences: Sequences = None,
    everything: All = False,
    origin: Origin = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="D", help="Send them to destination D instead of back.")
    ] = None,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Send dead messages back where they were.

    Under their ids, and without asking. Name them by their sequences, by --destination, or by --all. One that was in a
    subscription of a topic goes to that subscription alone. Those that cannot be sent stay, hold up no others, and are
    told: the status is not 0 then.
    """
    ranges = _ranges(sequences, everything, origin)
    _check(origin)
    _check(to)
    from clarion.cli.connecting import connected

    with connected(url) as connection, connection.session() as session:
        found = {message.sequence for message in _dead(session, ranges, origin)}
        wanted = found | {first for first, end in ranges if end == first + 1}
        sent, error = _resend(session, sorted(found), to)
    left = len(wanted) - sent
    if json:
        show.json({"resent": sent, "left": left})
    else:
        typer.echo(f"sent {show.messages(sent)} {'back' if to is None else f'to {to}'}")
    if error is not None:
        exits.say(f"{error}; not sent: {show.messages(left)}")
        raise typer.Exit(exits.status_of(error))
    if left:
        exits.say(f"not sent: {show.messages(left)} (no such dead message, or somebody is receiving it)")
        raise typer.Exit(exits.OTHER)


def _resend(session: Session, sequences: list[int], to: str | None) -> tuple[int, RequestError | None]:
    """How many were sent, and what was wrong with the first that could not be."""
    from clarion.errors import RequestError

    sent, wrong = 0, None
    with show.progress("sending back", len(sequences)) as advance:
        for at in range(0, len(sequences), CHUNK):
            chunk = sequences[at : at + CHUNK]
            try:
                sent += _ask(session, chunk, to)
            except RequestError as error:  # one of them has nowhere to go; those before it are sent
                wrong = wrong or error
                still = _still_dead(session, chunk)
                sent += len(chunk) - len(still)
                for one in still:
                    with suppress(RequestError):
                        sent += _ask(session, [one], to)
            advance(len(chunk))
    return sent, wrong


def _ask(session: Session, sequences: list[int], to: str | None) -> int:
    return int(session.command("resend", {"sequences": sequences, "to": to})["resent"])


def _still_dead(session: Session, sequences: list[int]) -> list[int]:
    there = {message.sequence for message in _dead(session, [(sequences[0], sequences[-1] + 1)], None)}
    return [sequence for sequence in sequences if sequence in there]


@app.command()
def purge(sequences: Sequences = None, everything: All = False, url: Url = URL_DEFAULT, json: Json = False) -> None:
    """Remove dead messages for good.

    Without asking: those of these sequences, or --all.
    """
    ranges = _ranges(sequences, everything, None)
    from clarion import limits
    from clarion.cli.connecting import connected

    removed = 0
    with connected(url) as connection:
        if everything:
            removed = connection.command("purge", {"destination": DEAD})["removed"]
        else:
            for at in range(0, len(ranges), limits.RANGES_PER_FRAME_MAX):
                some = ranges[at : at + limits.RANGES_PER_FRAME_MAX]
                removed += connection.command("delete", {"destination": DEAD, "ranges": some})["removed"]
    if json:
        show.json({"removed": removed})
    else:
        typer.echo(f"removed {show.messages(removed)}")


def _ranges(sequences: list[str] | None, everything: bool, origin: str | None) -> list[tuple[int, int]]:
    """What was named. Nothing, or everything and something, is wrong usage."""
    if bool(sequences) == everything and (sequences or origin is None):
        raise typer.BadParameter("give either sequences or --all", param_hint="SEQ")
    return [sequence_range(text) for text in sequences] if sequences else [(0, sys.maxsize)]


def _check(name: str | None) -> None:
    """Raises `BadName` for what no destination is called."""
    if name is not None:
        destination(name, False)
