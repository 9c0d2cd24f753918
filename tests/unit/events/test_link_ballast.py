"""A server that has a ballast serves without any other memory, and takes the ballast again (A-03)."""

from __future__ import annotations

import time
from pathlib import Path

from clarion.events.link.client import Link
from clarion.events.link.frames import Hello, Role
from clarion.events.link.server import Server
from clarion.events.memory import Recorded
from tests.unit.events.link_harness import StoringHandler, new_section, texts_of, until


def test_a03_a_server_uses_the_ballast_of_its_section_and_fills_it_again(tmp_path: Path) -> None:
    section = new_section(tmp_path / "multiplex.ring", "multiplex")
    handler = StoringHandler(section)
    failures = 20
    units: list[int] = []

    def before_store() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            units.append(section.ballast.count())
            raise SystemError if failures % 5 == 0 else MemoryError

    handler.before_store = before_store
    server = Server(handler, ("127.0.0.1", 0), connections_max=2, ballast=section.ballast)
    whole = section.ballast.count()
    server.start()
    try:
        link = Link.connect(server.address, 10.0, hello=Hello("test", Role.PARTNER))
        event = Recorded(7 << 64, 1, 1 << 60, 20, 1, 1, 0, b"", b"text", 1)
        link.put_recorded(7 << 64, [event], time.monotonic() + 10)
        link.await_stored(time.monotonic() + 10)
        assert texts_of(section) == ["text"]
        assert units[0] == whole and min(units) < whole, "each time a unit less"
        assert server.starved == 20
        until(lambda: section.ballast.count() == whole and not section.ballast.missing, "it is whole again")
        link.close()
    finally:
        server.close()
        section.close()
