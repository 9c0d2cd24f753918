"""The page docs/guide/spark.md is true: its program runs against a real server and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clarion.spark.options import _COMMON, _SINK, _SOURCE
from clarion.testing.server import ServerProcess

PAGE = (Path(__file__).parents[2] / "docs/guide/spark.md").read_text("utf-8")


def test_d01_the_program_of_the_guide_prints_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    printed = io.StringIO()
    with ServerProcess(tmp_path / "data") as server, contextlib.redirect_stdout(printed):
        exec(compile(found[1].replace("clarion://127.0.0.1:7750", server.url), "spark.md", "exec"), {})
    assert printed.getvalue() == found[2]


def test_d01_the_guide_has_every_option() -> None:
    reading, writing = PAGE.split("## Writing")
    assert [name for name in (*_COMMON, *_SOURCE) if f"`{name}`" not in reading] == []
    assert [name for name in (*_COMMON, *_SINK) if f"`{name}`" not in writing] == []
