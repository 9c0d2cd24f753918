"""What a partner gives back, put together from its parts: which events it has delivered in our stead.

Rule: parts count only from the first on, and over one connection: a state with a hole would be forgotten.
"""

from __future__ import annotations

from clarion import limits
from clarion.errors import BadFrame
from clarion.events.link.confirmations import Confirmations, unpack_confirmations
from clarion.events.link.frames import FIRST, LAST


class GivenBack:
    """Parts of GIVE_BACK frames; for one thread, the link's."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, list[tuple[int, int, int]]]] = []
        self._source: tuple[object, int] | None = None

    def take(self, link: object, flags: int, payload: memoryview) -> tuple[int, int, Confirmations] | None:
        """One part; with the last of them (epoch, token, everything). Raises `BadFrame`."""
        epoch, token, part = unpack_confirmations(payload)
        source = link, token
        if flags & FIRST:
            self._parts, self._source = [], source
        if source != self._source:
            return None
        self._parts.extend(part)
        if sum(len(ranges) for _, ranges in self._parts) > limits.EVENT_PAIR_STATE_RANGES_MAX:
            raise BadFrame(detail="more is given back than can be")
        if not flags & LAST:
            return None
        whole, self._parts, self._source = self._parts, [], None
        return epoch, token, whole
