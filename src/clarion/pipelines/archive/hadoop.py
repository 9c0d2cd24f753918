"""An archive on any file system that Spark knows: HDFS, S3, local ones by `file:///…`; through Hadoop's classes.

Names are made exactly once by `FileContext.rename` without overwriting. That is one step on HDFS and on the stores
that have it; an object store whose rename is not one step must have only one writer at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from clarion.pipelines.archive import steps
from clarion.pipelines.archive.files import Found
from clarion.pipelines.archive.layout import TEMPORARY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXISTS = "FileAlreadyExistsException"
_MISSING = ("FileNotFoundException", "NoSuchFileException")


class HadoopFiles:
    """A folder of a Hadoop file system."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        context: Any = spark.sparkContext
        jvm: Any = context._jvm
        configuration = context._jsc.hadoopConfiguration()
        self._jvm = jvm
        self._gateway = context._gateway
        self._root = jvm.org.apache.hadoop.fs.Path(uri)
        self._system = self._root.getFileSystem(configuration)
        self._root = self._system.makeQualified(self._root)
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), configuration)
        self._uri = str(self._root.toString())

    @property
    def uri(self) -> str:
        return self._uri

    def create(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        if self._system.exists(target):
            return False
        unfinished = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f"{TEMPORARY}{secrets.token_hex(8)}")
        stream = self._system.create(unfinished, True)
        stream.write(bytearray(data))
        stream.hsync()
        stream.close()
        steps.at("archive.writing")
        try:
            self._rename(unfinished, target)
        except Py4JJavaError as error:
            if _is(error, _EXISTS):
                return False
            raise
        finally:
            self._system.delete(unfinished, False)
        return True

    def read(self, path: str) -> bytes:
        try:
            stream = self._system.open(self._path(path))
        except Py4JJavaError as error:
            if _is(error, *_MISSING):
                raise FileNotFoundError(f"{self._uri}/{path}") from None
            raise
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        """In three calls, however many there are: a log may have thousands of entries, and each call costs 0.3 ms."""
        try:
            found = self._system.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if _is(error, *_MISSING):
                return []
            raise
        paths = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(found)
        text = str(self._jvm.scala.runtime.ScalaRunTime.stringOf(paths))
        return [path.rpartition("/")[2] for path in text.removeprefix("Array(")[:-1].split(", ") if path]

    def walk(self, folder: str) -> Iterator[Found]:
        waiting = [(self._path(folder), folder)]
        while waiting:
            path, name = waiting.pop()
            for status in self._listed(path):
                below = f"{name}/{status.getPath().getName()}"
                if status.isFile():
                    yield Found(below, int(status.getLen()), int(status.getModificationTime()))
                else:
                    waiting.append((status.getPath(), below))

    def store(self, path: str, chunks: Iterable[bytes]) -> None:
        target = self._path(path)
        unfinished = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f"{TEMPORARY}{secrets.token_hex(8)}")
        stream = self._system.create(unfinished, True)
        try:
            for chunk in chunks:
                stream.write(bytearray(chunk))
            stream.hsync()
            stream.close()
            self._rename(unfinished, target, "OVERWRITE")
        finally:
            stream.close()
            self._system.delete(unfinished, False)

    def move(self, source: str, target: str) -> None:
        self._system.mkdirs(self._path(target).getParent())
        self._rename(self._path(source), self._path(target))

    def settle(self, paths: Iterable[str]) -> None:
        """What is closed is as durable as the file system makes it."""

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def prune(self, folder: str, oldest_ms: int) -> None:
        self._prune(self._path(folder), oldest_ms)

    def _prune(self, path: Any, oldest_ms: int) -> bool:
        """Delete empty folders below; whether this one is empty now."""
        empty = True
        for status in self._listed(path):
            old = int(status.getModificationTime()) <= oldest_ms
            if status.isFile() or not (self._prune(status.getPath(), oldest_ms) and old):
                empty = False
            else:
                self._system.delete(status.getPath(), False)
        return empty

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path)

    def _listed(self, path: Any) -> list[Any]:
        try:
            return list(self._system.listStatus(path))
        except Py4JJavaError as error:
            if _is(error, *_MISSING):
                return []
            raise

    def _rename(self, source: Any, target: Any, how: str = "NONE") -> None:
        kind = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._gateway.new_array(kind, 1)
        options[0] = getattr(kind, how)
        self._context.rename(source, target, options)


def _is(error: Py4JJavaError, *names: str) -> bool:
    return str(error.java_exception.getClass().getSimpleName()) in names
