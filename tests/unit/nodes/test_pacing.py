"""Fragments make way for everything else, in their order, and nothing waits for ever (B-12, B-13)."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from clarion import limits
from clarion.nodes.message_manager.host import MessageManager
from clarion.nodes.message_manager.pacing import Pacing
from clarion.wire.commands import Command
from clarion.wire.frames import Type


class Disk:
    """What pacing sees of its host: fragments on their way to the disk, and when something else was written."""

    def __init__(self, *, others: bool) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self.streaming = SimpleNamespace(pending_bytes=0)
        self.log = SimpleNamespace(others_s=time.monotonic() + 3_600 if others else -3_600.0)
        self.pacing = Pacing(cast(MessageManager, self), self._take)

    def _take(self, command: Command) -> None:
        self.taken.append((command.session, bytes(command.payload[:1])))
        self.streaming.pending_bytes += len(command.payload)

    def send(self, text: bytes, session: int = 1, size: int = 100) -> None:
        for letter in text:
            payload = memoryview(bytes([letter]) * size)
            self.pacing.handle(Command(Type.FRAGMENT, 0, session, payload))

    def commit(self) -> None:
        self.streaming.pending_bytes = 0
        self.pacing.step()

    @property
    def letters(self) -> bytes:
        return b"".join(letter for _, letter in self.taken)


def test_b12_a_lone_body_waits_for_nobody() -> None:
    disk = Disk(others=False)
    disk.send(b"abcd")
    assert disk.letters == b"abcd"


def test_b13_beside_others_one_fragment_is_on_its_way_at_a_time() -> None:
    disk = Disk(others=True)
    disk.send(b"abcd")
    for letters in (b"a", b"ab", b"abc", b"abcd", b"abcd"):
        assert disk.letters == letters
        disk.commit()
    disk.send(b"e")
    assert disk.letters == b"abcde"


def test_b13_when_the_others_are_silent_all_goes_on() -> None:
    disk = Disk(others=True)
    disk.send(b"abcd")
    disk.log.others_s = -3_600.0
    disk.commit()
    assert disk.letters == b"abcd"


def test_b12_what_asks_about_bodies_comes_behind_what_was_sent_before() -> None:
    disk = Disk(others=True)
    disk.send(b"abc")
    disk.pacing.let_in_all()
    assert disk.letters == b"abc"


def test_b12_fragments_of_a_session_that_ended_are_not_taken() -> None:
    disk = Disk(others=True)
    disk.send(b"a")
    disk.send(b"b", session=2)
    disk.send(b"c")
    disk.pacing.ended(2)
    disk.commit()
    disk.commit()
    assert disk.taken == [(1, b"a"), (1, b"c")]


def test_b13_what_waits_is_bounded() -> None:
    disk = Disk(others=True)
    size = limits.FRAGMENT_BYTES_MAX
    fit = limits.FRAGMENTS_PENDING_BYTES_MAX // size
    disk.send(b"x" * (fit + 1), size=size)
    assert len(disk.taken) == 1
    disk.send(b"x", size=size)
    assert len(disk.taken) == fit + 2


@pytest.mark.parametrize("others", [False, True])
def test_b13_a_fragment_that_comes_alone_never_waits(others: bool) -> None:
    disk = Disk(others=others)
    for number in range(5):
        disk.send(b"a")
        assert len(disk.taken) == number + 1
        disk.commit()
