"""`clarion events`: emit events, deliver them for a host, and look at what is recorded and owed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from clarion.cli import show
from clarion.cli.options import Json

DIRECTORY_VARIABLE = "CLARION_EVENTS"
DIRECTORY_DEFAULT = "clarion-events"

app = typer.Typer(help="Emit events, deliver them for a host, look at what is owed.", no_args_is_help=True)
recipients_app = typer.Typer(help="Who gets the events, and what each is owed.", invoke_without_command=True)
dead_app = typer.Typer(help="Events that were given up: look, send again, remove.", no_args_is_help=True)
app.add_typer(recipients_app, name="recipients")
app.add_typer(dead_app, name="dead")

Directory = Annotated[
    Path,
    typer.Option("--dir", envvar=DIRECTORY_VARIABLE, metavar="DIR", help="The event system.", show_envvar=True),
]
DIRECTORY = Path(DIRECTORY_DEFAULT)
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML: [events] …")]


@app.command()
def emit(
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="What kind of event, like disk.full")],
    data: Annotated[str | None, typer.Argument(metavar="[DATA|-]", help="JSON, or any text; - reads stdin.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="S", help="What it is about.")] = None,
    severity: Annotated[str, typer.Option("--severity", metavar="S", help="debug … emergency")] = "info",
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="May be given several times.")
    ] = None,
    directory: Directory = DIRECTORY,
    json: Json = False,
) -> None:
    """Record one event; returns when it is in persistent memory.

    Whoever delivers for DIR (`clarion events serve`, or a program of yours) delivers it; it need not run now.
    """
    from clarion.events.shell import emit as record

    text = sys.stdin.read() if data == "-" else data
    identity = record(
        directory, type_, source=source, severity=severity, data=_data(text), attributes=_attributes(attribute or [])
    )
    if json:
        show.json({"id": identity})
    else:
        typer.echo(identity)


@app.command()
def serve(directory: Directory = DIRECTORY, config: Config = None) -> None:
    """Deliver for a host what its processes record.

    What is in DIR goes to the recipients in FILE, until SIGTERM or Ctrl-C. SIGHUP reads FILE again: recipients that are
    new join, others must be removed by hand. When it delivers it prints one line that begins with `ready`.
    """
    _deliver(directory, config)


@app.command()
def multiplex(
    listen: Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where senders find it.")] = None,
    directory: Directory = DIRECTORY,
    config: Config = None,
) -> None:
    """Be one recipient that stands for many.

    Records what other event systems send, and delivers it to the recipients in FILE.
    """
    _deliver(directory, config, listen)


def _deliver(directory: Path, config: Path | None, multiplex_listen: str | None = None) -> None:
    from clarion.events import arenas, daemon

    arenas.claim()
    raise typer.Exit(daemon.run(directory, config, ready=typer.echo, multiplex_listen=multiplex_listen))


@app.command()
def status(directory: Directory = DIRECTORY, json: Json = False) -> None:
    """Show what waits, who is owed it, and what is wrong."""
    from clarion.events.shell import look

    result = look(directory)
    if json:
        show.json(result)
        return
    show.facts(
        [
            ("event system", f"{result['name']} in {directory}"),
            ("state", result["state"]),
            ("delivers", f"process {result['pid']}" if result["pid"] else "nobody"),
            ("durability", result["durability"]),
            *(("pair", _pair(pair)) for pair in [result.get("pair")] if pair),
            *(("problem", problem) for problem in result["problems"]),
        ]
    )
    typer.echo()
    show.table(
        ["section", ">waiting", ">recorded", ">used", ">size", ">refused", ">lost", "owner"],
        [
            (
                one["name"],
                one["waiting"],
                one["recorded"],
                f"{one['used_percent']} %",
                show.size(one["bytes"]),
                one["refused"],
                one["lost"],
                one["owner"],
            )
            for one in result["sections"]
            if one["kind"] != "nested" or one["recorded"] or one["lost"]
        ],
    )
    typer.echo()
    _recipients(result["recipients"])


def _pair(pair: dict[str, Any]) -> str:
    return f"{pair['state']} with {pair['partner']}" + (f", {pair['detail']}" if pair.get("detail") else "")


def _recipients(recipients: list[dict[str, Any]]) -> None:
    show.table(
        ["recipient", "state", ">owed", ">confirmed", ">failures", ">dead", "filter", "~last error"],
        [
            (
                one["name"],
                one["state"],
                one["owed"],
                one["confirmed"],
                one["failures"],
                one["dead"],
                one["filter"] or "-",
                one["error"] or "-",
            )
            for one in recipients
        ],
    )


@recipients_app.callback()
def recipients(context: typer.Context, directory: Directory = DIRECTORY, json: Json = False) -> None:
    """List recipients: state, what each is owed, its last error."""
    if context.invoked_subcommand is not None:
        return
    from clarion.events.shell import look

    found = look(directory)["recipients"]
    if json:
        show.json(found)
    else:
        _recipients(found)


@recipients_app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    force: Annotated[
        bool, typer.Option("--force", help="Even if it is owed events: they are given up for it.")
    ] = False,
    directory: Directory = DIRECTORY,
) -> None:
    """Remove a recipient for good. What it is owed is only given up with --force, and that is recorded."""
    from clarion.events.control import ask

    result = ask(directory, "remove_recipient", {"name": name, "force": force})
    typer.echo(f"removed {name}, which was owed {result['owed']:,} events")


@app.command("replay-report")
def replay_report(directory: Directory = DIRECTORY, json: Json = False) -> None:
    """Show what the last start replayed.

    From which source, to whom, and how far it is.
    """
    from clarion.events.control import ask

    report = ask(directory, "replay_report")
    if json:
        show.json(report)
        return
    found = report["found"]
    show.facts(
        [
            ("started", show.moment(report["started_ms"])),
            ("finished", show.moment(report["finished_ms"]) if report["finished_ms"] else "not yet"),
            ("while initialising", found["initialisation"]),
            ("incompletely delivered", found["incomplete"]),
            ("of a cooperating system", found["partner"]),
            ("lost to damage", report["lost"]),
        ]
    )
    if report["recipients"]:
        typer.echo()
        show.table(
            ["recipient", ">owed", ">confirmed"],
            [
                (name, sum(one["owed"].values()), sum(one["confirmed"].values()))
                for name, one in report["recipients"].items()
            ],
        )


@app.command()
def pause(directory: Directory = DIRECTORY) -> None:
    """Stop delivering, and go on recording.

    Events go to the initialisation section until `clarion events ready`.
    """
    _order(directory, "pause")


@app.command()
def ready(directory: Directory = DIRECTORY) -> None:
    """Deliver, after initialising or a pause.

    What was recorded meanwhile goes first.
    """
    _order(directory, "ready")


@app.command()
def takeover(directory: Directory = DIRECTORY) -> None:
    """Act for a partner that you know to be dead.

    No witness is asked: if it is not dead, what it has may be delivered twice.
    """
    _order(directory, "takeover")


def _order(directory: Path, verb: str) -> None:
    from clarion.events.control import ask

    typer.echo(ask(directory, verb)["state"])


@dead_app.command("list")
def dead_list(directory: Directory = DIRECTORY, json: Json = False) -> None:
    """List events that were given up, and why."""
    from clarion.events.control import ask

    found = ask(directory, "dead")
    if json:
        show.json(found)
        return
    show.table(
        [">number", "event", "type", "recipient", ">attempts", "~reason"],
        [(one["number"], one["id"], one["type"], one["recipient"], one["attempts"], one["reason"]) for one in found],
    )


@dead_app.command("resend")
def dead_resend(
    numbers: Annotated[list[int] | None, typer.Argument(metavar="NUMBER…")] = None, directory: Directory = DIRECTORY
) -> None:
    """Send given-up events again.

    To the recipient that they are owed to; all of them without NUMBER.
    """
    _dead(directory, "dead_resend", numbers)


@dead_app.command("purge")
def dead_purge(
    numbers: Annotated[list[int] | None, typer.Argument(metavar="NUMBER…")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    directory: Directory = DIRECTORY,
) -> None:
    """Remove given-up events for good."""
    if not numbers and not every:
        raise typer.BadParameter("name the events, or say --all", param_hint="NUMBER")
    _dead(directory, "dead_purge", numbers)


def _dead(directory: Path, verb: str, numbers: list[int] | None) -> None:
    from clarion.events.control import ask

    typer.echo(f"{ask(directory, verb, {'numbers': numbers or None})['count']:,} events")


def _data(text: str | None) -> object:
    """JSON if it is an object, a list, a number …; any other text is text."""
    import msgspec

    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _attributes(texts: list[str]) -> dict[str, Any]:
    from clarion.cli.send import parse_property

    return dict(map(parse_property, texts))
