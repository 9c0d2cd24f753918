"""Where `clarion receive` puts messages: text lines, JSON lines, files. `flush` makes them safe to confirm."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

from clarion.cli import messages
from clarion.message import Message


class Sink(Protocol):
    def write(self, message: Message) -> None: ...

    def flush(self) -> None: ...


def choose(json: bool, out: Path | None) -> Sink:
    """The sink that the options ask for."""
    if out is not None:
        return Files(out, json)
    return JsonLines() if json else Lines()


class Lines:
    """Bodies as they are, a newline after each; without control characters where a person looks on."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()

    def write(self, message: Message) -> None:
        data = messages.printable(message.body).encode() if self._is_terminal else message.body
        sys.stdout.buffer.write(data + b"\n")

    def flush(self) -> None:
        sys.stdout.buffer.flush()


class JsonLines:
    """One JSON object per line."""

    def write(self, message: Message) -> None:
        sys.stdout.buffer.write(messages.line(messages.facts(message) | messages.body(message.body)))

    def flush(self) -> None:
        sys.stdout.buffer.flush()


class Files:
    """One file per body, named by sequence and id: a message that comes again replaces its file."""

    def __init__(self, directory: Path, json: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._json = json

    def write(self, message: Message) -> None:
        path = self._directory / f"{message.sequence:012d}-{message.id}"
        unfinished = path.with_name(f".{path.name}.part")
        try:
            with unfinished.open("wb") as file:
                file.write(message.body_view)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        said = messages.line(messages.facts(message) | {"file": str(path)}) if self._json else os.fsencode(path) + b"\n"
        sys.stdout.buffer.write(said)

    def flush(self) -> None:
        """The names are in the directory: it has to be on disk too."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        sys.stdout.buffer.flush()
