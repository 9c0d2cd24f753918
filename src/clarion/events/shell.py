"""Events from the command line: recorded in a section that everybody on the host shares, one at a time."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from clarion import ids
from clarion.events import look as looking
from clarion.events.event import Severity
from clarion.events.host_memory import HostMemory, Sizes
from clarion.events.memory.directory import Directory
from clarion.events.recorder import decide
from clarion.events.shared_routes import SharedRoutes
from clarion.message import PropertyValue

WAIT_S = 30.0


def emit(
    path: Path,
    type_: str,
    *,
    source: str | None,
    severity: str,
    data: Any,
    attributes: dict[str, PropertyValue],
) -> str:
    """Record one event; its id, when it is in persistent memory."""
    directory = Directory.open(path)
    section = HostMemory(directory, Sizes()).take_shell(WAIT_S)
    shared = SharedRoutes(path)
    try:
        level = Severity.of(severity)
        time_ns = time.time_ns()
        source = source or f"{socket.gethostname()}/shell"
        bits, epoch, flags = decide(shared.current(), type_, source, level, time_ns, attributes)
        sequence = section.record(
            type_,
            source,
            level,
            time_ns,
            data,
            attributes or None,
            bits=bits,
            epoch=epoch,
            flags=flags,
            wait_s=WAIT_S,
        )
        return ids.format_id(section.producer + sequence)
    finally:
        section.close()
        shared.close()
        directory.close()


def look(path: Path) -> dict[str, Any]:
    """The status of the system in this directory, whether somebody delivers or not."""
    return looking.status(path)
