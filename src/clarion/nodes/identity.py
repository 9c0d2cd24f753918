"""Who a node is: its numbers, and a source of ids that never repeats one of an earlier life (B-11).

The last start of the id generator is kept in `<data>/node.json`, written before the first id of a new
start is used. A file that is missing, damaged or of other numbers is no reason not to start: the clock
alone then keeps ids apart, and the log says so.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import msgspec

from clarion import ids
from clarion.errors import ConfigurationError, NoPermission
from clarion.nodes.logging import WARNING, event

FILE = "node.json"
_log = logging.getLogger("clarion.node")


class _Kept(msgspec.Struct):
    site: int
    node: int
    last_start_ms: int


class Identity:
    """Ids of one run of one node."""

    def __init__(self, name: str, generator: ids.IdGenerator, path: Path | None = None) -> None:
        self.name = name
        self._generator = generator
        self._path = path
        self._kept_ms = 0
        self._keep()

    @classmethod
    def begin(cls, name: str, site: int, node: int, data: Path, now_ms: int | None = None) -> Identity:
        """The identity of a run that begins now. Raises `NoPermission` if `data` cannot be made."""
        try:
            data.mkdir(parents=True, exist_ok=True)
        except PermissionError:
            raise NoPermission(path=str(data)) from None
        except OSError as error:
            raise ConfigurationError(detail=f"the data directory {data}: {error.strerror}") from None
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        path = data / FILE
        try:
            generator = ids.IdGenerator.begin(site, node, now_ms, _last_start_ms(path, site, node))
        except ValueError as error:
            raise ConfigurationError(detail=str(error)) from None
        return cls(name, generator, path)

    def next_id(self) -> int:
        """A producer or session id never issued before."""
        identity = self._generator.next_producer()
        if self._generator.start_ms != self._kept_ms:
            self._keep()
        return identity

    def _keep(self) -> None:
        self._kept_ms = self._generator.start_ms
        if self._path is None:
            return
        kept = _Kept(self._generator.site, self._generator.node, self._kept_ms)
        temporary = self._path.with_name(FILE + ".new")
        try:
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(kept) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            event(_log, WARNING, "identity_not_kept", path=self._path, error=error)


def _last_start_ms(path: Path, site: int, node: int) -> int:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return 0
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        event(_log, WARNING, "identity_unreadable", path=path, error=error)
        return 0
    if (kept.site, kept.node) != (site, node):
        event(_log, WARNING, "identity_changed", path=path, site=kept.site, node=kept.node)
        return 0
    if not 0 <= kept.last_start_ms < ids.EPOCH_MS + (1 << 39):  # beyond 2042: no start that we had
        event(_log, WARNING, "identity_unreadable", path=path, error=f"a start at {kept.last_start_ms}")
        return 0
    return kept.last_start_ms
