"""`python -m benchmarks [--quick] [--only NAME …] [--rounds N] [--seconds S] [--list]`.

Runs the contestants in turn, prints the table, and leaves a dated JSON file and a picture under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import harness, registry, report
from benchmarks.environment import Unavailable, peers_python
from benchmarks.processes import ROOT

PLOT_S_MAX = 120.0


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: a look, not a figure to quote")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="contestants whose name contains NAME")
    parser.add_argument("--rounds", type=int, help=f"rounds (default {harness.Settings().rounds}, quick 1)")
    parser.add_argument("--seconds", type=float, help="wanted length of one throughput run")
    parser.add_argument("--list", action="store_true", help="name the contestants and end")
    return parser.parse_args(given)


def _settings(arguments: argparse.Namespace) -> harness.Settings:
    settings = harness.QUICK if arguments.quick else harness.Settings()
    if arguments.rounds is not None:
        settings = dataclasses.replace(settings, rounds=arguments.rounds)
    if arguments.seconds is not None:
        settings = dataclasses.replace(settings, seconds=arguments.seconds)
    return settings


def _plot(result: Path, console: Console) -> None:
    """Drawn by the peers' interpreter; a missing picture is not a failed benchmark."""
    picture = result.with_suffix(".png")
    try:
        command = [str(peers_python()), "-m", "benchmarks.plot", str(result), str(picture)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PLOT_S_MAX, check=False)
    except (Unavailable, OSError, subprocess.TimeoutExpired) as error:
        console.print(f"no picture: {error}", markup=False)
        return
    if done.returncode == 0:
        console.print(f"picture: {picture.relative_to(ROOT)}")
    else:
        console.print(f"no picture: {done.stderr.strip()[-300:]}", markup=False)


def main(given: list[str]) -> int:
    arguments = _arguments(given)
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        contestants, settings = registry.chosen(arguments.only), _settings(arguments)
    except ValueError as error:
        console.print(str(error), markup=False)
        return 2
    if arguments.list:
        for peer in contestants:
            console.print(f"{peer.name}  [dim]{peer.durability}[/dim]")
        return 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=harness.steps_of(contestants, settings))

        def on_step(what: str) -> None:
            progress.update(task, description=what, advance=1)

        outcome = harness.run(contestants, settings, on_step)
    console.print(report.table(outcome))
    result = report.write(outcome)
    console.print(f"result: {result.relative_to(ROOT)}")
    _plot(result, console)
    return 0 if any(line.rates for line in outcome.lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
