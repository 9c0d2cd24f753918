"""`clarion admin`: look at a server and change what it holds. docs/reference/requests.md describes the results."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clarion.cli import show
from clarion.cli.options import URL_DEFAULT, Destination, Json, Topic, Url, destination

SLOW_ROWS = 10
"""Slow consumers that `status` names; JSON has all that the server tells."""

app = typer.Typer(help="Look at a server and change what it holds.", no_args_is_help=True)


def request(url: str, verb: str, **arguments: object) -> Any:
    """Ask one thing, on a connection of its own."""
    from clarion.cli.connecting import connected

    with connected(url) as connection:
        return connection.command(verb, arguments)


@app.command()
def status(url: Url = URL_DEFAULT, json: Json = False) -> None:
    """Show how the server is.

    Depth, rates, space, what waits for a decision of yours, who is slow, and who holds the oldest message.
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
            ("dead messages", result["dead_messages"]),
            ("prepared", f"{result['prepared_transactions']:,} (transactions that nobody has decided)"),
            ("lost messages", result["lost_messages"]),
            ("oldest message", _oldest(oldest)),
            ("slow consumers", len(result["slow_consumers"])),
            *(("slow", _slow(consumer)) for consumer in result["slow_consumers"][:SLOW_ROWS]),
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


def _slow(consumer: dict[str, Any]) -> str:
    of = f"subscription {consumer['subscription']} of " if consumer["subscription"] else ""
    reads = "; its connection does not read" if consumer["paused"] else ""
    return f"{of}{consumer['destination']}: {consumer['in_flight']:,} in flight, {consumer['waiting']:,} waiting{reads}"


@app.command()
def destinations(
    system: Annotated[bool, typer.Option("--system", help="Also those whose names begin with _.")] = False,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """List queues and topics, and the subscriptions of topics.

    The columns delayed (stored, not visible yet) and retained (confirmed, still readable) are there when some
    destination has such messages.
    """
    result: list[dict[str, Any]] = []
    while page := request(url, "destinations", after=result[-1]["name"] if result else None, system=system):
        result += page
    if json:
        show.json(result)
        return
    more = [name for name, count in (("delayed", _delayed), ("retained", _retained)) if any(map(count, result))]
    columns = (
        "destination",
        ">waiting",
        ">in flight",
        *(f">{name}" for name in more),
        ">consumers",
        ">bytes",
        ">quota",
    )
    show.table(columns, [row for found in result for row in _rows(found, more)])


def _delayed(found: dict[str, Any]) -> int:
    return int(found["delayed"])


def _retained(found: dict[str, Any]) -> int:
    """Messages that are kept although everybody has confirmed them."""
    kept_from = found["retained_from"]
    return 0 if kept_from is None else max(0, found["next_sequence"] - kept_from - found["depth"])


def _rows(found: dict[str, Any], more: list[str]) -> list[tuple[object, ...]]:
    subscriptions = found["subscriptions"]
    counts = {"delayed": _delayed(found), "retained": _retained(found)}
    rows: list[tuple[object, ...]] = [
        (
            f"{found['kind']}:{found['name']}",
            found["depth"],
            sum(subscription["in_flight"] for subscription in subscriptions),
            *(counts[name] for name in more),
            sum(subscription["consumers"] for subscription in subscriptions),
            show.size(found["bytes"]),
            show.size(found["bytes_quota"]),
        )
    ]
    if found["kind"] == "topic":
        rows += [
            (
                f"  {one['name'] or '(plain)'}",
                one["depth"],
                one["in_flight"],
                *("" for _ in more),
                one["consumers"],
                "",
                "",
            )
            for one in subscriptions
        ]
    return rows


@app.command()
def consumers(dest: Destination, url: Url = URL_DEFAULT, json: Json = False) -> None:
    """List the consumers of DEST, and say who is slow.

    Slow is a consumer that has no room although messages wait for it. Others get what it does not take.
    """
    from clarion.cli.connecting import connected

    with connected(url) as connection:
        result = connection.command("consumers", {"destination": destination(dest, False)})
        slow = [] if json else connection.command("status")["slow_consumers"]
    if json:
        show.json(result)
        return
    known = {(one["session"], one["subscription"]) for one in slow if _is_of(one["destination"], dest)}
    show.table(
        (">session", "subscription", ">in flight", ">room", "state", "selector"),
        [
            (
                one["session"],
                one["subscription"] or "-",
                one["in_flight"],
                one["room"],
                _state(one, (one["session"], one["subscription"]) in known),
                one["selector"] or "-",
            )
            for one in result
        ],
    )


def _is_of(named: str, dest: str) -> bool:
    """Is `queue:jobs` what somebody calls `queue:jobs` or `jobs`?"""
    return named.partition(":")[2] == dest.rpartition(":")[2]


def _state(consumer: dict[str, Any], slow: bool) -> str:
    words = [*(["slow"] if slow else []), *(["does not read"] if consumer["paused"] else [])]
    return ", ".join(words) or "keeps up"


@app.command()
def leases(url: Url = URL_DEFAULT, json: Json = False) -> None:
    """List leases: who may act for somebody.

    And for how long, if it is not renewed. The epoch grows with each change of the holder.
    """
    result: list[dict[str, Any]] = []
    while page := request(url, "leases", after=result[-1]["name"] if result else None):
        result += page
    if json:
        show.json(result)
        return
    show.table(
        ("lease", "holder", ">epoch", ">expires in"),
        [
            (one["name"], one["holder"], one["epoch"], f"{one['expires_in_ms']:,} ms" if one["held"] else "it is over")
            for one in result
        ],
    )


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
    ranges = [sequence_range(text) for text in sequences]
    _removed(request(url, "delete", destination=destination(dest, False), ranges=ranges), dest, json)


def sequence_range(text: str) -> tuple[int, int]:
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
        typer.echo(f"removed {show.messages(result['removed'])} from {dest}")


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
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A topic, or a pattern: glob:… or regex:…")],
    subscription: Annotated[str, typer.Argument(metavar="NAME", help="The durable subscription.")],
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Remove a durable subscription.

    Of a topic, or of all topics of a pattern. What it had not confirmed is not kept for it any more.
    """
    where = dest if dest.startswith(("glob:", "regex:")) else destination(dest, False)
    request(url, "unsubscribe", destination=where, subscription=subscription)
    if json:
        show.json({"unsubscribed": subscription})
    else:
        typer.echo(f"removed subscription {subscription} of {dest}")
