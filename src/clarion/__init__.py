"""Clarion carries event messages that must not be lost. Public names only.

    async with clarion.connect("clarion://localhost:7750") as connection: ...
    with clarion.sync.connect("clarion://localhost:7750") as connection: ...

Rule: importing this package imports nothing else. A name is loaded when it is first used, so a program that only
wants an error class does not pay for numpy or an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clarion import errors as errors
    from clarion import sync as sync
    from clarion.client import Connection as Connection
    from clarion.client import Session as Session
    from clarion.client import connect as connect
    from clarion.client.consumer import BatchConsumer as BatchConsumer
    from clarion.client.consumer import Consumer as Consumer
    from clarion.client.received import ReceivedBatch as ReceivedBatch
    from clarion.client.received import ReceivedMessage as ReceivedMessage
    from clarion.client.transaction import Prepared as Prepared
    from clarion.client.transaction import PreparedHandle as PreparedHandle
    from clarion.errors import AuthenticationFailed as AuthenticationFailed
    from clarion.errors import Blocked as Blocked
    from clarion.errors import ClarionError as ClarionError
    from clarion.errors import ConfigurationError as ConfigurationError
    from clarion.errors import ConnectionFailed as ConnectionFailed
    from clarion.errors import ConnectionLost as ConnectionLost
    from clarion.errors import JournalError as JournalError
    from clarion.errors import NoReply as NoReply
    from clarion.errors import ProtocolError as ProtocolError
    from clarion.errors import RequestError as RequestError
    from clarion.errors import Timeout as Timeout
    from clarion.errors import TransactionRolledBack as TransactionRolledBack
    from clarion.message import Message as Message

    __version__: str

_ERRORS = (
    "AuthenticationFailed",
    "Blocked",
    "ClarionError",
    "ConfigurationError",
    "ConnectionFailed",
    "ConnectionLost",
    "JournalError",
    "NoReply",
    "ProtocolError",
    "RequestError",
    "Timeout",
    "TransactionRolledBack",
)
_HOMES = {
    "BatchConsumer": "clarion.client.consumer",
    "Connection": "clarion.client",
    "Consumer": "clarion.client.consumer",
    "Message": "clarion.message",
    "Prepared": "clarion.client.transaction",
    "PreparedHandle": "clarion.client.transaction",
    "ReceivedBatch": "clarion.client.received",
    "ReceivedMessage": "clarion.client.received",
    "Session": "clarion.client",
    "connect": "clarion.client",
    **dict.fromkeys(_ERRORS, "clarion.errors"),
}
_MODULES = ("errors", "sync")

__all__ = [
    "AuthenticationFailed",
    "BatchConsumer",
    "Blocked",
    "ClarionError",
    "ConfigurationError",
    "Connection",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "JournalError",
    "Message",
    "NoReply",
    "Prepared",
    "PreparedHandle",
    "ProtocolError",
    "ReceivedBatch",
    "ReceivedMessage",
    "RequestError",
    "Session",
    "Timeout",
    "TransactionRolledBack",
    "__version__",
    "connect",
    "errors",
    "sync",
]


if not TYPE_CHECKING:  # else a checker would believe in every name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        value: object
        if name in _MODULES:
            value = import_module(f"clarion.{name}")
        elif name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        elif name == "__version__":
            from importlib.metadata import version

            value = version("clarion")
        else:
            raise AttributeError(f"module 'clarion' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
