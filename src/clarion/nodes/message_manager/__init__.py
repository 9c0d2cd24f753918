"""The message manager: owns destinations, stores, distributes; never talks to clients.

host.py        wiring: bus, journal, recovery, start and stop
log.py         append an entry, apply it, hold its effects until it is durable
publishing.py  from a batch to an entry: doubles, what is missing, answers
room.py        whether something fits now; refused producers, and their resumption
consuming.py   subscriptions, credit, confirmations, returns, ended sessions
delivery.py    whose turn it is, and reading pages off the event loop
upkeep.py      checkpoints, compaction, resumption, rates
requests.py    what administrators ask
"""

from clarion.nodes.message_manager.host import MessageManager

__all__ = ["MessageManager"]
