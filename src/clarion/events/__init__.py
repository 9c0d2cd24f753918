"""Events that must not be lost: recorded at the source whatever happens, delivered until everyone confirms.

    from clarion.events import EventSystem

    events = EventSystem.open("events", recipients=[print])
    events.ready()
    events.emit("disk.full", source="volume/7", severity="error", data={"free_bytes": 0})

Names are imported when they are used, so that a process that only records stays small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clarion.events.capture import EventHandler, install_excepthook, install_faulthandler
    from clarion.events.distribution import RetryPolicy
    from clarion.events.event import Event, Severity
    from clarion.events.multiplexer import Multiplexer
    from clarion.events.recipients.base import Partly, Recipient
    from clarion.events.settings import PairSettings
    from clarion.events.system import EventSystem

__all__ = [
    "Event",
    "EventHandler",
    "EventSystem",
    "Multiplexer",
    "PairSettings",
    "Partly",
    "Recipient",
    "RetryPolicy",
    "Severity",
    "install_excepthook",
    "install_faulthandler",
]

_HOMES = {
    "Event": "event",
    "EventHandler": "capture",
    "EventSystem": "system",
    "Multiplexer": "multiplexer",
    "PairSettings": "settings",
    "Partly": "recipients.base",
    "Recipient": "recipients.base",
    "RetryPolicy": "distribution",
    "Severity": "event",
    "install_excepthook": "capture",
    "install_faulthandler": "capture",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
