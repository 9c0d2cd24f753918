"""Names that belong to the system, and who may use them (B-16).

`_DMQ`, `_ADMIN`, `_LOG` and `_CONFIRMATIONS` always exist; other names that begin with `_` are refused to
clients, except those of temporary destinations: everybody may send to them, their owner alone consumes.
"""

from __future__ import annotations

from clarion.message import DestinationName, parse_destination

DEAD, ADMIN, LOG, CONFIRMATIONS = "_DMQ", "_ADMIN", "_LOG", "_CONFIRMATIONS"
KINDS = {DEAD: "queue", ADMIN: "queue", LOG: "topic", CONFIRMATIONS: "topic"}
"""The destinations that always exist."""
TEMPORARY = "_temp."
_RECEIVABLE = frozenset({DEAD, CONFIRMATIONS})


def is_temporary(name: str) -> bool:
    """Is it a name of a temporary destination?"""
    return name.startswith(TEMPORARY)


def sendable(text: str) -> DestinationName:
    """A destination that a client may send to. Raises `BadName`."""
    parsed = parse_destination(text, system=True)
    return parsed if is_temporary(parsed.name) else parse_destination(text)


def receivable(text: str) -> DestinationName:
    """A destination that a client may receive from. Raises `BadName`."""
    parsed = parse_destination(text, system=True)
    if is_temporary(parsed.name) or parsed.name in _RECEIVABLE:
        return parsed
    return parse_destination(text)
