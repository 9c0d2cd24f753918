"""The few things that an archive needs of a file system, and how a local one does them.

Two implementations, `LocalFiles` and `HadoopFiles` (`hadoop.py`), one suite of tests for both. Paths are relative to
the folder of the archive, with `/` between.

Guarantees
    1. `create` makes a file with all of its bytes, durable, or does nothing: of several that create the same name
       exactly one is told True. A process that dies in it leaves at most a temporary file.
    2. What `settle` has returned for survives a loss of power.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from clarion.errors import BadArgument
from clarion.pipelines.archive import steps
from clarion.pipelines.archive.layout import TEMPORARY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RENAMES_MAX = 10


class Found(NamedTuple):
    """A file that is there."""

    path: str
    bytes: int
    modified_ms: int


class Files(Protocol):
    """A folder of some file system."""

    @property
    def uri(self) -> str:
        """As Spark and pyarrow know it."""

    def create(self, path: str, data: bytes) -> bool:
        """Make a file; False, and nothing is done, if it is there already."""

    def read(self, path: str) -> bytes:
        """All of a file. Raises `FileNotFoundError`."""

    def names(self, folder: str) -> list[str]:
        """Of what is in a folder; none if there is no folder. They have no comma and space in them."""

    def walk(self, folder: str) -> Iterator[Found]:
        """All files below a folder."""

    def store(self, path: str, chunks: Iterable[bytes]) -> None:
        """Make a file of any size, durable, or none; one of that name is replaced."""

    def move(self, source: str, target: str) -> None:
        """Rename a file; the folder of the target is made."""

    def settle(self, paths: Iterable[str]) -> None:
        """Make files, and their names, durable."""

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it. What is not there is passed over."""

    def prune(self, folder: str, oldest_ms: int) -> None:
        """Delete empty folders below a folder in which nothing happened since then."""


class LocalFiles:
    """A folder of this machine, or of a POSIX file system that is mounted."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    @property
    def uri(self) -> str:
        return str(self.root)

    def create(self, path: str, data: bytes) -> bool:
        target = self.root / path
        self._make(target.parent)
        unfinished = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            steps.at("archive.writing")
            try:
                os.link(unfinished, target)  # fails if the name is taken: a rename would not
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP):
                    detail = "the file system has no hard links; give the path as file:///… to go through Hadoop"
                    raise BadArgument(argument="path", detail=f"{self.root}: {detail}") from error
                raise
            _sync_folder(target.parent)
            return True
        finally:
            unfinished.unlink(missing_ok=True)

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.root / folder)  # noqa: PTH208 (names are wanted)
        except FileNotFoundError:
            return []

    def walk(self, folder: str) -> Iterator[Found]:
        for parent, _, names in os.walk(self.root / folder):
            for name in names:
                path = Path(parent, name)
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # it was moved meanwhile
                yield Found(path.relative_to(self.root).as_posix(), status.st_size, status.st_mtime_ns // 1_000_000)

    def store(self, path: str, chunks: Iterable[bytes]) -> None:
        target = self.root / path
        self._make(target.parent)
        unfinished = target.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            with unfinished.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(target)
            _sync_folder(target.parent)
        finally:
            unfinished.unlink(missing_ok=True)

    def move(self, source: str, target: str) -> None:
        for left in reversed(range(RENAMES_MAX)):
            self._make((self.root / target).parent)
            try:
                (self.root / source).rename(self.root / target)
                break
            except FileNotFoundError:  # a vacuum may have deleted the folder, which was empty
                if not left or not (self.root / source).exists():
                    raise

    def settle(self, paths: Iterable[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            file = self.root / path
            _sync(file, os.O_RDONLY)
            folders.add(file.parent)
        for folder in folders:
            _sync_folder(folder)

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # somebody may still write there: the next vacuum comes
        else:
            target.unlink(missing_ok=True)

    def prune(self, folder: str, oldest_ms: int) -> None:
        for parent, _, _ in os.walk(self.root / folder, topdown=False):
            path = Path(parent)
            if path != self.root / folder and path.stat().st_mtime_ns // 1_000_000 <= oldest_ms:
                try:
                    path.rmdir()
                except OSError:
                    pass  # it is not empty

    def _make(self, folder: Path) -> None:
        """A folder and those above it, each durable in the one above."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            _sync_folder(one.parent)


def files_of(spark: SparkSession | None, path: str) -> Files:
    """The folder that a path names: a local one without a scheme, or with a scheme one that Hadoop knows.

    Without Spark, `file:` is local too, and others raise `BadArgument`.
    """
    if ":/" not in path:
        return LocalFiles(path)
    if spark is not None:
        from clarion.pipelines.archive.hadoop import HadoopFiles

        return HadoopFiles(spark, path)
    if path.startswith("file:"):
        return LocalFiles(unquote(urlsplit(path).path))
    raise BadArgument(argument="path", detail=f"{path} is not local: this needs Spark")


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)
