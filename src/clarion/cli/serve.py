"""`clarion serve`: one process that is everything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from clarion.nodes.single import ServerInfo
    from clarion.settings import Settings

Data = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="Where messages are kept. [default: clarion-data]")
]
Listen = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="Port 0 takes a free one. [default: 127.0.0.1:7750]")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen on an address that others can reach, without any users.")
]


def serve(data: Data = None, listen: Listen = None, config: Config = None, insecure: Insecure = False) -> None:
    """Run a server: one process, everything.

    Until SIGTERM or Ctrl-C. When it serves it prints one line that begins with `ready`, with its address; the log
    goes to stderr.
    """
    from clarion import settings as configuration
    from clarion.nodes import single

    known = configuration.load(config, os.environ, data=data, listen=listen)
    raise typer.Exit(single.run(known, insecure=insecure, ready=lambda info: ready(known, "single", info)))


def ready(settings: Settings, kind: str, info: ServerInfo | None) -> None:
    """The one line on stdout by which whoever started the process knows that it serves."""
    import msgspec

    facts: dict[str, object] = {"kind": kind, "name": settings.node.name, "pid": os.getpid()}
    if info is not None:
        facts = {"url": info.url, **facts, "data": info.data, "durability": info.durability}
    if settings.node.log_format == "json":
        typer.echo(msgspec.json.encode({"event": "ready", **facts}).decode())
    else:
        typer.echo(" ".join(["ready", *(f"{name}={_quoted(str(value))}" for name, value in facts.items())]))


def _quoted(text: str) -> str:
    """As in the log: a value that is not one plain word is a JSON string."""
    import msgspec

    plain = text and text.isprintable() and not any(character in text for character in " \"'=")
    return text if plain else msgspec.json.encode(text).decode()
