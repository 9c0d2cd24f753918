"""What whoever runs a pipeline sees of it: a live table on a terminal, JSON lines for programs, few plain lines else.

Rule: a screen never stops a pipeline; what cannot be printed is not printed.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

PLAIN_S = 10.0
"""Least time between two plain lines that say how it goes."""


class Screen(Protocol):
    def show(self, status: dict[str, Any]) -> None:
        """How it is now."""

    def note(self, text: str) -> None:
        """Something happened."""

    def close(self) -> None:
        """It is over; `show` has seen the last status."""


def choose(json: bool) -> Screen:
    """The one that suits whoever reads."""
    if json:
        return JsonLines()
    return LiveTable() if sys.stdout.isatty() else PlainLines()


class JsonLines:
    """One line for each status that differs from the one before."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}

    def show(self, status: dict[str, Any]) -> None:
        said = {key: value for key, value in status.items() if key != "updated"}
        if said != self._last:
            self._last = said
            _write(msgspec.json.encode(status).decode() + "\n")

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class PlainLines:
    """A line when the state changes, and now and then how many rows there are."""

    def __init__(self) -> None:
        self._state: str | None = None
        self._rows = 0
        self._at = 0.0

    def show(self, status: dict[str, Any]) -> None:
        now = time.monotonic()
        is_new = status["state"] != self._state
        if not is_new and (status["rows"] == self._rows or now - self._at < PLAIN_S):
            return
        self._state, self._rows, self._at = status["state"], status["rows"], now
        _write(f"{line(status)}\n")

    def note(self, text: str) -> None:
        _write(f"{text}\n")

    def close(self) -> None:
        pass


class LiveTable:
    """A table that is drawn again and again, and stays when the pipeline ends."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def show(self, status: dict[str, Any]) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(auto_refresh=False, redirect_stderr=False, redirect_stdout=False)
            self._live.start()
        self._live.update(_drawn(status), refresh=True)

    def note(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            _write(f"{text}\n")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def line(status: dict[str, Any]) -> str:
    """A status in one line."""
    words = [f"{status['name']}: {status['state']}"]
    if status["rows"] or status["state"] not in ("starting", "running"):
        words.append(f"{status['rows']:,} rows")
    if status["rows_per_s"]:
        words.append(f"{status['rows_per_s']:,.0f} rows/s")
    if status["lag"] is not None:
        words.append(f"lag {status['lag']:,}")
    if status["batch_s"] is not None:
        words.append(f"batch {status['batch_s']:.2f} s")
    for key, value in (status.get("report") or {}).items():
        if key not in ("rows", "total") and isinstance(value, str | int | float):
            words.append(f"{key.replace('_', ' ')} {value:,}" if isinstance(value, int) else f"{key} {value}")
    if status["error"]:
        words.append(f"error: {status['error']}")
    return ", ".join(words)


def _drawn(status: dict[str, Any]) -> Group:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    since = status["since"][:19].replace("T", " ")
    title = f"{status['name']}  {status['state']}, since {since}, {status['master']}, {status['url']}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("query")
    for column in ("rows in", "rows/s", "lag", "batch s", "batches"):
        table.add_column(column, justify="right", no_wrap=True)
    for query in status["queries"] or [status]:
        table.add_row(
            Text(query["name"]),
            f"{query['rows']:,}",
            f"{query['rows_per_s']:,.0f}",
            "-" if query["lag"] is None else f"{query['lag']:,}",
            "-" if query["batch_s"] is None else f"{query['batch_s']:.2f}",
            f"{query['batches']:,}",
        )
    parts: list[Text | Table] = [Text(title, no_wrap=True, overflow="ellipsis"), table]
    if status["error"]:
        parts.append(Text(f"last error: {status['error']}", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
