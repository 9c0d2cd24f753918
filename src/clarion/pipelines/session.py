"""A Spark session that suits pipelines: quiet, in UTC, with Clarion's data source.

Theory of operation
    The Java process is started here and not by Spark's builder, for two things. What it prints goes to the folder of
    the pipeline and not to the terminal. And it inherits the lock of that folder: a Python process that is killed
    leaves its Java process behind for a moment, and until that is gone too nobody else runs the pipeline.
    Under spark-submit the Java process is there already, and is taken as it is.

    Spark puts a zip file of its Python modules before all others. Python compiles what it imports from there anew in
    each process: 1.3 s of a processor instead of 0.4 s. On a local master Spark is given a home without that file, and
    its processes find the same modules where they are installed, compiled.

Rules
    1. What `[pipeline.spark]` says has precedence over everything here.
    2. Without Java 17 or newer: one line with a code, before anything is started.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from clarion.errors import ConfigurationError, JavaMissing, MissingExtra
from clarion.pipelines.settings import Run, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
TASK_FAILURES = 4
"""A task is tried so often, also on `local[N]`, where Spark alone would give up at once."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_GATEWAY = "PYSPARK_GATEWAY_PORT"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*(\d+))?\])?")
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_LOG4J = Path(__file__).with_name("log4j2.properties")


def check_java() -> None:
    """Raises `JavaMissing` unless Spark will find a Java that it can use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise JavaMissing(detail="there is no java on the PATH, and no JAVA_HOME")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=30)
        said = done.stderr + done.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(detail=f"{java} does not start: {error}") from None
    found = java_version(said)
    if found is not None and found < JAVA_MIN:
        raise JavaMissing(detail=f"{java} is Java {found}")


def java_version(said: str) -> int | None:
    """The major version in what `java -version` prints; Java 8 calls itself 1.8."""
    match = _VERSION.search(said)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def is_local(master: str) -> bool:
    """Spark runs in one process on this machine."""
    return _LOCAL.fullmatch(master.strip()) is not None


def configuration(run: Run, master: str | None, cores: int) -> dict[str, str]:
    """What Spark is told. `master` None: somebody else has decided."""
    conf = {
        "spark.app.name": f"{run.common.name} {run.name}",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.warehouse.dir": str(run.folder / "warehouse"),
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dclarion.log={run.folder / 'spark.log'}",
    }
    if master is not None:
        conf["spark.master"] = master
        match = _LOCAL.fullmatch(master.strip())
        if match is not None:
            threads = cores if match[1] == "*" else int(match[1] or 1)
            conf["spark.master"] = f"local[{match[1] or 1},{match[2] or TASK_FAILURES}]"
            conf["spark.sql.shuffle.partitions"] = str(2 * threads)
            conf["spark.ui.enabled"] = "false"
            conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    if not is_remote(run.checkpoint):  # a rename is atomic there: 150 ms instead of 210 for a small micro-batch
        conf["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        )
        conf["spark.sql.streaming.checkpoint.fileChecksum.enabled"] = "false"
    given = {key: _text(value) for key, value in run.common.spark.items()}
    if _JAVA_OPTIONS in given:  # options of Java add up, and the last one counts
        given[_JAVA_OPTIONS] = f"{conf[_JAVA_OPTIONS]} {given[_JAVA_OPTIONS]}"
    return {**conf, **given}


def open_session(run: Run, lock: int) -> SparkSession:
    """Start Spark. `lock` is the descriptor that its Java process has too.

    Raises `MissingExtra`, `JavaMissing`, or `ConfigurationError` that says why Spark does not start.
    """
    try:
        import pyspark
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        import clarion.spark
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("clarion"):
            raise
        raise MissingExtra(extra="spark") from None
    is_submitted = _GATEWAY in os.environ
    master = run.common.master or (None if is_submitted else "local[*]")
    if not is_submitted:
        check_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master is not None and is_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            if "SPARK_HOME" not in os.environ:
                os.environ["SPARK_HOME"] = str(home_without_zip(run.folder, Path(pyspark.__file__).parent))
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(configuration(run, master, os.cpu_count() or 1).items()))
    with (run.folder / "spark.out").open("ab") as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            gateway = launch_gateway(conf, {"stdout": out, "stderr": out, "pass_fds": (lock,)})  # type: ignore[no-untyped-call]
            session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, OSError) as error:
            raise ConfigurationError(detail=f"Spark does not start: {_first_line(error)} (see {out.name})") from None
        except Exception as error:  # py4j has no common class, and its texts are traces of Java
            raise ConfigurationError(detail=f"Spark does not start: {_first_line(error)} (see {out.name})") from None
    clarion.spark.register(session)
    return session


def home_without_zip(folder: Path, installed: Path) -> Path:
    """A home of Spark that is the installed one but for its Python modules, made of links."""
    home = folder / "spark-home"
    home.mkdir(exist_ok=True)
    for entry in ("bin", "jars", "sbin", "conf"):
        link = home / entry
        if link.is_symlink():
            link.unlink()
        if (installed / entry).is_dir():
            link.symlink_to(installed / entry)
    return home


def _first_line(error: BaseException) -> str:
    """What went wrong, of an exception whose text may be a Java stack."""
    java = getattr(error, "java_exception", None)
    lines = [line.strip() for line in str(java if java is not None else error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
