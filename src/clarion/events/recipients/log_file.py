"""A log file as a recipient: one line an event, in JSON (CloudEvents) or text.

    LogFile("/var/log/events.jsonl", bytes_max=100 * MIB, keep=10)

    text:   TIME ID SEVERITY TYPE SOURCE DATA        (SOURCE in quotes if it has spaces)

Guarantees
    1. What is confirmed is in the file, and with `sync` (the default) on the disk.
    2. An event stands in the file once: its id is known from the lines that are in the file already, also after a
       crash and over a rotation. Known are the last `limits.EVENT_IDS_REMEMBERED` ids; only the last deliveries can
       come again.
    3. Lines are whole. What a full disk or a crash cut off is removed, before anything is written behind it.
    4. A file that somebody moved away (logrotate) is let go, and a new one made.

Rules
    1. One writer: the file is locked, because removing half a line must never remove somebody else's.
    2. After a failed sync nobody knows what the disk has: the lines of that delivery are removed and written again,
       never synced again as if nothing had happened.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from clarion import limits
from clarion.errors import BadArgument, NotDelivered
from clarion.events.recipients import log_lines
from clarion.events.recipients.base import Blocking
from clarion.events.recipients.recent import RecentIds

if TYPE_CHECKING:
    from clarion.events.event import Event

KEEP_DEFAULT = 7


class LogFile(Blocking):
    """Appends to `path`; older files are `path.1` (the youngest) to `path.<keep>`.

    `bytes_max`: a new file before a delivery would make this one larger. `daily`: a new one every day (UTC).
    """

    def __init__(
        self,
        path: Path | str,
        *,
        name: str | None = None,
        filter: str = "",
        format: Literal["json", "text"] = "json",
        bytes_max: int | None = None,
        daily: bool = False,
        keep: int = KEEP_DEFAULT,
        sync: bool = True,
        mode: int = 0o640,
        batch_events_max: int = limits.EVENT_BATCH_EVENTS_DEFAULT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        path = Path(path)
        if format not in ("json", "text"):
            raise BadArgument(argument="format", detail=f"{format!r} is neither json nor text")
        if bytes_max is not None and bytes_max < 1:
            raise BadArgument(argument="bytes_max", detail=f"{bytes_max} is less than 1")
        if not 0 <= keep <= 10_000:
            raise BadArgument(argument="keep", detail=f"{keep} is not 0 to 10000")
        super().__init__(name if name is not None else path.name, filter, batch_events_max)
        self.path = path
        self._line = log_lines.json_line if format == "json" else log_lines.text_line
        self._id_of = log_lines.id_of_json if format == "json" else log_lines.id_of_text
        self._bytes_max = bytes_max
        self._daily = daily
        self._keep = keep
        self._sync = sync
        self._mode = mode
        self._clock = clock
        self._descriptor = -1
        self._day = 0
        self._whole_bytes: int | None = None
        """Where a write that failed began: before the next one the file is cut to this."""
        self._known: RecentIds | None = None

    # --- in the recipient's own thread ----------------------------------------------------------------

    def start(self) -> None:
        """Nothing yet: the disk need not be there when the event system starts."""

    def process(self, events: Sequence[Event]) -> None:
        try:
            self._append(events)
        except OSError as error:
            raise NotDelivered(reason=f"{self.path}: {error.strerror or error}") from error

    def stop(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, events: Sequence[Event]) -> None:
        self._ready()
        known = self._known
        assert known is not None
        fresh: dict[str, bytes] = {}
        for event in events:
            if event.id not in known and event.id not in fresh:
                fresh[event.id] = self._line(event) + b"\n"
        if not fresh:
            return
        lines = b"".join(fresh.values())
        if self._is_due(len(lines)):
            self._rotate()
        self._write(lines)
        known.update(fresh)

    def _write(self, lines: bytes) -> None:
        """All of it, or nothing of it."""
        self._whole_bytes = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            if self._sync:
                os.fdatasync(self._descriptor)
        except OSError:
            with suppress(OSError):  # tried again before the next write, and looked for after a restart
                self._cut()
            raise
        self._whole_bytes = None

    def _cut(self) -> None:
        """Remove what a failed write left."""
        if self._whole_bytes is not None:
            if os.fstat(self._descriptor).st_size > self._whole_bytes:
                os.ftruncate(self._descriptor, self._whole_bytes)
            self._whole_bytes = None

    # --- which file ------------------------------------------------------------------------------------

    def _ready(self) -> None:
        """The file at `path` is open, and whole."""
        if self._descriptor >= 0:
            self._cut()
            if not self._is_ours():
                self.stop()
        if self._descriptor < 0:
            self._open()

    def _is_ours(self) -> bool:
        """`path` still leads to the open file."""
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        ours = os.fstat(self._descriptor)
        return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, self._mode)
        try:
            self._take_lock(descriptor)
            status = os.fstat(descriptor)
            self._recover(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._day = _day(status.st_mtime if status.st_size else self._clock())

    def _take_lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotDelivered(reason=f"{self.path}: another process writes it") from None

    def _recover(self, descriptor: int) -> None:
        """Remove what a crash cut off; learn the ids in the file, and, the first time, in the one before it."""
        maximum = max(limits.EVENT_IDS_REMEMBERED, 4 * self.batch_events_max)
        found = log_lines.read_tail(descriptor, self._id_of, maximum)
        if found.whole_bytes < os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, found.whole_bytes)
        if self._sync:
            # After a crash the system shows lines that never reached the disk: they must, before a double is dropped.
            os.fsync(descriptor)
            self._sync_directory()
        if self._known is None:
            before: list[str] = []
            if len(found.ids) < maximum:
                before = self._ids_before(maximum)
            self._known = RecentIds([*before, *found.ids], maximum)

    def _ids_before(self, maximum: int) -> list[str]:
        try:
            descriptor = os.open(_numbered(self.path, 1), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            return log_lines.read_tail(descriptor, self._id_of, maximum).ids
        finally:
            os.close(descriptor)

    # --- rotation --------------------------------------------------------------------------------------

    def _is_due(self, more_bytes: int) -> bool:
        size = os.fstat(self._descriptor).st_size
        if not size:
            self._day = _day(self._clock())
            return False
        if self._daily and _day(self._clock()) != self._day:
            return True
        return self._bytes_max is not None and size + more_bytes > self._bytes_max

    def _rotate(self) -> None:
        """A crash at any step leaves all files there, under their old numbers or the next ones."""
        if self._keep:
            _numbered(self.path, self._keep).unlink(missing_ok=True)
            for number in range(self._keep - 1, 0, -1):
                with suppress(FileNotFoundError):
                    _numbered(self.path, number).rename(_numbered(self.path, number + 1))
            self.path.rename(_numbered(self.path, 1))
        else:
            self.path.unlink(missing_ok=True)
        self.stop()
        self._open()

    def _sync_directory(self) -> None:
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _day(moment_s: float) -> int:
    return datetime.fromtimestamp(moment_s, UTC).toordinal()
