"""The folder of a pipeline: one process has it, everybody may look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clarion.errors import ConfigurationError, PipelineRuns
from clarion.pipelines.folder import Folder, all_of


def test_d11_a_pipeline_runs_once(tmp_path: Path) -> None:
    first, second = Folder(tmp_path / "a"), Folder(tmp_path / "a")
    first.take("a")
    assert second.is_running()
    with pytest.raises(PipelineRuns, match=rf"process {os.getpid()} on \S+ has {tmp_path}"):
        second.take("a")
    first.release()
    assert not second.is_running()
    second.take("a")
    second.release()


def test_d11_a_lock_goes_with_the_last_process_that_has_it(tmp_path: Path) -> None:
    """So a Java process that outlives its Python process keeps others out."""
    folder = Folder(tmp_path / "a")
    lock = folder.take("a")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
    try:
        folder.release()
        assert folder.is_running()
    finally:
        child.communicate(b"\n", timeout=30)
    assert folder.wait_stopped(10.0)


def test_d11_the_status_of_one_that_died_says_so(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a")
    assert folder.read() is None and not folder.is_running()
    folder.take("a")
    assert folder.read() == {"name": "a", "state": "starting"}
    folder.write({"name": "a", "state": "running", "rows": 3})
    assert folder.read() == {"name": "a", "state": "running", "rows": 3}
    folder.release()
    assert folder.read() == {"name": "a", "state": "died", "rows": 3}
    folder.write({"name": "a", "state": "finished"})
    assert folder.read() == {"name": "a", "state": "finished"}


def test_d11_a_stop_is_for_the_run_that_was_asked(tmp_path: Path) -> None:
    folder, other = Folder(tmp_path / "a"), Folder(tmp_path / "a")
    folder.take("a")
    assert not folder.is_stop_wanted()
    other.ask_stop()
    assert folder.is_stop_wanted() and not other.wait_stopped(0.0)
    folder.release()
    other.ask_stop()
    folder.take("a")
    assert not folder.is_stop_wanted()
    folder.release()
    assert other.wait_stopped(0.0)


def test_d11_a_damaged_status_is_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a")
    folder.take("a")
    folder.release()
    (folder.path / "status.json").write_bytes(b'{"name": ')
    assert folder.read() is None


def test_d11_all_folders_that_are_of_pipelines(tmp_path: Path) -> None:
    assert all_of(tmp_path / "nothing") == []
    for name in ("b", "a"):
        folder = Folder(tmp_path / name)
        folder.take(name)
        folder.release()
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    assert [folder.path.name for folder in all_of(tmp_path)] == ["a", "b"]


def test_d11_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ConfigurationError, match="cannot be the folder of a pipeline"):
        Folder(tmp_path / "a" / "b").take("b")
