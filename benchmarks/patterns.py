"""What wildcard patterns cost: many names against many patterns, of which few match each name.

    python -m benchmarks.patterns [--names N] [--patterns N]

Prints a line of JSON for each kind of patterns:
    time to look up one name it has not seen before: mean, p50, p99, longest; and the mean when it comes again;
    time to add a pattern while each adding is followed by a look-up;
    how many patterns matched, and how many a name at most.

The result is checked: a sample of names against Python's own `re`, pattern by pattern.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.contestant import percentile
from clarion.core.patterns import PatternSet, parse_pattern

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CHECKED = 50
"""Names that are checked pattern by pattern."""

_SHAPES: dict[str, list[Callable[[list[str]], str]]] = {
    "beginnings": [lambda word: f"glob:{word[0]}.{word[1]}.*"],
    "usual": [
        lambda word: f"glob:{word[0]}.{word[1]}.*",
        lambda word: f"glob:{word[0]}.*.{word[1]}",
        lambda word: f"glob:*.{word[0]}.{word[1]}",
        lambda word: f"glob:{word[0]}.{word[1]}?",
    ],
    "anywhere": [
        lambda word: f"glob:*{word[0]}.{word[1]}*",
        lambda word: f"glob:*{word[0]}*{word[1]}*",
        lambda word: rf"regex:[a-z]+\.{word[0]}\.{word[1][0]}[a-z.]*",
        lambda word: rf"regex:({word[0]}|{word[1]})\..*\.({word[2]}|{word[3]})",
        lambda word: rf"regex:.*{word[0]}\.[^.]+\.{word[1]}.*",
    ],
}
KINDS = tuple(_SHAPES)


@dataclass
class Seen:
    """What one kind of patterns cost."""

    kind: str
    patterns: int
    names: int
    matches: int = 0
    matches_of_a_name_max: int = 0
    adding_us: float = 0.0
    lookup_us: float = 0.0
    lookup_p50_us: float = 0.0
    lookup_p99_us: float = 0.0
    lookup_max_us: float = 0.0
    again_us: float = 0.0


def measure(kind: str, names: int, patterns: int, seed: int = 1) -> Seen:
    """Look all names up among all patterns. Raises `AssertionError` if an answer is wrong."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(_LETTERS, k=rng.randint(3, 9))) for _ in range(max(patterns, 20))]
    texts = [rng.choice(_SHAPES[kind])(rng.choices(words, k=4)) for _ in range(patterns)]
    looked_up = [".".join(rng.choices(words, k=rng.randint(3, 5))) for _ in range(names)]
    for number in range(0, names, 10):  # most names match nothing by chance: plant some
        words_there = re.findall("[a-z]{3,}", texts[number % patterns].partition(":")[2])
        looked_up[number] = ".".join([*words_there, *rng.choices(words, k=2)])
    seen = Seen(kind, patterns, names)

    began = time.perf_counter()
    growing: PatternSet[int] = PatternSet()
    for number, text in enumerate(texts):
        growing.add(number, parse_pattern(text))
        growing.matching("a.b.c")
    seen.adding_us = (time.perf_counter() - began) / patterns * 1e6

    took: list[float] = []
    answers: list[list[int]] = []
    for name in looked_up:
        at = time.perf_counter()
        answers.append(growing.matching(name))
        took.append((time.perf_counter() - at) * 1e6)
    seen.matches = sum(map(len, answers))
    seen.matches_of_a_name_max = max(map(len, answers))
    seen.lookup_us = sum(took) / names
    seen.lookup_p50_us, seen.lookup_p99_us = percentile(took, 0.5), percentile(took, 0.99)
    seen.lookup_max_us = max(took)
    recent = looked_up[-1_000:]
    began = time.perf_counter()
    for name in recent:
        growing.matching(name)
    seen.again_us = (time.perf_counter() - began) / len(recent) * 1e6

    _check(texts, looked_up, answers)
    return seen


def _check(texts: list[str], names: list[str], answers: list[list[int]]) -> None:
    """A sample against Python's own `re`, and against the order of adding."""
    slow: list[re.Pattern[str]] = []
    for text in texts:
        kind, _, body = text.partition(":")
        slow.append(re.compile(fnmatch.translate(body) if kind == "glob" else body))
    step = max(1, len(names) // _CHECKED // 10 * 10)  # planted names are every tenth
    for number in [*range(0, len(names), step), *range(1, len(names), step)]:
        wanted = [index for index, expression in enumerate(slow) if expression.fullmatch(names[number])]
        if answers[number] != wanted:
            raise AssertionError(f"{names[number]} matches {wanted}, but the answer was {answers[number]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.patterns")
    parser.add_argument("--names", type=int, default=100_000)
    parser.add_argument("--patterns", type=int, default=1_000)
    wanted = parser.parse_args()
    for kind in KINDS:
        print(json.dumps(asdict(measure(kind, wanted.names, wanted.patterns))), flush=True)


if __name__ == "__main__":
    main()
