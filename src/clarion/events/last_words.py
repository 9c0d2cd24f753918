"""Last words: what a process that dies of a fault had to say becomes an event when the next one starts.

    words = install_faulthandler(events, directory)     # reports earlier ones, then opens a file for this process
    ...
    words.close()                                       # or nothing: a clean exit does it

Theory of operation
    Each process has a file of its own, `last-words/PID-TOKEN`, opened and allocated in advance, because a process that
    dies of a fault can open and allocate nothing. `faulthandler` writes the tracebacks of all threads into it. The file
    begins with a line of JSON that says whose it is. Whoever may still write to it holds its lock (flock), so who gets
    the lock knows that nobody does: the words are emitted, and only then the file is removed.

Guarantees
    1. Words are reported once, also by several processes that start at the same time. If the one that reports dies
       between `emit` and the removal of the file, they are reported again with the same `crash_id`.
    2. A clean exit leaves nothing. A process that was killed leaves a file without words, which is removed silently.
    3. Words are written when the disk is full, when no descriptor and no memory is left.
    4. After a fork the child has a file of its own; if it cannot, it writes into its parent's.

Rule: the lock is never given back explicitly while the process lives: a fork shares it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from clarion import limits
from clarion.errors import EventTooLarge, MessageTooLarge
from clarion.events.event import Severity, format_time
from clarion.events.texts import bounded, plain, printable

TYPE_CRASHED = "process.crashed"
FOLDER = "last-words"
_ATTEMPTS_MAX = 16
_HEAD_BYTES_MAX = 4 * limits.KIB


class Emitter(Protocol):
    """What capturing needs of an event system."""

    def emit(self, type: str, /, *, source: str, severity: Severity, data: Any) -> object: ...


class LastWords:
    """The file of this process. `close` when it ends well."""

    def __init__(self, directory: Path, source: str) -> None:
        self._directory = directory
        self._source = source
        self._was_enabled = faulthandler.is_enabled()
        self.path, self._file = _create(directory, source)
        self._pid = os.getpid()
        faulthandler.enable(self._file, all_threads=True)

    def close(self) -> None:
        """Nothing more is recorded, and nothing is left. May be called twice, and in a child that has no file."""
        global _installed
        if self._file.closed or self._pid != os.getpid():
            return
        if _installed is self:
            _installed = None
            faulthandler.disable()
            if self._was_enabled:
                with contextlib.suppress(Exception):  # there may be no stderr
                    faulthandler.enable()
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._file.close()

    def after_fork(self) -> None:
        """In the child: a file of its own, or else the parent's as before."""
        try:
            path, file = _create(self._directory, self._source)
        except OSError:
            return
        faulthandler.enable(file, all_threads=True)
        self._file.close()  # the parent has it open, and its lock, as before
        self.path, self._file, self._pid = path, file, os.getpid()


_installed: LastWords | None = None
_is_registered = False


def install_faulthandler(events: Emitter, path: Path, *, source: str = "") -> LastWords:
    """Report the last words of earlier processes, and open a file for those of this one, under the directory `path`.

    There is one for a process, since there is one `faulthandler`: a second call replaces the first. Tracebacks of
    faults are then no longer on stderr. Raises `OSError` if the file cannot be made.
    """
    global _installed, _is_registered
    if _installed is not None:
        _installed.close()
    report_last_words(events, path)
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    words = LastWords(path, printable(source or program, limits.EVENT_SOURCE_BYTES_MAX))
    _installed = words
    if not _is_registered:
        _is_registered = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)
    return words


def _at_exit() -> None:
    if _installed is not None:
        _installed.close()


def _after_fork() -> None:
    if _installed is not None:
        _installed.after_fork()


