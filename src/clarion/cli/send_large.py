"""`clarion send --file` of a large file: read little by little, with a bar of bytes, and resumed by its key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import typer

from clarion.cli import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from clarion.client.options import SendOptions
    from clarion.sync import Session

STREAMED_BYTES_MIN = 1 << 20
"""Larger files are streamed; smaller ones fit a message."""


def is_large(file: Path | None, key: str | None, count: int, timeout: float | None) -> bool:
    """Whether a file is to be streamed. Raises for options that do not go with that."""
    if key is None and (file is None or count > 1 or file.stat().st_size <= STREAMED_BYTES_MIN):
        return False
    if file is None:
        raise typer.BadParameter("it needs --file F", param_hint="--key")
    if count > 1:
        raise typer.BadParameter("a key is for one message", param_hint="--count")
    if timeout is not None:
        raise typer.BadParameter(
            "a large file waits as long as it takes; --key lets it go on later", param_hint="--timeout"
        )
    return True


def send_large(session: Session, to: str, file: Path, key: str | None, options: SendOptions) -> str:
    """The id of the message, once it is durable."""
    size = file.stat().st_size
    with file.open("rb") as source, show.progress("sending", size) as advance:
        return session.send_stream(to, _Counted(source, advance), size=size, key=key, **options)


class _Counted:
    """A file that tells how much of it was read."""

    def __init__(self, file: BinaryIO, advance: Callable[[int], None]) -> None:
        self._file = file
        self._advance = advance
        self.seekable, self.seek, self.tell = file.seekable, file.seek, file.tell

    def read(self, count: int) -> bytes:
        block = self._file.read(count)
        self._advance(len(block))
        return block
