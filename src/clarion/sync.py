"""The blocking twin of the client: `with clarion.sync.connect(url) as connection: …`.

The same names as `clarion.client`, without `await`; threads may share everything.
"""

from clarion.client.blocking import Connection, Session, Ticket, connect
from clarion.client.blocking_consumer import BatchConsumer, Consumer, ReceivedBatch, ReceivedMessage
from clarion.client.connection import ConnectionState
from clarion.client.transaction import Prepared, PreparedHandle

__all__ = [
    "BatchConsumer",
    "Connection",
    "ConnectionState",
    "Consumer",
    "Prepared",
    "PreparedHandle",
    "ReceivedBatch",
    "ReceivedMessage",
    "Session",
    "Ticket",
    "connect",
]
