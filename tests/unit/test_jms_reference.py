"""docs/reference/jms.md is true: rows name tests, tests have rows, sections are in order, B-04 is there in full."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/jms.md").read_text("utf-8")
_NAME = re.compile(r"test_b04_jms_((?:\d+_)+)[a-z]\w*")
_SECTION = re.compile(r"\d+(\.\d+){1,3}")
_REFUSAL = re.compile(r"unsupported|not supported|missing|later|planned|partly", re.IGNORECASE)

B_04 = (
    "Queue, topic", "Durable subscription", "Shared subscription", "Shared durable subscription", "Message selector",
    "Priority", "Time to live", "Delivery delay", "Reply-to", "Correlation", "Redelivered flag and count", "Browsing",
    "Temporary destinations", "AUTO_ACKNOWLEDGE", "CLIENT_ACKNOWLEDGE", "DUPS_OK_ACKNOWLEDGE",
    "Individual acknowledgement", "Message groups",
)  # fmt: skip
"""Everything that row B-04 promises."""

Row = list[str]
Section = tuple[int, ...]


def table(title: str) -> list[Row]:
    """The rows below a heading, without the two of the head."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in rows[2:] if row]


def section_of(text: str) -> Section:
    assert _SECTION.fullmatch(text), text
    return tuple(map(int, text.split(".")))


def suite() -> dict[str, bool]:
    """The tests of the suite, and whether they show where Clarion differs."""
    found: dict[str, bool] = {}
    for path in sorted((ROOT / "tests/conformance").glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                assert node.name not in found, f"{node.name} is there twice"
                marks = [mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)]
                found[node.name] = "differs" in marks
    return found


def named(row: Row) -> str:
    return row[2].strip("`")


def test_b04_every_row_names_a_test_and_every_test_has_one_row() -> None:
    rules = [named(row) for row in table("Rules")]
    assert sorted(rules) == sorted(suite())


@pytest.mark.parametrize("row", table("Rules"), ids=named)
def test_b04_a_test_has_the_section_of_its_row(row: Row) -> None:
    match = _NAME.fullmatch(named(row))
    assert match is not None, row
    assert section_of(row[0]) == tuple(map(int, match[1].strip("_").split("_")))
    assert len(row) == 3 and len(row[1]) > 10


@pytest.mark.parametrize("title", ["Rules", "Where Clarion differs", "What does not apply"])
def test_b04_sections_are_in_order(title: str) -> None:
    sections = [section_of(row[0]) for row in table(title)]
    assert sections == sorted(sections) and sections


def test_b04_everything_of_the_row_is_there_and_tested() -> None:
    features = {row[0]: row for row in table("How it is said in Python")}
    tested = {row[0] for row in table("Rules")}
    for feature in B_04:
        row = features[feature]
        assert not _REFUSAL.search(" ".join(row)), row
        assert row[1] and set(row[2].split(", ")) <= tested, row


def test_b04_differences_are_those_that_tests_show() -> None:
    shown = {name for name, differs in suite().items() if differs}
    listed = {row[2].strip("`") for row in table("Where Clarion differs") if len(row) > 2 and row[2]}
    assert listed == shown


def test_b04_what_does_not_apply_has_a_reason_and_is_not_tested() -> None:
    tested = {row[0] for row in table("Rules")}
    for row in table("What does not apply"):
        assert len(row) == 3 and all(row), row
        assert row[0] not in tested, row
