"""The command `clarion`: all verbs, and the one place where a command ends."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from clarion.cli import (
    admin,
    bench,
    browse,
    demo,
    dmq,
    events,
    exits,
    node,
    pipeline,
    policy,
    receive,
    send,
    serve,
    transactions,
)
from clarion.cli.options import URL_VARIABLE

app = typer.Typer(
    name="clarion",
    help="Event messages that must not be lost.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("node")(node.node)
app.command("send")(send.send)
app.command("receive")(receive.receive)
app.command("browse")(browse.browse)
app.add_typer(dmq.app, name="dmq")
app.add_typer(events.app, name="events")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(admin.app, name="admin")
admin.app.add_typer(policy.app, name="policy")
admin.app.add_typer(transactions.app, name="prepared")
admin.app.command("resolve")(transactions.resolve)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        from clarion import __version__

        typer.echo(f"clarion {__version__}")
        raise typer.Exit


@app.callback()
def common(
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The same as --url of a verb.")] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Event messages that must not be lost."""
    if url is not None:
        os.environ[URL_VARIABLE] = url


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit status."""
    try:
        status = app(arguments, prog_name="clarion", standalone_mode=False)
    except SystemExit as ended:  # the parser's own way with a closed pipe
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        exits.leave(exits.fail(ended.__context__))
    except BaseException as error:
        exits.leave(_usage(error) if hasattr(error, "format_message") else exits.fail(error))
    exits.leave(status if isinstance(status, int) else exits.OK)


def _usage(error: BaseException) -> int:
    """An error of the argument parser, as one line like all others."""
    text = " ".join(str(error.format_message()).split())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if context is not None:
        text = f"{text.rstrip('.')}; try '{context.command_path} --help'"
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(error.format_message() + "\n")  # type: ignore[attr-defined]
    else:
        exits.say(text)
    return int(getattr(error, "exit_code", exits.USAGE))
