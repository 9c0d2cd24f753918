"""The ledger: who the recipients are, what they have confirmed, what was given up. Durable (A-07, A-08).

ledger = Ledger.open(path, loop)
slot = ledger.add_recipient("log", "severity >= 40")
await ledger.confirm(section, slot, [(1, 257)])
"""

from clarion.events.ledger.dead import DEAD_SECTION, DeadEvent
from clarion.events.ledger.durable import Durable
from clarion.events.ledger.host import Ledger, LedgerStatus
from clarion.events.ledger.state import RecipientRow, SectionRow

__all__ = [
    "DEAD_SECTION",
    "DeadEvent",
    "Durable",
    "Ledger",
    "LedgerStatus",
    "RecipientRow",
    "SectionRow",
]
