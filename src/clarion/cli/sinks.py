"""Where `clarion receive` puts messages: text lines, JSON lines, files. `flush` makes them safe to confirm."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

from clarion.cli import messages
from clarion.errors import BadArgument
from clarion.sync import ReceivedMessage


class Sink(Protocol):
    def write(self, message: ReceivedMessage) -> None: ...

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

    def write(self, message: ReceivedMessage) -> None:
        for chunk in message.stream() if message.is_large else (message.body,):
            sys.stdout.buffer.write(messages.printable(chunk).encode() if self._is_terminal else chunk)
        sys.stdout.buffer.write(b"\n")

    def flush(self) -> None:
        sys.stdout.buffer.flush()


class JsonLines:
    """One JSON object per line."""

    def write(self, message: ReceivedMessage) -> None:
        if message.is_large:
            detail = f"message {message.sequence} has {message.size} bytes: --out DIR writes it to a file"
            raise BadArgument(argument="--json", detail=detail)
        sys.stdout.buffer.write(messages.line(messages.facts(message) | messages.body(message.body)))

    def flush(self) -> None:
        sys.stdout.buffer.flush()


class Files:
    """One file per body, named by sequence and id: a message that comes again replaces its file."""

    def __init__(self, directory: Path, json: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._json = json

    def write(self, message: ReceivedMessage) -> None:
        path = self._directory / f"{message.sequence:012d}-{message.id}"
        if message.is_large:
            message.save(path)  # what an earlier run wrote of it is not read again
        else:
            self._write(path, message)
        said = messages.line(messages.facts(message) | {"file": str(path)}) if self._json else os.fsencode(path) + b"\n"
        sys.stdout.buffer.write(said)

    @staticmethod
    def _write(path: Path, message: ReceivedMessage) -> None:
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

    def flush(self) -> None:
        """The names are in the directory: it has to be on disk too."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        sys.stdout.buffer.flush()
