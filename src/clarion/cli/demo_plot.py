"""A picture of `clarion demo`: what was recorded, delivered and processed, second by second, and what happened."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

Samples = list[tuple[float, int]]
"""Moments, and how many there were until then."""
BIN_S = 1.0
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b")


class Picture(NamedTuple):
    """What is drawn. Moments are seconds since the begin."""

    curves: dict[str, Samples]
    down: tuple[float, float] | None
    """When the server was dead."""
    alerts: list[tuple[float, str]]


def rates(samples: Samples, end: float) -> tuple[list[float], list[float]]:
    """How many a second, in bins of `BIN_S` from 0 to `end`: the middles of the bins, and the rates. Pure.

    Between two samples the count is taken to grow evenly.
    """
    edges = [index * BIN_S for index in range(int(end / BIN_S) + 2)]
    counts = [_at(samples, edge) for edge in edges]
    middles = [edge + BIN_S / 2 for edge in edges[:-1]]
    return middles, [(after - before) / BIN_S for before, after in pairwise(counts)]


def _at(samples: Samples, moment: float) -> float:
    before, count = 0.0, 0.0
    for at, value in samples:
        if at > moment:
            return count + (value - count) * (moment - before) / (at - before) if at > before else float(value)
        before, count = at, float(value)
    return count


def draw(picture: Picture, path: Path) -> None:
    """Write it as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    end = max(samples[-1][0] for samples in picture.curves.values() if samples)
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(10, 7), sharex=True, layout="constrained")
    for (name, samples), colour in zip(picture.curves.items(), _COLOURS, strict=False):
        middles, values = rates(samples, end)
        above.step(middles, values, where="mid", label=name, color=colour, linewidth=1.6)
        below.plot([at for at, _ in samples], [count for _, count in samples], label=name, color=colour, linewidth=1.6)
    for axis in (above, below):
        if picture.down is not None:
            axis.axvspan(*picture.down, color="#d62728", alpha=0.15, label="the server is dead")
            axis.axvline(picture.down[0], color="#d62728", linewidth=1.2)
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
    for at, text in picture.alerts:
        below.axvline(at, color="#7f7f7f", linestyle=":", linewidth=1.2)
        below.annotate(text, (at, 0), xytext=(3, 4), textcoords="offset points", rotation=90, fontsize=8, va="bottom")
    above.set_title("Events of a host, through a crash of the server, into pipelines")
    above.set_ylabel("events per second")
    below.set_ylabel("events")
    below.set_xlabel("seconds")
    above.legend(loc="upper left", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
