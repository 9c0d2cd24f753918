"""The ready-made recipients. Each is imported when it is first asked for: nobody pays for what is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Blocking, Later, Named, OwnThread, Partly, Recipient
    from .clarion_server import ClarionServer
    from .command import Command
    from .function import Function, as_recipient
    from .log_file import LogFile
    from .multiplexer import Multiplexing
    from .people import People
    from .settings import from_table
    from .statistics import Statistics
    from .webhook import Webhook

_HOMES = {
    "Blocking": "base",
    "ClarionServer": "clarion_server",
    "Command": "command",
    "Function": "function",
    "Later": "base",
    "LogFile": "log_file",
    "Multiplexing": "multiplexer",
    "Named": "base",
    "OwnThread": "base",
    "Partly": "base",
    "People": "people",
    "Recipient": "base",
    "Statistics": "statistics",
    "Webhook": "webhook",
    "as_recipient": "function",
    "from_table": "settings",
}

__all__ = [
    "Blocking",
    "ClarionServer",
    "Command",
    "Function",
    "Later",
    "LogFile",
    "Multiplexing",
    "Named",
    "OwnThread",
    "Partly",
    "People",
    "Recipient",
    "Statistics",
    "Webhook",
    "as_recipient",
    "from_table",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
