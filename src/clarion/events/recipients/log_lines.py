"""Lines of log files: an event as text, and the ids of the lines that a file ends with.

Guarantees
    1. A line of ours has no line break and no zero byte in it, whatever is in the event.
    2. `read_tail` finds where the whole lines end, and reads a bounded part of the file, from its end. A line that
       somebody damaged (empty pages after a power loss) has no id, so its event is written again; it is never removed,
       because what follows it may be confirmed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from clarion import limits
from clarion.events import cloudevents

if TYPE_CHECKING:
    from clarion.events.event import Event

_BLOCK_BYTES = 1 << 20


class _Identified(msgspec.Struct):
    id: str


_decoder = msgspec.json.Decoder(_Identified)
_TEXT_ID = re.compile(rb"\S+ (\S+) ")
_PLAIN = re.compile(r"[^\s\"\\]+")


class Tail(NamedTuple):
    """The end of a log file."""

    ids: list[str]
    """Of its last lines, oldest first."""
    whole_bytes: int
    """Where its whole lines end."""


def json_line(event: Event) -> bytes:
    """CloudEvents JSON, without the end of line."""
    line = cloudevents.to_structured(event)
    if (
        b"\n" in line or b"\r" in line
    ):  # between the members of data that somebody encoded: inside text they are escaped
        line = line.replace(b"\r", b" ").replace(b"\n", b" ")
    return line


def text_line(event: Event) -> bytes:
    """`TIME ID SEVERITY TYPE SOURCE DATA name=value …`, without the end of line."""
    words = [event.time, event.id.replace(" ", "_"), event.severity.text.upper(), event.type, _word(event.source)]
    if event.content_type:
        words.append(_data(event))
    words += [f"{_word(name)}={_word(str(value))}" for name, value in event.attributes.items()]
    return " ".join(words).encode("utf-8", "backslashreplace")


def _word(text: str) -> str:
    """As it is if that is one printable word; else in quotes, escaped as JSON is."""
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    return _escaped(text)


def _escaped(text: str) -> str:
    return _printable(msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode())


def _printable(text: str) -> str:
    """JSON text with the escapes that JSON does not ask for, but a terminal and a reader of lines do."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _data(event: Event) -> str:
    """On one line: text in quotes, JSON as it was recorded if that is one line, bytes as a literal."""
    data = event.data
    if isinstance(data, str):
        return _escaped(data)
    if isinstance(data, bytes):
        return repr(data)
    return _printable(msgspec.json.encode(data).decode())


def id_of_json(line: bytes) -> str | None:
    """The id of a line that we wrote; None for one of somebody else."""
    try:
        return _decoder.decode(line).id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def id_of_text(line: bytes) -> str | None:
    """The same of a line of text."""
    found = _TEXT_ID.match(line)
    return found[1].decode("utf-8", "replace") if found else None


def read_tail(descriptor: int, id_of: Callable[[bytes], str | None], ids_max: int) -> Tail:
    """The last ids of a file, and where it must be cut."""
    size = os.fstat(descriptor).st_size
    whole_bytes = size
    newest_first: list[str] = []
    ends_whole = False
    for start, line in _lines_backwards(descriptor, size):
        if not ends_whole and start + len(line) == size:
            whole_bytes = start if line else size  # the last piece: empty if the file ends with a line's end
            ends_whole = True
            continue
        if len(newest_first) >= ids_max:
            break
        identity = id_of(line) if b"\0" not in line else None
        if identity is not None:
            newest_first.append(identity)
    return Tail(newest_first[::-1], whole_bytes)


def _lines_backwards(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Where each line begins and what it holds, without its end, from the last one on; the first may be missing."""
    at = size
    behind = b""
    while at > max(0, size - limits.EVENT_LOG_TAIL_BYTES_MAX):
        begin = max(0, at - _BLOCK_BYTES)
        block = os.pread(descriptor, at - begin, begin) + behind
        end = len(block)
        while (line_end := block.rfind(b"\n", 0, end)) >= 0:
            yield begin + line_end + 1, block[line_end + 1 : end]
            end = line_end
        behind = block[:end]
        at = begin
    if at == 0 and size:
        yield 0, behind
