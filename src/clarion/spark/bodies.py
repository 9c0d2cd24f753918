"""Large bodies: a row has a reference (column `large`), and this opens it."""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING, Self

from clarion.errors import NoSuchStream
from clarion.spark import connecting
from clarion.spark.options import RECONNECT_S
from clarion.spark.references import parse_reference

if TYPE_CHECKING:
    from clarion import sync
    from clarion.client.bodies import BlockingReader


class LargeBody(io.RawIOBase):
    """A large body as a binary file that is read from its beginning to its end; nothing but a few fragments is in
    memory. Reading all of it checks the checksum of its sender. Closing it closes its connection."""

    def __init__(self, connection: sync.Connection, reader: BlockingReader) -> None:
        self._connection = connection
        self._reader = reader

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return self._reader.size

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._reader.offset

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self._reader.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._connection.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_body(url: str, reference: str, *, reconnect_timeout: float = RECONNECT_S) -> LargeBody:
    """The body that `reference` (column `large`) stands for: `with open_body(url, reference) as file: file.read(n)`.

    It is there until its message is confirmed by everybody: for a streaming query, until its micro-batch is committed.
    Raises `NoSuchStream` after that, and `BadArgument` for what is no reference.
    """
    wanted = parse_reference(reference)
    connection = connecting.connect(url, reconnect_timeout, "spark body")
    try:
        session = connection.session()
        for message in session.browse(wanted.destination, start=wanted.sequence, count=1):
            large = message.headers.large
            if message.sequence == wanted.sequence and large is not None and large[0] == wanted.stream:
                return LargeBody(connection, session.open_body(message))
        raise NoSuchStream(stream=wanted.stream.hex(), destination=wanted.destination)
    except BaseException:
        connection.close()
        raise
