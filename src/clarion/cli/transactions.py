"""`clarion admin prepared`, `clarion admin resolve`: prepared transactions that nobody has decided."""

from __future__ import annotations

from typing import Annotated

import typer

from clarion.cli import show
from clarion.cli.admin import request
from clarion.cli.options import URL_DEFAULT, Json, Url

app = typer.Typer(help="List prepared transactions that nobody has decided.")


@app.callback(invoke_without_command=True)
def prepared(context: typer.Context, url: Url = URL_DEFAULT, json: Json = False) -> None:
    """List prepared transactions that nobody has decided.

    Each holds what it has sent and consumed until `clarion admin resolve`, its own client, or its time decides.
    """
    if context.invoked_subcommand is None:
        listed(url, json)


@app.command("list")
def listed(url: Url = URL_DEFAULT, json: Json = False) -> None:
    """List them, as without a verb."""
    result = request(url, "prepared")
    if json:
        show.json(result)
        return
    show.table(
        (">handle", ">messages", "to", ">expires"),
        [
            (
                one["handle"],
                one["messages"],
                ", ".join(one["destinations"]) or "-",
                show.moment(one["expires_at_ms"]),
            )
            for one in result
        ],
    )


def resolve(
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="As `clarion admin prepared` shows it.")],
    commit: Annotated[bool, typer.Option("--commit", help="Everything that it sent is seen.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Nothing that it sent is seen; what it consumed comes again.")
    ] = False,
    url: Url = URL_DEFAULT,
    json: Json = False,
) -> None:
    """Decide a prepared transaction by hand.

    With --commit or --rollback, for one whose own client cannot do it any more: what other systems decided about their
    parts is not known here.
    """
    if commit == rollback:
        raise typer.BadParameter("give one of --commit and --rollback", param_hint="HANDLE")
    request(url, "resolve", handle=handle, commit=commit)
    outcome = "committed" if commit else "rolled back"
    if json:
        show.json({"handle": handle, "outcome": outcome})
    else:
        typer.echo(f"{outcome} {handle}")
