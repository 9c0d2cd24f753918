"""Arguments and options that several verbs share, and what they mean."""

from __future__ import annotations

from typing import Annotated

import typer

URL_VARIABLE = "CLARION_URL"
URL_DEFAULT = "clarion://127.0.0.1:7750"

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="Server: clarion://[user:password@]host:port[,host:port…]",
        show_envvar=True,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Destination = Annotated[
    str, typer.Argument(metavar="DEST", help="queue:NAME, topic:NAME, or NAME: a queue unless it exists as a topic.")
]
Topic = Annotated[bool, typer.Option("--topic", help="DEST is a topic.")]


def destination(text: str, topic: bool) -> str:
    """DEST as the server takes it. Raises `BadName`, or usage for `queue:… --topic`."""
    from clarion.message import parse_destination

    kind, name = parse_destination(text, system=True)
    if not topic:
        return text
    if kind == "queue":
        raise typer.BadParameter(f"{text} is a queue", param_hint="--topic")
    return f"topic:{name}"
