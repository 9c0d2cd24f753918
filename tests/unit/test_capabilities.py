"""docs/capabilities.md is true: no row is missing, and every named test and page exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"A": 12, "B": 24, "C": 11, "D": 11}
_ROW = re.compile(r"^\| ([A-D]-\d\d) \| (\w+) \| (.+?) \| (.*?) ?\| (.*?) ?\|$", re.MULTILINE)
_TEST = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.MULTILINE)


def _rows() -> list[tuple[str, str, str, str, str]]:
    return _ROW.findall((ROOT / "docs/capabilities.md").read_text())


def _tests() -> set[str]:
    return {name for file in (ROOT / "tests").rglob("test_*.py") for name in _TEST.findall(file.read_text())}


def test_every_row_is_listed_once_and_in_order() -> None:
    wanted = [f"{letter}-{number:02d}" for letter, count in ROWS.items() for number in range(1, count + 1)]
    assert [row[0] for row in _rows()] == wanted


def test_what_is_done_names_tests_that_exist_and_a_page_that_exists() -> None:
    known = _tests()
    for row, status, _text, tests, page in _rows():
        assert status in ("done", "partly", "later"), row
        named = re.findall(r"`(test_\w+)`", tests)
        links = re.findall(r"\]\((.+?)\)", page)
        if status == "later":
            assert not named, f"{row} is said to come later, but names tests"
            continue
        assert named, f"{row} names no test"
        assert set(named) <= known, f"{row} names tests that do not exist: {set(named) - known}"
        assert links, f"{row} names no page"
        assert all((ROOT / "docs" / link).exists() for link in links), f"{row} names no page that exists: {links}"


def test_what_comes_later_says_with_which_step() -> None:
    for row, status, text, _tests, _page in _rows():
        if status != "done":
            assert re.search(r"step \d|steps \d|fault tests", text), f"{row} does not say what is missing until when"


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/README.md"]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert not broken
