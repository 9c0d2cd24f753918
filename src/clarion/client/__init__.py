"""The asyncio client: connections that come back, sessions, consumers. `clarion.sync` is its blocking twin."""

from clarion.client.connection import Connection, ConnectionState, connect
from clarion.client.consumer import BatchConsumer, Consumer
from clarion.client.outbox import Ticket
from clarion.client.received import ReceivedBatch, ReceivedMessage
from clarion.client.session import Session

__all__ = [
    "BatchConsumer",
    "Connection",
    "ConnectionState",
    "Consumer",
    "ReceivedBatch",
    "ReceivedMessage",
    "Session",
    "Ticket",
    "connect",
]
