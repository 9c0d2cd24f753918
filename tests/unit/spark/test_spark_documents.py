"""docs/reference/spark-columns.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from clarion.errors import BadArgument
from clarion.spark.encoding import SinkDefaults, packed
from clarion.spark.event_columns import DEFAULT
from clarion.spark.formats import parse
from clarion.spark.schema import COLUMNS
from clarion.spark.sink_columns import NAMES

TEXT = (Path(__file__).resolve().parents[3] / "docs/reference/spark-columns.md").read_text("utf-8")
SECTIONS = dict(part.split("\n", 1) for part in TEXT.split("\n## "))


def names(section: str) -> list[str]:
    """The names in the first column of a section's table."""
    cells = re.findall(r"^\| (.+?) \|", SECTIONS[section], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)]


def test_d01_every_column_of_a_source_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", SECTIONS["What a source gives"], re.MULTILINE)
    assert rows == [(column.name, column.ddl, column.meaning) for column in COLUMNS]


def test_d02_every_column_of_a_sink_has_its_row() -> None:
    assert sorted(names("What a sink takes")) == sorted(NAMES)


def test_d01_every_column_of_an_event_has_its_row() -> None:
    assert set(names("Events: `format=cloudevents`")) == set(DEFAULT.names)


def test_d01_the_errors_are_those_that_are_shown() -> None:
    with pytest.raises(BadArgument) as refused:
        packed(
            pa.RecordBatch.from_pydict({"body": ["a", "b"], "priority": [4, 11]}), SinkDefaults(destination="topic:o")
        )
    assert str(refused.value) in TEXT
    rows = pa.RecordBatch.from_pydict({"sequence": [11], "body": [b"zzz"]})
    with pytest.raises(BadArgument) as malformed:
        parse(rows, "json", pa.schema([("n", pa.int64())]), failfast=True)
    assert str(malformed.value) in TEXT
