"""The result of a run as a dated JSON file and as a table.

The JSON file holds every round's figures and the facts about the machine, so that a later run can be compared with
it or the table drawn again; it holds no paths and no host names. `SCHEMA` changes when a field changes its meaning.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.bare import CEILING
from benchmarks.harness import LATENCY_SIZE, SIZES, Line, Outcome

SCHEMA = 1
RESULTS = Path(__file__).resolve().parent / "results"
CLARION = "Clarion"
NOTHING = "-"


def machine_facts() -> dict[str, Any]:
    model = "unknown"
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [line.partition(":")[2] for line in cpu_info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].strip() if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def as_json(outcome: Outcome, taken_at: datetime) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "taken_at": taken_at.isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "settings": asdict(outcome.settings),
        "sizes": list(SIZES),
        "latency_size": LATENCY_SIZE,
        "raw": outcome.limits.as_json(),
        "contestants": [line.as_json() for line in outcome.lines],
    }


def write(outcome: Outcome, directory: Path = RESULTS, taken_at: datetime | None = None) -> Path:
    """One file per run, named by its time (UTC)."""
    taken_at = taken_at or datetime.now(UTC)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{taken_at:%Y-%m-%dT%H-%M-%S}.json"
    path.write_text(json.dumps(as_json(outcome, taken_at), indent=1) + "\n")
    return path


def ratio(line: Line, base: Line | None) -> str:
    """This line's rate at the smallest size over the base's: more than 1 is faster than the base."""
    mine, other = line.rate(SIZES[0]), base.rate(SIZES[0]) if base else None
    if mine is None or not other:
        return NOTHING
    value = mine / other
    return f"{value:.2f}" if value >= 0.1 else f"1/{1 / value:,.0f}"


def _rate(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _latency(line: Line) -> tuple[str, str]:
    latency = line.latency_us()
    return (NOTHING, NOTHING) if latency is None else (f"{latency[0]:,.0f}", f"{latency[1]:,.0f}")


def table(outcome: Outcome) -> Table:
    """One row per contestant; one that could not be measured says why in place of its durability."""
    clarion, ceiling = outcome.line(CLARION), outcome.line(CEILING)
    drawn = Table(title="End to end, one producer, one consumer", caption=limits_text(outcome), header_style="bold")
    drawn.add_column("contestant", min_width=20)
    drawn.add_column("durability when confirmed", min_width=16, max_width=40)
    for heading in (
        *(f"msg/s\n{_size(size)}" for size in SIZES),
        "latency µs\np50",
        "latency µs\np99",
        "ratio to\nClarion",
        "ratio to\nbare path",
    ):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for line in outcome.lines:
        problem = line.problem()
        drawn.add_row(
            line.name,
            f"[red]{problem}[/red]" if problem else line.durability,
            *(_rate(line.rate(size)) for size in SIZES),
            *_latency(line),
            ratio(line, clarion),
            ratio(line, ceiling),
            style="bold" if line is clarion else "dim" if problem else "",
        )
    return drawn


def _size(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


def limits_text(outcome: Outcome) -> str:
    syncs = ", ".join(
        f"{_size(each.block_size)} {each.p50_us:,.0f} (p99 {each.p99_us:,.0f})" for each in outcome.limits.syncs
    )
    facts = machine_facts()
    return (
        f"Ratios are of msg/s at {_size(SIZES[0])}. Medians of {outcome.settings.rounds} interleaved round(s). "
        f"pwrite + fdatasync in µs: {syncs}. Loopback echo on uvloop {outcome.limits.echo_p50_us:,.0f} µs. "
        f"{facts['cores']} cores, kernel {facts['kernel']}, Python {sys.version.split()[0]}."
    )
