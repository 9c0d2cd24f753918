"""`clarion node cm|mm`: one node of a cluster."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clarion.cli.serve import Insecure, ready


class Kind(StrEnum):
    CM = "cm"
    MM = "mm"


def node(
    kind: Annotated[Kind, typer.Argument(help="cm: client manager, mm: message manager.")],
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="Settings in TOML, with a [bus] of zenoh.")],
    insecure: Insecure = False,
) -> None:
    """Run one node of a cluster.

    Until SIGTERM or Ctrl-C; prints a `ready` line as serve does.
    """
    from clarion import settings as configuration
    from clarion.errors import MissingExtra

    known = configuration.load(config, os.environ)
    try:
        from clarion.nodes.node import run_node
    except ModuleNotFoundError as error:
        if error.name != "zenoh":
            raise
        raise MissingExtra(extra="cluster") from None
    started = run_node(kind.value, known, insecure=insecure, ready=lambda info: ready(known, kind.value, info))
    raise typer.Exit(started)
