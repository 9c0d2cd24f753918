"""`clarion demo`: a server is killed while it works, and nothing is lost."""

from __future__ import annotations

from typing import Annotated

import typer

from clarion.cli import show
from clarion.cli.options import Json


def demo(
    messages: Annotated[
        int,
        typer.Option("--messages", metavar="N", min=100, max=1_000_000, help="To a queue, and to a topic."),
    ] = 20_000,
    json: Json = False,
) -> None:
    """Kill a working server and count what arrived.

    Everything is real: the server and the subscriber are processes of their own, the data is on disk. Ends by itself.
    """
    import asyncio

    from clarion.cli.demo_story import Story
    from clarion.errors import InternalFault

    tallies = asyncio.run(Story(messages, quiet=json).run())
    if json:
        show.json({tally.name: tally.facts() for tally in tallies})
    else:
        rows = zip(*(tally.facts().items() for tally in tallies), strict=True)
        show.table(
            ("", *(f">{tally.name}" for tally in tallies)),
            [(pair[0][0].replace("_", " "), *(value for _name, value in pair)) for pair in rows],
        )
    wrong = [tally.name for tally in tallies if not tally.is_right]
    if wrong:
        raise InternalFault(detail=f"messages of the {' and the '.join(wrong)} were lost or doubled")
    if not json:
        typer.echo("Nothing was lost, nothing was doubled.")
