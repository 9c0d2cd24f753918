"""What Spark is told, and which Java it gets; without starting either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from clarion.errors import JavaMissing
from clarion.pipelines import session
from clarion.pipelines.registry import Pipeline
from clarion.pipelines.settings import PipelineSettings, Run


class _Settings(msgspec.Struct, frozen=True):
    pass


def _run(*_: Any) -> dict[str, Any]:
    return {}


def run(**common: Any) -> Run:
    pipeline = Pipeline(name="x", summary="", settings=_Settings, run=_run)
    return Run("x", pipeline, PipelineSettings(**common), _Settings())


@pytest.mark.parametrize(
    ("master", "told", "partitions"),
    [
        ("local", "local[1,4]", "2"),
        ("local[*]", "local[*,4]", "16"),
        ("local[3]", "local[3,4]", "6"),
        ("local[3, 1]", "local[3,1]", "6"),
        ("spark://a:7077,b:7077", "spark://a:7077,b:7077", None),
        ("yarn", "yarn", None),
    ],
)
def test_d10_where_spark_runs(master: str, told: str, partitions: str | None) -> None:
    conf = session.configuration(run(), master, 8)
    assert conf["spark.master"] == told
    assert conf.get("spark.sql.shuffle.partitions") == partitions
    assert ("spark.driver.host" in conf) == session.is_local(master) == (partitions is not None)


def test_d10_under_spark_submit_the_master_is_not_ours() -> None:
    assert "spark.master" not in session.configuration(run(), None, 8)


def test_d11_settings_of_spark_have_precedence_and_options_of_java_add_up() -> None:
    given = {"spark.sql.session.timeZone": "CET", "spark.driver.extraJavaOptions": "-Xss4m", "spark.ui.enabled": True}
    conf = session.configuration(run(spark=given), "local[2]", 8)
    assert conf["spark.sql.session.timeZone"] == "CET" and conf["spark.ui.enabled"] == "true"
    assert conf["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file://")
    assert conf["spark.driver.extraJavaOptions"].endswith(" -Xss4m")


def test_d11_only_a_local_checkpoint_is_renamed_into_place() -> None:
    key = "spark.sql.streaming.checkpointFileManagerClass"
    assert key in session.configuration(run(), "local[2]", 8)
    assert key not in session.configuration(run(checkpoint="s3a://b/c"), "local[2]", 8)


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("nonsense", None),
    ],
)
def test_d11_the_version_of_java(said: str, major: int | None) -> None:
    assert session.java_version(said) == major


def test_d11_without_a_java_that_spark_can_use_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="no java on the PATH"):
        session.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="does not start"):
        session.check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(JavaMissing, match="is Java 11"):
        session.check_java()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.2\"' >&2\n")
    session.check_java()
