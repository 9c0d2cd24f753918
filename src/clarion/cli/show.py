"""What people look at: tables, sizes, progress. rich is imported only when something is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

Advance = Callable[[int], None]


def json(value: object) -> None:
    """One JSON document on stdout."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table on stdout. A column whose name begins with `>` holds numbers; one with `~` is cut rather than folded."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    cells = [[number(cell) if isinstance(cell, int | float) else str(cell) for cell in row] for row in rows]
    for at, column in enumerate(columns):
        is_number = column.startswith(">")
        width = max(len(row[at]) for row in cells) if is_number and cells else None
        drawn.add_column(
            column.lstrip(">~"), justify="right" if is_number else "left", min_width=width, overflow="fold"
        )
    for row in cells:
        drawn.add_row(
            *(
                Text(cell, no_wrap=True, overflow="ellipsis") if column.startswith("~") else Text(cell)
                for column, cell in zip(columns, row, strict=True)
            )
        )
    Console(highlight=False, file=sys.stdout).print(drawn)


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    known = [(name, number(value) if isinstance(value, int | float) else str(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        typer.echo(f"{name:<{width}}  {value}")


def number(value: float) -> str:
    """1234567 as 1,234,567; truth as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(count: int | None) -> str:
    """Bytes in the largest unit that leaves something before the point."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """A progress bar on stderr, if that is a terminal; `advance(n)` moves it."""
    if not sys.stderr.isatty() or total is None or total < 2:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
