"""Fragments make way for everything else, in their order, and nothing waits for ever (B-12, B-13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from clarion import limits
from clarion.instruments import Registry
from clarion.nodes.message_manager.host import MessageManager
from clarion.nodes.message_manager.pacing import Pacing
from clarion.settings import Settings
from clarion.wire.commands import Command
from clarion.wire.frames import Type

NEVER_S = -3_600.0
TOOK_S = 0.002
REST_S = TOOK_S * limits.FRAGMENT_REST_DEFAULT * 1.001


class Disk:
    """What pacing sees of its host: fragments on their way to the disk, when something else was written, the time."""

    def __init__(self, *, others: bool) -> None:
        self.now_s = 100.0
        self.taken: list[tuple[int, bytes]] = []
        self.streaming = SimpleNamespace(pending_bytes=0)
        self.log = SimpleNamespace(others_s=self.now_s + 3_600 if others else NEVER_S)
        self.settings = Settings()
        self.registry = Registry()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.pacing = Pacing(cast(MessageManager, self), self._take, lambda: self.now_s)

    def later(self, wait_ms: float, callback: Callable[[], None]) -> object:
        timer = (self.now_s + wait_ms / 1000, callback)
        self._timers.append(timer)
        return SimpleNamespace(cancel=lambda: self._timers.remove(timer))

    def _take(self, command: Command) -> None:
        self.taken.append((command.session, bytes(command.payload[:1])))
        self.streaming.pending_bytes += len(command.payload)

    def send(self, text: bytes, session: int = 1, size: int = 100) -> None:
        for letter in text:
            payload = memoryview(bytes([letter]) * size)
            self.pacing.handle(Command(Type.FRAGMENT, 0, session, payload))

    def wait(self, seconds: float) -> None:
        """Time passes, and whatever is due is done."""
        self.now_s += seconds + 1e-9
        due = [timer for timer in self._timers if timer[0] <= self.now_s]
        self._timers = [timer for timer in self._timers if timer not in due]
        for _, callback in due:
            callback()

    def commit(self) -> None:
        self.wait(TOOK_S)
        self.streaming.pending_bytes = 0
        self.pacing.step()

    @property
    def waited(self) -> object:
        return self.registry.instrument("mm.fragments_waited").read()

    @property
    def letters(self) -> bytes:
        return b"".join(letter for _, letter in self.taken)


def test_b12_a_lone_body_waits_for_nobody() -> None:
    disk = Disk(others=False)
    disk.send(b"abcd")
    assert disk.letters == b"abcd"
    disk.commit()
    disk.send(b"e")
    assert disk.letters == b"abcde" and disk.waited == 0


def test_b13_beside_others_one_fragment_is_on_its_way_at_a_time() -> None:
    disk = Disk(others=True)
    disk.send(b"abcd")
    for letters in (b"a", b"ab", b"abc", b"abcd"):
        assert disk.letters == letters
        disk.commit()
        disk.wait(REST_S)
    disk.send(b"e")
    assert disk.letters == b"abcde"
    assert disk.waited == 3


def test_b13_beside_others_a_body_rests_several_times_as_long_as_a_fragment_took() -> None:
    disk = Disk(others=True)
    disk.send(b"ab")
    disk.commit()
    disk.wait(REST_S * 0.9)
    assert disk.letters == b"a"
    disk.wait(REST_S * 0.11)
    assert disk.letters == b"ab"
    disk.commit()
    disk.send(b"c")  # it comes during the rest
    assert disk.letters == b"ab"
    disk.wait(REST_S)
    assert disk.letters == b"abc"


def test_b13_a_rest_is_bounded() -> None:
    disk = Disk(others=True)
    disk.send(b"ab")
    disk.wait(60)
    disk.commit()
    disk.wait(limits.FRAGMENT_REST_MS_MAX / 1000)
    assert disk.letters == b"ab"


def test_b13_when_the_others_are_silent_all_goes_on() -> None:
    disk = Disk(others=True)
    disk.send(b"abcd")
    disk.log.others_s = NEVER_S
    disk.commit()
    assert disk.letters == b"abcd"


def test_b13_others_are_about_for_a_moment_after_they_wrote() -> None:
    disk = Disk(others=False)
    disk.log.others_s = disk.now_s
    assert disk.pacing.others_about()
    disk.wait(limits.FRAGMENT_OTHERS_MS / 1000)
    assert not disk.pacing.others_about()


def test_b13_the_journal_grows_gently_only_while_bodies_and_others_are_about_together() -> None:
    disk = Disk(others=False)
    disk.log.others_s = disk.now_s
    assert not disk.pacing.shares()  # small messages alone: they would wait for its room
    disk.send(b"a")
    assert disk.pacing.shares()
    disk.wait(limits.FRAGMENT_OTHERS_MS / 1000)
    disk.log.others_s = disk.now_s
    assert not disk.pacing.shares()
    disk.log.others_s = -1.0
    disk.send(b"b")
    assert not disk.pacing.shares()  # a body alone


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
    for _ in range(2):
        disk.commit()
        disk.wait(REST_S)
    assert disk.taken == [(1, b"a"), (1, b"c")]


@pytest.mark.parametrize("resting", [False, True])
def test_b12_what_waits_when_the_server_stops_is_not_taken(resting: bool) -> None:
    disk = Disk(others=True)
    disk.send(b"abc")
    if resting:
        disk.commit()
    disk.pacing.close()
    disk.commit()
    disk.wait(3_600)
    assert disk.letters == b"a"


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
        disk.wait(REST_S)


# --- bodies that are read -------------------------------------------------------------------------------


async def begun(*reads: asyncio.Task[None]) -> list[bool]:
    """Which of these have their turn."""
    await asyncio.sleep(0)
    return [read.done() for read in reads]


def test_b12_with_nobody_else_about_bodies_are_read_at_once() -> None:
    async def scenario() -> None:
        disk = Disk(others=False)
        reads = [asyncio.create_task(disk.pacing.begin_read()) for _ in range(4)]
        assert await begun(*reads) == [True] * 4
        for _ in reads:
            disk.pacing.end_read()

    asyncio.run(scenario())


def test_b13_what_comes_and_what_is_read_take_turns() -> None:
    async def scenario() -> None:
        disk = Disk(others=True)
        disk.send(b"a")
        reads = [asyncio.create_task(disk.pacing.begin_read()) for _ in range(2)]
        assert await begun(*reads) == [False, False]
        disk.send(b"b")
        disk.commit()
        assert await begun(*reads) == [False, False]
        disk.wait(REST_S)
        assert await begun(*reads) == [True, False]
        disk.wait(TOOK_S)
        disk.pacing.end_read()
        assert await begun(*reads) == [True, False]
        disk.wait(REST_S)
        assert await begun(*reads) == [True, True] and disk.letters == b"a"
        disk.wait(TOOK_S)
        disk.pacing.end_read()
        disk.wait(REST_S)
        assert disk.letters == b"ab"

    asyncio.run(scenario())


def test_b12_a_read_that_is_given_up_holds_nobody_up() -> None:
    async def scenario() -> None:
        disk = Disk(others=True)
        disk.send(b"a")
        waiting, chosen = [asyncio.create_task(disk.pacing.begin_read()) for _ in range(2)]
        assert await begun(waiting, chosen) == [False, False]
        disk.send(b"b")
        waiting.cancel()
        await begun(waiting)
        disk.commit()
        disk.wait(REST_S)  # the turn is given to it …
        chosen.cancel()  # … and it is not there any more
        assert await begun(chosen) == [True]
        disk.wait(limits.FRAGMENT_REST_MS_MAX / 1000)
        assert disk.letters == b"ab"

    asyncio.run(scenario())
