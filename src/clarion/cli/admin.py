"""`clarion admin`: look at a server and change what it holds. docs/reference/requests.md describes the results."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clarion.cli import show
from clarion.cli.options import URL_DEFAULT, Destination, Json, Topic, Url, destination

app = typer.Typer(help="Look at a server and change what it holds.", no_args_is_help=True)


def request(url: str, verb: str, **arguments: object) -> Any:
    """Ask one thing, on a connection of its own."""
    from clarion.cli.connecting import connected

    with connected(url) as connection:
        return connection.request(verb, arguments)


@app.command()
def status(url: Url = URL_DEFAULT, json: Json = False) -> None:
    """Show how the server is.

    Depth, rates, space, and who holds the oldest message.
    """
    result = request(url, "status")
    if json:
        show.json(result)
        return
    space, oldest = result["space"], result["oldest"]
    show.facts(
        [
            ("node", result["node"]),
            ("uptime", f"{result['uptime_s']:,.0f} s"),
            ("sessions", result["sessions"]),
            ("destinations", result["destinations"]),
            ("messages waiting", result["depth"]),
            ("published", f"{result['published']:,} ({result['published_per_s']:,.0f}/s)"),
            ("confirmed", f"{result['confirmed']:,} ({result['confirmed_per_s']:,.0f}/s)"),
            ("commit", f"p50 {result['commit_us_p50']:,.0f} µs, p99 {result['commit_us_p99']:,.0f} µs"),
            ("space", f"{show.size(space['bytes_live'])} live of {show.size(space['bytes_total'])} allocated"),
            ("room", f"{show.size(space['bytes_room'])} (grows up to {show.size(space['bytes_max'])})"),
            ("producers waiting", result["producers_waiting"]),
            ("lost messages", result["lost_messages"]),
            ("oldest message", _oldest(oldest)),
            *(("warning", warning) for warning in result["warnings"]),
        ]
    )


def _oldest(oldest: dict[str, Any] | None) -> str:
    if oldest is None:
        return "none"
    age = "" if oldest["age_s"] is None else f", {oldest['age_s']:,.0f} s old"
    holders = [_holder(holder) for holder in oldest["held_by"]]
    return f"{oldest['sequence']} of {oldest['destination']}{age}; waits for {', '.join(holders) or 'nobody'}"


def _holder(holder: dict[str, Any]) -> str:
    who = f"subscription {holder['subscription']}" if holder["subscription"] else "the queue's consumers"
    if not holder["consumers"]:
        return f"{who} (none connected)"
    return f"{who} ({'delivered, not confirmed' if holder['in_flight'] else 'not delivered'})"


@app.command()
def destinations(url: Url = URL_DEFAULT, json: Json = False) -> None:
    """List queues and topics, and the subscriptions of topics."""
    result: list[dict[str, Any]] = []
    while page := request(url, "destinations", after=result[-1]["name"] if result else None):
        result += page
    if json:
        show.json(result)
        return
    columns = ("destination", ">waiting", ">in flight", ">consumers", ">bytes", ">quota")
    show.table(columns, [row for found in result for row in _rows(found)])


def _rows(found: dict[str, Any]) -> list[tuple[object, ...]]:
    subscriptions = found["subscriptions"]
    rows: list[tuple[object, ...]] = [
        (
            f"{found['kind']}:{found['name']}",
            found["depth"],
            sum(subscription["in_flight"] for subscription in subscriptions),
            sum(subscription["consumers"] for subscription in subscriptions),
            show.size(found["bytes"]),
            show.size(found["bytes_quota"]),
        )
    ]
    if found["kind"] == "topic":
        rows += [
            (f"  {one['name'] or '(plain)'}", one["depth"], one["in_flight"], one["consumers"], "", "")
            for one in subscriptions
        ]
    return rows


@app.command()
def purge(dest: Destination, url: Url = URL_DEFAULT, json: Json = False) -> None:
    """Remove every message of DEST, for all its subscriptions."""
    _removed(request(url, "purge", destination=destination(dest, False)), dest, json)


@app.command()
def delete(
    dest: Destination,
    sequences: Annotated[
        list[str], typer.Argument(metavar="SEQ[-SEQ]…", help="Sequences, or first-last; browse shows them.")
    ],
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Remove single messages of DEST by their sequence."""
    ranges = [_range(text) for text in sequences]
    _removed(request(url, "delete", destination=destination(dest, False), ranges=ranges), dest, json)


def _range(text: str) -> tuple[int, int]:
    """`7` or `7-9`, both ends included, as [first, end)."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not a sequence, nor first-last", param_hint="SEQ")
    low, high = int(first), int(last if dash else first)
    if not 0 < low <= high < 1 << 62:
        raise typer.BadParameter(f"{text!r}: sequences count from 1, and the first is not above the last")
    return low, high + 1


def _removed(result: dict[str, int], dest: str, json: bool) -> None:
    if json:
        show.json(result)
    else:
        typer.echo(f"removed {_messages(result['removed'])} from {dest}")


def _messages(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


@app.command()
def create(
    dest: Destination,
    topic: Topic = False,
    quota: Annotated[
        str | None, typer.Option("--quota", metavar="SIZE", help="Most that it may hold, such as '64 MiB'.")
    ] = None,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Make a queue or topic. (Sending to a new name, or receiving from it, makes it too.)"""
    result = request(url, "create", destination=destination(dest, topic), quota_bytes=_size(quota))
    if json:
        show.json(result)
    else:
        typer.echo(f"created {result['kind']}:{result['name']}")


def _size(text: str | None) -> int | None:
    from clarion.settings import parse_size

    try:
        return None if text is None else parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--quota") from None


@app.command()
def drop(dest: Destination, url: Url = URL_DEFAULT, json: Json = False) -> None:
    """Remove DEST with everything in it. Refused while it has consumers."""
    result = request(url, "drop", destination=destination(dest, False))
    if json:
        show.json(result)
    else:
        typer.echo(f"dropped {result['dropped']}")


@app.command()
def unsubscribe(
    dest: Destination,
    subscription: Annotated[str, typer.Argument(metavar="NAME", help="The durable subscription.")],
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Remove a durable subscription of a topic.

    What it had not confirmed is not kept for it any more.
    """
    request(url, "unsubscribe", destination=destination(dest, False), subscription=subscription)
    if json:
        show.json({"unsubscribed": subscription})
    else:
        typer.echo(f"removed subscription {subscription} of {dest}")
