"""Compaction, retention and vacuum now and then, in a thread beside the query that writes."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from clarion.pipelines.archive import layout
from clarion.pipelines.archive.compaction import Rewrite
from clarion.pipelines.archive.entries import DataFile
from clarion.pipelines.archive.files import Files, LocalFiles
from clarion.spark import schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("clarion.pipelines.archive")


class Maintenance:
    """Calls `maintain` every so often, and once at the end. What fails is logged, and tried again the next time."""

    def __init__(self, maintain: Callable[[], None], every_ms: int) -> None:
        self._maintain = maintain
        self._every_s = every_ms / 1000
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on, until `close`."""
        if self._every_s:
            self._thread = threading.Thread(target=self._run, name="archive maintenance", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """The last time, then no more."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if self._every_s:
            self._once()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            self._once()

    def _once(self) -> None:
        try:
            self._maintain()
        except Exception:  # the writer goes on
            _log.exception("the maintenance of the archive failed")


def rewriter(spark: SparkSession, files: Files) -> Rewrite | None:
    """How files are compacted: by Spark where pyarrow cannot, None where it can."""
    return None if isinstance(files, LocalFiles) else _BySpark(spark, files).rewrite


class _BySpark:
    def __init__(self, spark: SparkSession, files: Files) -> None:
        self._spark = spark
        self._files = files

    def rewrite(self, group: list[DataFile], path: str) -> int:
        from clarion.pipelines.archive.writing import is_data, micros_in_parquet

        folder = f"{layout.STAGING}/compact-{secrets.token_hex(8)}"
        paths = [f"{self._files.uri}/{one.path}" for one in group]
        ddl = schema.spark_ddl(tuple(schema.BY_NAME))
        try:
            with micros_in_parquet(self._spark):
                frame = self._spark.read.schema(ddl).parquet(*paths).coalesce(1).sortWithinPartitions("sequence")
                frame.write.option("compression", "zstd").parquet(f"{self._files.uri}/{folder}")
            (found,) = [one for one in self._files.walk(folder) if is_data(one)]
            self._files.move(found.path, path)
        finally:
            self._files.remove(folder)
        return found.bytes