def _create(directory: Path, source: str) -> tuple[Path, BinaryIO]:
    """A file with its head written, its space allocated, and its lock held."""
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS_MAX):
        path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
        try:
            # Somebody who looks for words may have found the file before it was locked, and removed it.
            if _lock(file) and _is_linked(path, file):
                os.posix_fallocate(file.fileno(), 0, limits.EVENT_LAST_WORDS_BYTES)
                file.write(_head(source))
                return path, file
        except BaseException:
            path.unlink(missing_ok=True)
            file.close()
            raise
        file.close()
    raise OSError(f"no file in {folder} could be locked")


def _head(source: str) -> bytes:
    """The first line: whose file it is."""
    head = {"pid": os.getpid(), "source": source, "started": format_time(time.time_ns())}
    command = [bounded(argument, 128) for argument in sys.argv[:8]]
    line = json.dumps({**head, "command": command}).encode() + b"\n"
    return line if len(line) <= _HEAD_BYTES_MAX else json.dumps(head).encode() + b"\n"


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_linked(path: Path, file: BinaryIO) -> bool:
    try:
        found, opened = path.lstat(), os.fstat(file.fileno())
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


# --- reporting ------------------------------------------------------------------------------------


def collect_last_words(directory: Path) -> list[dict[str, Any]]:
    """The last words that nobody has reported yet, oldest first, as data of events. Changes nothing."""
    return [data for _, data in _abandoned(directory) if data is not None]


def report_last_words(events: Emitter, directory: Path) -> int:
    """Emit an event for the last words of each process that died, and forget them. Returns how many there were.

    Never raises: what cannot be emitted now stays for the next start.
    """
    count = 0
    for path, data in _abandoned(directory):
        try:
            if data is not None:
                _emit(events, data)
                count += 1
            path.unlink(missing_ok=True)
        except Exception:
            continue
    return count


def _emit(events: Emitter, data: dict[str, Any]) -> None:
    source = data["source"]
    try:
        events.emit(TYPE_CRASHED, source=source, severity=Severity.CRITICAL, data=data)
    except (EventTooLarge, MessageTooLarge):
        small = {name: data[name] for name in ("crash_id", "pid", "time", "reason")}
        events.emit(TYPE_CRASHED, source=source, severity=Severity.CRITICAL, data=small)


def _abandoned(directory: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Files that nobody can write to any more, locked while they are looked at, and the words in them, if any."""
    try:
        found = [(entry.stat(follow_symlinks=False), entry.path) for entry in os.scandir(directory / FOLDER)]
    except OSError:
        return
    for status, name in sorted(found, key=lambda each: (each[0].st_mtime_ns, each[1])):
        path = Path(name)
        if not stat.S_ISREG(status.st_mode):
            continue
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "r+b", buffering=0)
        except OSError:
            continue
        with file:
            if _lock(file) and _is_linked(path, file):
                try:
                    data = _read(path, file)
                except (OSError, ValueError, OverflowError):
                    continue  # a damaged file stays, and is in nobody's way
                yield path, data


def _read(path: Path, file: BinaryIO) -> dict[str, Any] | None:
    """What a file says, or None if nothing was said."""
    content = file.read(limits.EVENT_LAST_WORDS_BYTES).rstrip(b"\0")
    line, _, words = content.partition(b"\n")
    try:
        head = json.loads(line)
        if not isinstance(head, dict):
            raise ValueError("no head")
    except (ValueError, RecursionError):
        head, words = {}, content  # a head that cannot be read hides no words
    text = words.replace(b"\0", b"").decode(errors="replace").strip()
    if not text:
        return None
    command = head.get("command")
    return {
        "crash_id": path.name,
        "pid": plain(head.get("pid"), 16),
        "time": format_time(os.fstat(file.fileno()).st_mtime_ns),
        "source": printable(str(head.get("source") or "unknown"), limits.EVENT_SOURCE_BYTES_MAX),
        "started": plain(head.get("started"), 64),
        "command": bounded(" ".join(map(str, command)) if isinstance(command, list) else "", 512),
        "reason": bounded(text.partition("\n")[0], 256),
        "traceback": bounded(text, limits.EVENT_TEXT_BYTES_MAX),
    }
