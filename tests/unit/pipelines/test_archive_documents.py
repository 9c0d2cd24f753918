"""The pages of archive and replay say what the code does (D-04, D-09)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clarion.pipelines import archive, replay
from clarion.pipelines.archive import layout, retention
from clarion.pipelines.archive.compaction import compact
from clarion.pipelines.archive.entries import Checkpoint, DataFile, Entry, Pin, Removed, Written, decoded
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from tests.unit.pipelines.archive_rows import Row, append

DOCS = Path(__file__).resolve().parents[3] / "docs"
FORMAT = (DOCS / "formats/archive.md").read_text("utf-8")


def test_d04_the_ten_lines_of_the_format_read_an_archive(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", FORMAT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    files = LocalFiles(tmp_path)
    for number in range(40):  # beyond a checkpoint
        append(files, [Row("topic:a", number + 1)])
        if number in (20, 36):
            compact(files, files_min=2)
        assert names["files_of"](tmp_path) == sorted(files.root / path for path in Log(files).latest().files)
    assert layout.checkpoint_path(32).partition("/")[2] in files.names(layout.LOG)


def test_d04_every_field_and_the_example_of_the_format_are_right() -> None:
    for struct in (Entry, DataFile, Pin, Checkpoint, Removed, Written):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.encode_name}`" in FORMAT, f"{struct.__name__}.{field.encode_name}"
    (example,) = re.findall(r"^```json\n(.*?)^```$", FORMAT, re.MULTILINE | re.DOTALL)
    (file,) = decoded(example.encode(), Entry, "example").add
    assert layout.folder(file.date, file.destination) == file.path.rpartition("/")[0]


@pytest.mark.parametrize(
    ("page", "settings"), [("archive", archive.Settings), ("replay", replay.Settings)], ids=["archive", "replay"]
)
def test_d04_every_setting_has_its_line(page: str, settings: type[msgspec.Struct]) -> None:
    text = (DOCS / f"guide/pipelines/{page}.md").read_text("utf-8")
    documented = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))))
    assert documented == {field.name for field in msgspec.structs.fields(settings)}


def test_d04_the_jobs_know_what_the_pipeline_is_told() -> None:
    whole = {field.name: field.default for field in msgspec.structs.fields(archive.Settings)}
    for job in archive.PIPELINE.jobs:
        for field in msgspec.structs.fields(job.settings):
            assert whole[field.name] == field.default
    assert whole["grace_ms"] == retention.GRACE_MS
