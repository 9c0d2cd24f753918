"""`clarion pipeline` without a server and without Spark: help, list, usage, one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from clarion.pipelines.folder import Folder


def clarion(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    command = [sys.executable, "-m", "clarion", "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**clean, **environment}, timeout=60)


def assert_one_line(done: subprocess.CompletedProcess[str], text: str) -> None:
    assert done.returncode in (1, 2), done
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert text in done.stderr and not done.stdout


@pytest.mark.parametrize("verb", ["list", "run", "status", "stop"])
def test_d11_every_verb_has_help(verb: str) -> None:
    done = clarion(verb, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: clarion pipeline {verb}"), done


def test_d11_list_names_pipelines_and_jobs() -> None:
    pytest.importorskip("pyspark")
    done = clarion("list", "--json")
    assert done.returncode == 0 and done.stderr == "", done
    found = {one["name"]: one for one in msgspec.json.decode(done.stdout)}
    assert set(found) >= {"alerts", "archive", "archive.compact", "copy", "deadletters", "replay", "statistics"}
    assert found["archive"]["kind"] == "stream" and found["archive.compact"]["kind"] == "job"
    shown = clarion("list")
    assert all(name in shown.stdout for name in found)


def test_d11_wrong_names_and_settings_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    config = tmp_path / "p.toml"
    config.write_text("[pipeline.copy]\nsource = 3\n")
    here = ("--checkpoint", str(tmp_path / "pipelines"))
    assert_one_line(clarion("run", "nothing", *here), "CLN-210 pipeline: there is no nothing; there are alerts")
    assert_one_line(clarion("run", "copy", *here), "CLN-401 defaults: [pipeline.copy] it needs the setting `source`")
    assert_one_line(
        clarion("run", "copy", "--config", str(config), *here), f"{config}: [pipeline.copy] source: Expected"
    )
    assert_one_line(clarion("run", "copy", "--config", str(tmp_path / "no.toml"), *here), "it cannot be read")
    assert_one_line(clarion("run", "copy", "--set", "x", *here), "'x' is not key=value")
    assert_one_line(clarion("status", "copy", *here), "copy has not run in")
    assert_one_line(clarion("stop", "copy", *here), "copy does not run in")
    assert_one_line(clarion("stop", "..", *here), "CLN-201")
    assert not (tmp_path / "pipelines").exists()


def test_d11_without_java_one_line_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    settings = ("--set", "source=queue:a", "--set", "target=queue:b", "--checkpoint", str(tmp_path))
    done = clarion("run", "copy", *settings, JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.returncode == 1 and done.stderr.startswith("error: CLN-406 Spark needs Java 17 or newer: "), done
    assert done.stderr.count("\n") == 1
    assert clarion("status", "--checkpoint", str(tmp_path)).stdout.count("failed") == 1


def test_d11_status_shows_how_each_is(tmp_path: Path) -> None:
    assert clarion("status", "--checkpoint", str(tmp_path / "nothing"), "--json").stdout.strip() == "[]"
    ended, alive = Folder(tmp_path / "ended"), Folder(tmp_path / "alive")
    ended.take("ended")
    ended.write({"name": "ended", "state": "running", "rows": 12_345, "pid": 99_999})
    ended.release()
    alive.take("alive")
    try:
        alive.write(
            {"name": "alive", "state": "running", "rows": 7, "lag": None, "queries": [{"name": "q", "rows": 7}]}
        )
        told = {one["name"]: one for one in msgspec.json.decode(_status(tmp_path, "--json").stdout)}
        assert (told["ended"]["state"], told["alive"]["state"]) == ("died", "running")
        table = _status(tmp_path).stdout
        assert "12,345" in table and "died" in table and all(len(line) <= 80 for line in table.splitlines())
        one = _status(tmp_path, "alive").stdout
        assert "state  running" in one and "lag    -" in one and "name  q" in one
        asked = clarion("stop", "alive", "--timeout", "0", "--checkpoint", str(tmp_path))
        assert asked.returncode == 75 and "CLN-503" in asked.stderr and "still runs" in asked.stderr
        assert alive.is_stop_wanted()
    finally:
        alive.release()


def _status(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return clarion("status", *arguments, "--checkpoint", str(folder))


def test_d11_help_imports_no_spark() -> None:
    code = (
        "import sys\nfrom clarion.cli.main import main\n"
        "try:\n    main(['pipeline', 'run', '--help'])\nfinally:\n    sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not {"pyspark", "msgspec", "rich", "clarion.pipelines"} & set(done.stderr.split())
