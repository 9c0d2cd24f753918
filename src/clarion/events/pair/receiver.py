"""What comes from the partner over the link, in the thread of the link's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion import limits
from clarion.errors import BadArgument
from clarion.events.link.frames import Heartbeat, Hello, Role
from clarion.events.link.server import Peer

if TYPE_CHECKING:
    from .host import Pair


class Receiver:
    """What the server does with what comes: in its thread."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def hello(self, peer: Peer, hello: Hello) -> Hello:
        pair = self._pair
        if hello.name != pair.partner or hello.role is not Role.PARTNER:
            raise BadArgument(argument="name", detail=f"{hello.name} is not the partner of {pair.name}")
        pair.greeted(hello)
        named = [section.producer for section in hello.sections] or pair.sink.producers()
        held = tuple(pair.sink.held(producer) for producer in named[: limits.EVENT_LINK_SECTIONS_MAX])
        return Hello(
            pair.name, Role.PARTNER, frame_bytes_max=pair.frame_bytes_max, memory=pair.memory_id, sections=held
        )

    def store(self, peer: Peer, section: int, records: list[memoryview]) -> int:
        pair = self._pair
        pair.points.before_store()
        last = pair.sink.store(records)
        pair.points.after_store()
        return last

    def heartbeat(self, peer: Peer, heartbeat: Heartbeat) -> Heartbeat:
        return self._pair.heard(heartbeat)

    def control(self, peer: Peer, kind: int, flags: int, payload: memoryview) -> bool:
        return self._pair.received(peer, kind, flags, payload)

    def lost(self, peer: Peer) -> None:
        """The keepers and the machine notice by themselves."""
