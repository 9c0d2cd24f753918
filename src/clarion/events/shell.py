"""Events from the command line: recorded in a section that everybody on the host shares, one at a time."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from clarion import ids
from clarion.events import look as looking
from clarion.events.event import PROPERTY_SEVERITY, PROPERTY_SOURCE, PROPERTY_TIME, Severity, format_time
from clarion.events.host_memory import HostMemory, Sizes
from clarion.events.memory import FLAG_UNDECIDED
from clarion.events.memory.directory import Directory
from clarion.events.shared_routes import SharedRoutes
from clarion.message import Headers, PropertyValue

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
        routes = shared.current()
        properties = {
            PROPERTY_SOURCE: source,
            PROPERTY_SEVERITY: level.text,
            PROPERTY_TIME: format_time(time_ns),
            **attributes,
        }
        bits = routes.decide(Headers(type=type_, properties=properties), time_ns // 1_000_000)
        sequence = section.record(
            type_,
            source,
            level,
            time_ns,
            data,
            attributes or None,
            bits=bits,
            epoch=routes.epoch,
            flags=0 if routes.routes else FLAG_UNDECIDED,
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
