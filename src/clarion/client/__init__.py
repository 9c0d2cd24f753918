"""The asyncio client: connections that come back, sessions, consumers. `clarion.sync` is its blocking twin."""

from clarion.client.connection import Connection, ConnectionState, connect
from clarion.client.consumer import BatchConsumer, Consumer
from clarion.client.options import SendOptions
from clarion.client.outbox import Ticket
from clarion.client.received import ReceivedBatch, ReceivedMessage
from clarion.client.session import Session
from clarion.client.subscription import ReceiveOptions
from clarion.client.transaction import Prepared, PreparedHandle

__all__ = [
    "BatchConsumer",
    "Connection",
    "ConnectionState",
    "Consumer",
    "Prepared",
    "PreparedHandle",
    "ReceiveOptions",
    "ReceivedBatch",
    "ReceivedMessage",
    "SendOptions",
    "Session",
    "Ticket",
    "connect",
]
