"""Names in the folder of an archive: pure, and the only place that knows them.

    _log/00000000000000000017.json              entry 17
    _log/00000000000000000032.checkpoint.json   everything that entries 1 to 32 say
    _staging/NAME/…                             files that Spark is writing
    data/date=2026-11-16/destination=topic%3Aorders/NAME.parquet
    data/date=2026-11-16/long=MD5/NAME.parquet  a destination whose name is too long for a folder
    bodies/2026-11-16/ID-NAME.body              a large body, under the id of its message

Rules
    1. A name is never used for two files, not even one after the other.
    2. Folders that begin with `_` are passed over by Spark, pyarrow, DuckDB and others that read folders of Parquet.
    3. The date is that of the column `time`, in UTC. Escaping is Spark's, and somewhat more of it: what reads
       `key=value` folders sees the destination itself.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, date, datetime
from urllib.parse import unquote

LOG, STAGING, DATA, BODIES = "_log", "_staging", "data", "bodies"
PLAIN_BYTES_MAX = 80
"""A longer name of a destination is not put into the name of a folder: escaped it may be three times as long."""
TEMPORARY = ".writing-"
"""Begins the name of a file in `_log` that is not complete."""
DAY_US = 86_400_000_000

_NUMBER = re.compile(r"(\d{20})(\.checkpoint)?\.json")
_UNSAFE = re.compile(r"[\x00-\x7f]")
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~")


def entry_path(number: int) -> str:
    """Of an entry of the log."""
    return f"{LOG}/{number:020}.json"


def checkpoint_path(number: int) -> str:
    """Of the checkpoint that holds everything up to this entry."""
    return f"{LOG}/{number:020}.checkpoint.json"


def parse_log_name(name: str) -> tuple[int, bool] | None:
    """The number, and whether it is a checkpoint, of a file in `_log`; None for other files."""
    found = _NUMBER.fullmatch(name)
    return (int(found[1]), found[2] is not None) if found else None


def escaped(value: str) -> str:
    """A value in the name of a folder. Not ASCII stays as it is: Spark reads `%XX` as one character."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in _SAFE else f"%{ord(found[0]):02X}", value)


def unescaped(value: str) -> str:
    """The inverse of `escaped`."""
    return unquote(value, errors="strict")


def is_long(destination: str) -> bool:
    """Whether the folder of a destination has a digest instead of its name."""
    return len(destination.encode()) > PLAIN_BYTES_MAX


def digest(destination: str) -> str:
    """What the folder of a long name has instead."""
    return hashlib.md5(destination.encode(), usedforsecurity=False).hexdigest()


def folder(day: str, destination: str) -> str:
    """Where the files of a date and a destination are."""
    key = f"long={digest(destination)}" if is_long(destination) else f"destination={escaped(destination)}"
    return f"{DATA}/date={day}/{key}"


def data_path(day: str, destination: str, name: str) -> str:
    """Of a data file."""
    return f"{folder(day, destination)}/{name}.parquet"


def body_path(day: str, message_id: str, name: str) -> str:
    """Of the large body of a message."""
    return f"{BODIES}/{day}/{message_id}-{name}.body"


def body_owner(path: str) -> str:
    """The id of the message that a body belongs to."""
    return path.rpartition("/")[2].partition("-")[0]


def day_of(time_us: int) -> str:
    """The UTC date of a time in Unix microseconds."""
    return date.fromordinal(date(1970, 1, 1).toordinal() + time_us // DAY_US).isoformat()


def today(now_ms: int) -> date:
    """The UTC date of a time in Unix milliseconds."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).date()
