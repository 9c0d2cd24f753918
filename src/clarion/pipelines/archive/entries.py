"""What the log of an archive says: entries, and the checkpoint that stands for many of them.

JSON, so that anybody can read it; docs/formats/archive.md has every field. An entry carries everything that was
decided; applying it (`state.py`) decides nothing. A reader passes over fields that it does not know, and refuses a
format that is newer than its own.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from clarion.errors import BadArgument, NewerFormat

FORMAT = 1

Kind = Literal["append", "compact", "retain", "vacuum", "pin", "unpin"]


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file: rows of one date and one destination, ascending by sequence."""

    path: str
    """Below the folder of the archive."""
    date: str
    destination: str
    rows: int
    bytes: int
    first: int
    """Least sequence …"""
    last: int
    """… and greatest."""
    time_first_us: int
    time_last_us: int
    incarnation: int = 0
    """A destination that was dropped and made again counts its sequences anew: then this is one more."""
    bodies: tuple[str, ...] = ()
    """Files of the large bodies of its rows."""


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody reads the archive as it was after an entry: its files stay until then, or until it is unpinned."""

    name: str
    number: int
    until_ms: int
    purpose: dict[str, Any] = {}
    """Whatever its owner wants to find again."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of an archive: all of it, or nothing."""

    kind: Kind
    time_ms: int
    format: int = FORMAT
    writer: str = ""
    """Who appended: the id of a streaming query …"""
    batch: int = -1
    """… and the number of its batch."""
    add: tuple[DataFile, ...] = ()
    remove: tuple[str, ...] = ()
    """Paths of files that are no longer part of the archive; they lie there until a vacuum."""
    forget: tuple[str, ...] = ()
    """Paths of removed files that are gone from the disk."""
    pin: Pin | None = None
    unpin: str = ""


class Removed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that is no longer part of the archive, and not known to be gone."""

    path: str
    number: int
    """Of the entry that removed it."""
    time_ms: int
    bodies: tuple[str, ...] = ()


class Written(msgspec.Struct, omit_defaults=True):
    """What is known of a writer."""

    batch: int = -1
    """The last one that it appended."""
    ends: dict[str, tuple[int, int]] = {}
    """For each destination: incarnation, and the greatest sequence that it appended of that."""


class Checkpoint(msgspec.Struct, frozen=True):
    """Everything that the entries up to `number` say."""

    number: int
    files: list[DataFile]
    removed: list[Removed]
    writers: dict[str, Written]
    pins: list[Pin]
    format: int = FORMAT


_Said = TypeVar("_Said", Entry, Checkpoint)


class _Format(msgspec.Struct):
    format: int = FORMAT


def encoded(said: Entry | Checkpoint) -> bytes:
    """The bytes of its file."""
    return msgspec.json.encode(said) + b"\n"


def decoded(data: bytes, kind: type[_Said], path: str) -> _Said:
    """The inverse of `encoded`; `path` is for error texts. Raises `NewerFormat`, or `BadArgument` if it is damaged."""
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version > FORMAT:
            raise NewerFormat(path=path, version=version, supported=FORMAT)
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise BadArgument(argument=path, detail=f"the log of the archive is damaged: {error}") from None
