"""What a multiplexer and those that send to it say beyond storing: small numbers in fields of the link's frames.

HELLO            memory: the way by which events come, the same after a restart of the sender; epoch: `HEARS`
HELLO (answer)   epoch: `CONFIRMS_EARLY` and `FORWARDS`, as the multiplexer is set, and `TELLS_AGAIN`
CONFIRMED        token: who has the events that it names, or that nobody here knows them
NOTE             in the form of CONFIRMED. The sender asks how it is with the events that it names; or, by the token,
                 has heard that a recipient confirmed them, or wants to hear of their producers
RELEASED         the sender will send nothing of a producer below a floor again
"""

from __future__ import annotations

from clarion.events.link import frames
from clarion.events.link.confirmations import Ranges, pack_confirmations, parts_of
from clarion.events.link.server import POST_BYTES_MAX

CONFIRMS_EARLY = 1
FORWARDS = 2
TELLS_AGAIN = 4
"""Of a multiplexer that forwards: until the sender says that it has heard it."""
HEARS = 1
"""Of a sender: it says so."""

OF_RECIPIENT = 0
"""The recipient that is named has confirmed them."""
OF_ALL = 1
"""Everybody here has: they are confirmed for the sender."""
UNKNOWN = 2
"""They are not here, and were not: the sender must send them again."""

HEARD = 3
"""NOTE: the recipient's confirmations of them were heard."""
TELL = 4
"""NOTE: what becomes of the events of these producers is to be told over this connection."""

ASKED = "asked"
"""Instead of a recipient, where it is for nobody."""


def payloads(recipient: str, ranges: Ranges, token: int) -> list[bytes]:
    """As many CONFIRMED or NOTE as are needed."""
    room = POST_BYTES_MAX + frames.HEADER_BYTES
    return [pack_confirmations(part, 0, token) for part in parts_of([(recipient, ranges)], room) if part]


def joined(events: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(producer, sequence) of events in their order, as ranges (producer, first, end)."""
    found: list[tuple[int, int, int]] = []
    for producer, sequence in events:
        if found and found[-1][0] == producer and found[-1][2] == sequence:
            found[-1] = producer, found[-1][1], sequence + 1
        else:
            found.append((producer, sequence, sequence + 1))
    return found
