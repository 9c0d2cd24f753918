"""README and the guide are true: their programs and commands run against a real server and print what the pages show.

A block under the line `<!-- run -->` is run; what it printed must be the ```text block that follows, or, for a
```console block, the lines under each `$ command`. Ids, times and measurements are not compared.
With CLARION_REWRITE_DOCUMENTS=1 the pages are given what was really printed instead; read the difference.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from clarion.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
REWRITE = os.environ.get("CLARION_REWRITE_DOCUMENTS") == "1"
RUN_S_MAX = 30
SMALL = {"CLARION_JOURNAL_SEGMENT_BYTES": str(8 << 20)}
"""So that a start costs little."""
ADDRESS = "clarion://127.0.0.1:7750"
_PROGRAM = re.compile(r"^<!-- run -->\n```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE = re.compile(r"^<!-- run -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIES = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?Z?)?"), "TIME"),
    (re.compile(r"\(\d[\d,.]*/s\)|\d[\d,.]* (µs|s|KiB|MiB|GiB)\b"), "MEASURED"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r"─+"), "─"),
)


class Block(NamedTuple):
    """Something to run, where it stands in its page, and what the page says that it prints."""

    span: tuple[int, int]
    source: str
    printed: str


def _programs(page: Path) -> list[Block]:
    return [Block(found.span(2), found[1], found[2]) for found in _PROGRAM.finditer(page.read_text("utf-8"))]


def _commands(page: Path) -> list[Block]:
    """Each line that begins with `$ `, and the lines below it."""
    blocks = []
    for console in _CONSOLE.finditer(page.read_text("utf-8")):
        at = console.start(1)
        for part in re.split(r"^(?=\$ )", console[1], flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            at += len(command) + 1
            blocks.append(Block((at, at + len(printed)), command[2:], printed))
            at += len(printed)
    return blocks


def _constant(text: str) -> str:
    """What must be the same in every run."""
    for pattern, name in _VARIES:
        text = pattern.sub(name, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _compare(page: Path, results: list[tuple[Block, str]]) -> None:
    if not REWRITE:
        for block, printed in results:
            assert _constant(printed) == _constant(block.printed), block.source
        return
    text = page.read_text("utf-8")
    for block, printed in reversed(results):
        if _constant(printed) != _constant(block.printed):
            shown = re.sub(r"[ \t]+$", "", printed, flags=re.MULTILINE)
            text = text[: block.span[0]] + shown + text[block.span[1] :]
    page.write_text(text, "utf-8")


def _run_program(page: Path, block: Block, url: str, folder: Path) -> str:
    source = block.source.replace(ADDRESS, url)
    assert source != block.source or "connect(" not in source, f"{page.name}: connect to {ADDRESS}"
    printed = io.StringIO()
    with _limited(), contextlib.redirect_stdout(printed), contextlib.chdir(folder):
        exec(compile(source, str(page), "exec"), {"__name__": "__main__"})
    return printed.getvalue()


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """A program that hangs is stopped."""

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError(f"it runs for more than {RUN_S_MAX} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(RUN_S_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run_command(block: Block, url: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "CLARION_URL": url, "COLUMNS": "100", "PATH": path, "TZ": "UTC"}
    environment.pop("FORCE_COLOR", None)
    done = subprocess.run(
        ["bash", "-c", block.source],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=RUN_S_MAX,
        check=False,
    )
    return done.stdout.decode()


def _with(blocks: Callable[[Path], list[Block]]) -> list[Path]:
    return [page for page in PAGES if blocks(page)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all programs."""
    with ServerProcess(tmp_path_factory.mktemp("documents") / "data", environment=SMALL) as server:
        yield server.url


@pytest.mark.parametrize("page", _with(_programs), ids=lambda page: page.stem)
def test_the_programs_of_a_page_print_what_it_shows(page: Path, url: str, tmp_path: Path) -> None:
    _compare(page, [(block, _run_program(page, block, url, tmp_path)) for block in _programs(page)])


@pytest.mark.parametrize("page", _with(_commands), ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    """A fresh server for each page: dead messages are numbered from 1."""
    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        _compare(page, [(block, _run_command(block, server.url, tmp_path)) for block in _commands(page)])


def test_no_mark_is_lost() -> None:
    """A mark that the patterns above do not find would be a program that nobody runs."""
    for page in PAGES:
        marks = page.read_text("utf-8").count("<!-- run -->")
        consoles = len(_CONSOLE.findall(page.read_text("utf-8")))
        assert marks == len(_programs(page)) + consoles, page.name


def test_what_differs_is_noticed() -> None:
    """The comparison is not so kind that nothing could fail it."""
    assert _constant("a  0000000dc2a2ef9b0002000000000001\n") == _constant("a   0000000dc2a2ef9b0002000000000009")
    assert _constant("delivered 2") != _constant("delivered 3")
    assert _constant("tea\ncoffee") != _constant("coffee\ntea")


@pytest.mark.parametrize("folder", ["core", "nodes/message_manager", "client", "spark", "pipelines"])
def test_the_architecture_names_every_module_of(folder: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    start = text.index(f"| in `{folder}/` |")
    table = text[start : text.index("\n\n", start)]
    firsts = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = {name.rstrip("/") for first in firsts for name in re.findall(r"`([\w/]+)`", first)}
    there = {
        path.stem
        for path in (ROOT / "src/clarion" / folder).iterdir()
        if path.suffix in ("", ".py") and not path.name.startswith("__")
    }
    assert named == there
