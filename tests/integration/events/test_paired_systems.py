"""Event systems with a partner, in one process: what the partner has to know of recipients (A-07, A-10)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from clarion import limits
from clarion.errors import LimitReached
from clarion.events import EventSystem, PairSettings
from tests.integration.events.systems import SMALL, Keeper, delivered, delivering


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def open_one(path: Path, recipients: list[Keeper]) -> EventSystem:
    """Its partner is away, and it need not wait for that."""
    pair = PairSettings(partner_name="other", partner=free_address(), listen="127.0.0.1:0", without_witness="replay")
    return EventSystem.open(path, recipients, partner=pair, name="one", **SMALL)


def long_filters(count: int) -> list[Keeper]:
    text = f"source = '{'x' * (limits.SELECTOR_BYTES_MAX - 100)}'"
    return [Keeper(f"filtered-{number}", text) for number in range(count)]


def test_a10_more_recipients_than_a_partner_can_be_told_of_are_refused_at_once(tmp_path: Path) -> None:
    keeper = Keeper("keeper")
    with pytest.raises(LimitReached) as raised:
        open_one(tmp_path / "events", [keeper, *long_filters(9)])
    assert raised.value.code == "CLN-209"
    with open_one(tmp_path / "events", [keeper, *long_filters(8)]) as system:
        system.ready()
        delivering(system)
        emitted = [system.emit("a", source="s")]
        with pytest.raises(LimitReached):
            system.add_recipients(long_filters(9)[8:])
        emitted.append(system.emit("a", source="s"))
        delivered(system)
        assert [event.id for event in keeper.events if event.type == "a"] == emitted
    with pytest.raises(LimitReached):  # those that the directory has count too
        open_one(tmp_path / "events", long_filters(9)[8:])
