"""`make` sets up with the fastest Python there is, and with the one on the PATH if that is as good."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "fastest-python"


def _python(folder: Path, name: str, answer: str) -> Path:
    """Something that answers like a Python that was measured; what is measured there is the tool's own business."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def _chosen(*folders: Path) -> str:
    path = os.pathsep.join([*map(str, folders), "/bin"])
    done = subprocess.run(["/bin/sh", TOOL], env={"PATH": path}, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_a_python_that_is_clearly_faster_is_taken(tmp_path: Path) -> None:
    _python(tmp_path, "python3", "echo 0 900000000")
    faster = _python(tmp_path, "python3.13", "echo 0 1")
    assert _chosen(tmp_path) == str(faster)


def test_the_one_on_the_path_is_taken_if_no_other_is_clearly_faster(tmp_path: Path) -> None:
    first = _python(tmp_path, "python3", "echo 0 1")
    _python(tmp_path, "python3.13", "echo 0 1")
    assert _chosen(tmp_path) == str(first)


def test_one_that_cannot_make_environments_or_is_too_old_is_not_taken(tmp_path: Path) -> None:
    _python(tmp_path, "python3", "exit 1")
    _python(tmp_path, "python3.14", "echo 1 1")
    able = _python(tmp_path, "python3.12", "echo 0 2")
    assert _chosen(tmp_path) in (str(able), "/usr/bin/python3")


def test_a_real_one_is_measured(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    assert Path(_chosen(tmp_path)).exists()
