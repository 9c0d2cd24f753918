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
    """A table on stdout. A column whose name begins with `>` is to the right and never folded; one with `~` is cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0)
    )
    cells = [[_cell(cell) for cell in row] for row in rows]
    for column in columns:
        whole = column.startswith(">")  # rich takes width from the others, so that these are not cut
        drawn.add_column(column.lstrip(">~"), justify="right" if whole else "left", no_wrap=whole, overflow="fold")
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
    known = [(_cell(name), _cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        typer.echo(f"{name:<{width}}  {value}")


def _cell(value: object) -> str:
    """One line without control characters: what others wrote must not steer a terminal."""
    text = number(value) if isinstance(value, int | float) else str(value)
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


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


def exact_size(count: int) -> str:
    """Bytes in the largest unit that loses nothing: "64 MiB", "1500 B". `clarion.units.parse_size` reads it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if not count or count % 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} TiB"


def duration(ms: int) -> str:
    """Milliseconds in the largest unit that loses nothing: "90 s", "2 h". `clarion.units.parse_duration` reads it."""
    for unit, many in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms and not ms % many:
            return f"{ms // many} {unit}"
    return f"{ms} ms"


def moment(unix_ms: int | None) -> str:
    """A time in UTC, to the minute."""
    from clarion.cli.messages import instant

    return "-" if unix_ms is None else instant(unix_ms)[:16].replace("T", " ")


def messages(count: int) -> str:
    """How many messages, in words."""
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


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
