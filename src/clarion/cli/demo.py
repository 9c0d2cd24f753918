"""`clarion demo`: a server is killed while it works, pipelines go on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from clarion.cli import show
from clarion.cli.options import Json

if TYPE_CHECKING:
    from clarion.cli.demo_events import EventStory
    from clarion.cli.demo_story import Tally

_Result = TypeVar("_Result")


def demo(
    messages: Annotated[
        int,
        typer.Option("--messages", metavar="N", min=100, max=1_000_000, help="To a queue, and to a topic."),
    ] = 20_000,
    events: Annotated[
        int,
        typer.Option("--events", metavar="N", min=600, max=1_000_000, help="Of each of three programs on a host."),
    ] = 3_000,
    pipelines: Annotated[
        bool, typer.Option("--pipelines/--no-pipelines", help="Show events and pipelines on Spark too.")
    ] = True,
    plot: Annotated[
        Path, typer.Option("--plot", metavar="FILE", help="Where the picture goes, a PNG.")
    ] = Path("clarion-demo.png"),
    json: Json = False,
) -> None:  # fmt: skip
    """Kill a working server and count what arrived.

    First messages, then events through pipelines. Everything is real: servers, programs and Spark are processes of
    their own, the data is on disk. Ends by itself.
    """
    from clarion.cli.demo_story import Story

    if not json:
        typer.echo("-- messages " + "-" * 68)
    tallies = _run(Story(messages, quiet=json).run())
    facts: dict[str, Any] = {tally.name: tally.facts() for tally in tallies}
    if not json:
        _tallies(tallies)
    _check([tally.name for tally in tallies if not tally.is_right], "messages of the ")
    missing = _missing() if pipelines else None
    if pipelines and missing is None:
        if not json:
            typer.echo("-- events and pipelines " + "-" * 56)
        facts["events"] = _events(events, plot, json)
    if json:
        show.json(facts)
        return
    if missing is not None:
        typer.echo(f"Pipelines are not shown: {missing}")
    typer.echo("Nothing was lost, nothing was doubled.")


def _run(story: Coroutine[Any, Any, _Result]) -> _Result:
    """To its end. SIGTERM is as Ctrl-C: no process stays behind."""
    import asyncio
    import signal

    async def bounded() -> _Result:
        told = asyncio.ensure_future(story)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.cancel)
        try:
            return await told
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    return asyncio.run(bounded())


def _tallies(tallies: list[Tally]) -> None:
    rows = zip(*(tally.facts().items() for tally in tallies), strict=True)
    show.table(
        ("", *(f">{tally.name}" for tally in tallies)),
        [(pair[0][0].replace("_", " "), *(value for _name, value in pair)) for pair in rows],
    )


def _check(wrong: list[str], what: str) -> None:
    from clarion.errors import InternalFault

    if wrong:
        raise InternalFault(detail=f"{what}{' and the '.join(wrong)} were lost or doubled")


def _missing() -> str | None:
    """What is needed for pipelines and is not here."""
    from importlib.util import find_spec

    from clarion.errors import JavaMissing, MissingExtra

    if any(find_spec(name) is None for name in ("pyspark", "pandas", "pyarrow", "matplotlib")):
        return str(MissingExtra(extra="spark"))
    from clarion.pipelines.session import check_java

    try:
        check_java()
    except JavaMissing as error:
        return str(error)
    return None


def _events(events: int, plot: Path, quiet: bool) -> dict[str, Any]:
    """The second part: tables and a picture."""
    from clarion.cli.demo_events import EventStory
    from clarion.cli.demo_plot import Picture, draw

    story = EventStory(events, quiet=quiet)
    _run(story.run())
    draw(Picture(story.curves, story.down, story.alert_moments()), plot)
    if not quiet:
        _show(story)
        typer.echo(f"The picture of it is {plot}")
    _check([] if story.is_right else ["events"], "")
    return {
        "types": story.facts(),
        "recorded": story.recorded.total(),
        "delivered": story.delivered,
        "archived": story.archived.total(),
        "archived_ids": story.archived_ids,
        "counted": story.counted.total(),
        "alerts": story.alerts,
        "plot": str(plot),
    }


def _show(story: EventStory) -> None:
    show.table(
        ["event", ">recorded", ">archived", ">counted", ">lost", ">doubled", ">delay s"],
        [
            (
                row["type"],
                row["recorded"],
                row["archived"],
                row["counted"],
                max(0, row["recorded"] - row["archived"]),
                max(0, row["archived"] - row["recorded"]),
                "-" if row["delay_p50_ms"] is None else f"{row['delay_p50_ms'] / 1000:,.1f}",
            )
            for row in story.facts()
        ],
    )
    typer.echo()
    show.table(
        ["alert", "severity", "~what"],
        sorted(
            (alert["rule"], alert["severity"], alert["message"]) for alert in story.alerts if alert["state"] == "raised"
        ),
    )
