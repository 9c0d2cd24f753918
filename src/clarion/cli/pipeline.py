"""`clarion pipeline`: what Spark does with messages. List pipelines, run one, see how it is, stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clarion.cli import show
from clarion.cli.options import URL_VARIABLE, Json

app = typer.Typer(help="Pipelines on Spark: archive, statistics, alerts and more.", no_args_is_help=True)

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML: [pipeline] and [pipeline.NAME].")
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="Folder of all pipelines.  [default: clarion-pipelines]"),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the pipeline, or of a table [pipeline.NAME].")]
Once = Annotated[bool, typer.Option("--once", help="Do what there is now, and end.")]


@app.command("list")
def listed(json: Json = False) -> None:
    """List the pipelines and their jobs."""
    from clarion.pipelines import registry

    found = [one for name in registry.names() for family in [registry.find(name)] for one in (family, *family.jobs)]
    if json:
        show.json(
            [{"name": one.name, "kind": _kind(one.is_streaming), "summary": one.summary} for one in found],
        )
    else:
        show.table(["name", "kind", "does"], [(one.name, _kind(one.is_streaming), one.summary) for one in found])


def _kind(is_streaming: bool) -> str:
    return "stream" if is_streaming else "job"


@app.command()
def run(
    name: Name,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", envvar=URL_VARIABLE, metavar="URL", show_envvar=True,
            help="Server: clarion://[user:password@]host:port[,host:port…]",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="M", help="Where Spark runs: local[N], spark://…, yarn.  [default: local[*]]"),
    ] = None,
    config: Config = None,
    checkpoint: Checkpoint = None,
    once: Once = False,
    new_checkpoint: Annotated[
        bool, typer.Option("--new-checkpoint", help="Begin although the checkpoint of an earlier run is lost.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the pipeline, or spark.… of Spark."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per progress.")] = False,
) -> None:  # fmt: skip
    """Run a pipeline.

    A stream runs until SIGTERM or Ctrl-C, a job or --once until it is done. It goes on where it was. The first signal
    ends it after the micro-batch under way, a second one at once.
    """
    from clarion.pipelines import screen, settings
    from clarion.pipelines.running import run_pipeline

    given = {"url": url, "master": master, "checkpoint": checkpoint}
    prepared = settings.prepare(name, config, given, assignments or ())
    status = run_pipeline(prepared, screen.choose(json), once=once, new_checkpoint=new_checkpoint)
    report = status["report"]
    if report and not json:
        show.facts([(_words(key), _shown(value)) for key, value in report.items()])


def _shown(value: Any) -> object:
    return value if isinstance(value, str | int | float) else _compact(value)


def _compact(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this one, with all that is known.")] = None,
    config: Config = None,
    checkpoint: Checkpoint = None,
    json: Json = False,
) -> None:
    """Show how pipelines are: those that run, and how others ended."""
    from clarion.errors import BadArgument
    from clarion.pipelines import folder, settings

    root = settings.load(config, {"checkpoint": checkpoint}).local_folder
    if name is not None:
        settings.check_running(name)
        found = folder.Folder(root / name).read()
        if found is None:
            raise BadArgument(argument="pipeline", detail=f"{name} has not run in {root}")
        if json:
            show.json(found)
        else:
            show.facts([(_words(key), _fact(value)) for key, value in found.items() if key != "queries"])
            for query in found.get("queries", []):
                typer.echo()
                show.facts([(_words(key), _fact(value)) for key, value in query.items()])
        return
    every = [found for each in folder.all_of(root) if (found := each.read()) is not None]
    if json:
        show.json(every)
        return
    show.table(
        ["pipeline", "state", ">rows in", ">rows/s", ">lag", ">batch s", ">since", "~last error"],
        [
            (
                one["name"],
                one["state"],
                one.get("rows", 0),
                f"{one.get('rows_per_s', 0.0):,.0f}",
                _fact(one.get("lag")),
                "-" if one.get("batch_s") is None else f"{one['batch_s']:.2f}",
                str(one.get("since", "-"))[:16].replace("T", " "),
                one.get("error") or "-",
            )
            for one in every
        ],
    )


def _fact(value: object) -> object:
    """A value as it is: it may be a number of a process."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, str | int | float) else _compact(value)


def _words(key: str) -> str:
    return key.replace("_", " ")


@app.command()
def stop(
    name: Name,
    config: Config = None,
    checkpoint: Checkpoint = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="S", min=0.0, help="Wait so long for its end.")] = 90.0,
) -> None:
    """Stop a pipeline after the micro-batch under way.

    Waits until it has stopped.
    """
    from clarion.errors import BadArgument, Timeout
    from clarion.pipelines import folder, settings

    settings.check_running(name)
    root = settings.load(config, {"checkpoint": checkpoint}).local_folder
    found = folder.Folder(root / name)
    if not found.is_running():
        raise BadArgument(argument="pipeline", detail=f"{name} does not run in {root}")
    found.ask_stop()
    if not found.wait_stopped(timeout):
        raise Timeout(limit_ms=int(timeout * 1000), detail=f"{name} was asked to stop, and still runs")
    last = found.read() or {}
    typer.echo(f"{name}: {last.get('state', 'stopped')}, {last.get('rows', 0):,} rows")
