"""The picture of a result file: `python -m benchmarks.plot RESULT.json PICTURE.png`.

Runs in the peers' interpreter, where matplotlib is. Left: messages per second, one pair of bars per contestant, the
bare path as lines. Right: latency, the disk sync and the loopback echo as lines. Both scales are logarithmic because
the contestants differ by factors of a thousand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.contestant import UNSYNCED

CEILING = "bare batch path"
OURS = ("#b5341f", "#e08e7c")
THEIRS = ("#2f5d8a", "#8fb2d3")
WEAKER = ("#7a7a7a", "#bdbdbd")
LIMIT = "#444444"


def _label(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value / 1e3:.1f} k" if value >= 1e3 else f"{value:.0f}"


def _colours(row: dict[str, Any]) -> tuple[str, str]:
    """Red is Clarion, blue keeps the same promise, grey does not (or is no broker)."""
    if row["name"].startswith("Clarion"):
        return OURS
    return WEAKER if row["durability"].startswith(UNSYNCED) or row["name"].startswith(CEILING) else THEIRS


def _size(text: str) -> str:
    return f"{text} B" if int(text) < 1024 else f"{int(text) // 1024} KiB"


def _bars(axes: Any, rows: list[dict[str, Any]], values: list[list[float]]) -> None:
    """One group of bars per row, in two shades of its colour; each bar carries its figure."""
    height = 0.8 / len(values[0])
    for index, (row, figures) in enumerate(zip(rows, values, strict=True)):
        for shade, figure in enumerate(figures):
            position = index - 0.4 + height * (shade + 0.5)
            axes.barh(position, figure, height * 0.92, color=_colours(row)[shade])
            axes.annotate(
                _label(figure),
                (figure, position),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
    axes.set_xscale("log")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    smallest, largest = min(map(min, values)), max(map(max, values))
    axes.set_xlim(smallest / 2, largest * 4)


def _lines(axes: Any, limits: list[tuple[str, float, str]]) -> None:
    for text, value, style in limits:
        axes.axvline(value, color=LIMIT, linestyle=style, linewidth=1, label=f"{text}: {_label(value)}", zorder=0)


def draw(result: dict[str, Any], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    sizes = [str(size) for size in result["sizes"]]
    measured = [row for row in result["contestants"] if all(row["rates"].get(size) for size in sizes)]
    measured = [row for row in measured if row["latency_p50_us"] is not None]
    measured.sort(key=lambda row: -row["rate_median"][sizes[0]])
    ceiling = next((row for row in measured if row["name"] == CEILING), None)
    rows = [row for row in measured if row is not ceiling]
    if not rows:
        raise SystemExit("no contestant was measured")

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(13, 1.9 + 0.52 * len(rows)), sharey=True, width_ratios=(3, 2), layout="constrained"
    )
    _bars(left, rows, [[row["rate_median"][size] for size in sizes] for row in rows])
    _bars(right, rows, [[row["latency_p50_us"], row["latency_p99_us"]] for row in rows])
    left.set_yticks(range(len(rows)), [f"{row['name']}\n{row['durability']}" for row in rows], fontsize=8)
    left.set_title("messages per second, end to end and acknowledged", fontsize=10)
    right.set_title(f"send to confirmation of one {result['latency_size']} B message, µs", fontsize=10)

    if ceiling is not None:
        rates = [ceiling["rate_median"][size] for size in sizes]
        named = [
            (f"bare path {_size(size)}", rate, style)
            for size, rate, style in zip(sizes, rates, ("-", "--"), strict=True)
        ]
        _lines(left, named)
        left.set_xlim(right=max(left.get_xlim()[1], max(rates) * 1.5))
    sync = result["raw"]["syncs"][0]
    echo = result["raw"]["echo_p50_us"]
    _lines(right, [(f"fdatasync {sync['block_size'] >> 10} KiB", sync["p50_us"], "-"), ("loopback echo", echo, "--")])
    right.set_xlim(left=min(right.get_xlim()[0], echo / 1.5))
    below = -0.5 / (0.52 * len(rows))  # a fixed distance under the axis, whatever the number of rows
    for axes, names in ((left, [_size(size) for size in sizes]), (right, ["p50", "p99"])):
        shades = [Patch(color=THEIRS[index], label=name) for index, name in enumerate(names)]
        lines = axes.get_legend_handles_labels()[0]
        axes.legend(
            handles=shades + lines, fontsize=8, ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.5, below)
        )
    machine = result["machine"]
    figure.suptitle(
        f"{result['taken_at'][:16].replace('T', ' ')} UTC · {machine['cores']} cores · Python {machine['python']} · "
        f"median of {result['settings']['rounds']} round(s) · red: Clarion, blue: synced before confirmation, "
        "grey: weaker promise or no broker",
        fontsize=9,
    )
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
