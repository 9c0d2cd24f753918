"""Two cooperating systems with real rings, sockets and a real witness (A-10)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clarion import limits
from clarion.errors import BadArgument, ConnectionFailed, ConnectionLost, EventError
from clarion.events.link.client import Link
from clarion.events.link.frames import Hello, Role, Type
from clarion.events.pair.memory_file import MemoryFile
from clarion.events.pair.messages import Memory, Policy
from clarion.events.pair.note_file import NoteFile
from clarion.events.pair.states import Bond, Duty, Right
from clarion.instruments import Arming, Call
from tests.unit.events.link_harness import until
from tests.unit.events.pair_harness import RECIPIENT, TIMING, Recipient, System

Make = Callable[[Policy], tuple[System, System, Recipient]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    systems: list[System] = []

    def make(policy: Policy) -> tuple[System, System, Recipient]:
        recipient = Recipient()
        a = System("a", "b", tmp_path, recipient, policy)
        b = System("b", "a", tmp_path, recipient, policy)
        systems.extend((a, b))
        # Each must know where the other listens: made once for the addresses, then for good.
        for system in (a, b):
            system.make()
            system.pair.close()
            system.ring.close()
            system.section.close()
        a.partner_address, b.partner_address = b.address, a.address
        for system in (a, b):
            system.restart()
        return a, b, recipient

    yield make
    for system in systems:
        system.crash()


def whole(*systems: System) -> Callable[[], bool]:
    return lambda: all(
        system.pair.bond is Bond.PAIRED and system.pair.right is Right.HOLDING and system.pair.duty is Duty.IDLE
        for system in systems
    )


def is_paired(system: System) -> bool:
    return system.pair.bond is Bond.PAIRED


@pytest.mark.parametrize("policy", Policy)
def test_a10_a_pair_comes_together_and_delivers(make: Make, policy: Policy) -> None:
    a, b, recipient = make(policy)
    until(whole(a, b))
    recipient.open.clear()
    for number in range(20):
        a.emit(str(number))
        b.emit(str(number))
    assert a.section.next_sequence == b.section.next_sequence == 21  # both have both when emit returned
    recipient.open.set()
    until(lambda: len(recipient.got) == 40 and a.empty and b.empty)
    assert {(by, text[0]) for by, _, text in recipient.got} == {("a", "a"), ("b", "b")}
    assert a.engine.reports.count("paired") == 1


def test_a10_when_one_dies_the_other_replays_and_gives_back(make: Make) -> None:
    a, b, recipient = make(Policy.WITNESS)
    until(whole(a, b))
    recipient.open.clear()
    for number in range(30):
        a.emit(str(number))
    a.crash()
    until(lambda: b.pair.duty is Duty.ACTING)
    assert b.pair.bond is Bond.DEGRADED
    recipient.open.set()
    until(lambda: len(recipient.got) == 30)
    recipient.open.clear()
    b.emit("alone")
    a.restart()
    until(whole(a, b))
    a.emit("again")
    recipient.open.set()
    until(lambda: a.empty and b.empty)
    assert recipient.texts()[:30] == [f"a {number}" for number in range(30)]
    assert sorted(recipient.texts()[30:]) == ["a again", "b alone"]
    assert [by for by, _, _ in recipient.got[:30]] == ["b"] * 30
    assert "acting" in b.engine.reports
    assert "gave_back" in b.engine.reports


def test_a10_both_die_and_the_first_to_return_waits_for_what_the_other_did(make: Make) -> None:
    a, b, recipient = make(Policy.WITNESS)
    until(whole(a, b))
    recipient.open.clear()
    for number in range(10):
        a.emit(str(number))
    a.crash()
    recipient.open.set()
    until(lambda: len(recipient.got) == 10)
    b.crash()
    a.restart()
    until(lambda: a.pair.right is Right.OWED)
    assert not a.pair.may_deliver()
    b.restart()
    until(whole(a, b))
    until(lambda: a.empty and b.empty)
    assert recipient.texts() == [f"a {number}" for number in range(10)]


def test_a10_a_restart_within_the_lease_goes_on_at_once(make: Make) -> None:
    a, b, recipient = make(Policy.WITNESS)
    until(whole(a, b))
    a.emit("before")
    a.crash()
    a.restart()
    until(whole(a, b))
    a.emit("after")
    until(lambda: a.empty and b.empty)
    assert recipient.texts() == ["a before", "a after"]
    assert "acting" not in b.engine.reports


def test_a10_under_wait_nobody_acts_until_an_operator_says_so(make: Make) -> None:
    a, b, recipient = make(Policy.WAIT)
    until(whole(a, b))
    b.pair.take_over()
    until(lambda: "takeover_refused" in b.engine.reports)  # it was heard of a moment ago
    recipient.open.clear()
    for number in range(5):
        a.emit(str(number))
    a.crash()
    until(lambda: b.pair.bond is Bond.DEGRADED)
    recipient.open.set()
    deadline_s = time.monotonic() + 2 * TIMING.takeover_ms / 1000
    while time.monotonic() < deadline_s:
        assert b.pair.duty is Duty.IDLE
        time.sleep(0.02)
    b.pair.take_over()
    until(lambda: len(recipient.got) == 5)
    a.restart()
    until(whole(a, b))
    until(lambda: a.empty and b.empty)
    assert recipient.texts() == [f"a {number}" for number in range(5)]


def test_a10_under_wait_a_system_that_starts_alone_waits_for_a_word(make: Make) -> None:
    a, b, recipient = make(Policy.WAIT)
    until(whole(a, b))
    a.crash()
    b.crash()
    a.restart()
    a.emit("waits")
    until(lambda: a.pair.bond is Bond.DEGRADED)
    assert a.pair.right is Right.WAITING
    assert recipient.got == []
    a.pair.proceed()
    until(lambda: recipient.texts() == ["a waits"])


def test_a10_under_replay_silence_is_enough(make: Make) -> None:
    a, b, recipient = make(Policy.REPLAY)
    until(whole(a, b))
    recipient.open.clear()
    for number in range(5):
        a.emit(str(number))
    a.crash()
    recipient.open.set()
    until(lambda: len(recipient.got) == 5)
    a.restart()
    until(whole(a, b))
    until(lambda: a.empty and b.empty)
    assert set(recipient.texts()) == {f"a {number}" for number in range(5)}


def test_a10_with_the_partner_away_events_are_recorded_and_sent_later(make: Make) -> None:
    a, b, _ = make(Policy.WITNESS)
    until(whole(a, b))
    b.crash()
    until(lambda: a.pair.bond is Bond.DEGRADED)
    a.recipient.open.clear()
    for number in range(50):
        a.emit(str(number))
    b.restart()
    until(whole(a, b))
    assert b.section.next_sequence - b.section.first_sequence == 50
    a.recipient.open.set()
    until(lambda: a.empty and b.empty)
    assert "degraded" in a.engine.reports


def test_a10_engines_tell_each_other_confirmations_and_notes(make: Make) -> None:
    a, b, _ = make(Policy.WITNESS)
    until(whole(a, b))
    a.pair.note(b"other recipients")
    a.emit("one")
    assert b.engine.notes[-1] == b.pair.partner_note == b"other recipients"  # when emit returned
    until(lambda: bool(b.engine.partner_confirmations))
    assert b.engine.partner_confirmations[0] == [(RECIPIENT, [(a.ring.producer, 1, 2)])]
    a.crash()
    b.crash()
    b.restart()
    assert b.pair.partner_note == b"other recipients"  # whoever else is there
    a.note = b"still other ones"
    a.restart()
    until(lambda: b.pair.partner_note == b"still other ones")
    with pytest.raises(BadArgument):
        a.pair.note(bytes(1 << 20))


def test_a10_a_pair_is_not_whole_before_the_partner_has_recorded_the_note(make: Make) -> None:
    a, b, _ = make(Policy.WITNESS)
    a.crash()
    a.note = None  # nothing that delivers has begun
    a.restart()
    until(lambda: a.pair.keeper.whole and b.pair.bond is Bond.PAIRED)
    a.emit("copied, but not promised")
    assert b.section.next_sequence == 2
    assert not is_paired(a)
    kept: list[bool] = []

    def look() -> None:
        kept.append(b.pair.partner_note == b"recipients" and not is_paired(a))

    b.registry.arm(Arming("events.pair.after_note_kept", Call(look)))
    a.pair.note(b"recipients")
    until(lambda: is_paired(a))
    assert kept == [True]  # it was durable, and a did not call itself paired before it heard that


def test_a10_a_note_that_cannot_be_understood_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = make(Policy.WITNESS)
    until(whole(a, b))
    before = b.pair.partner_note

    def refuse(note: bytes) -> bytes:
        raise EventError(detail="what is this?")

    monkeypatch.setattr(b.engine, "partner_note", refuse)
    a.pair.note(b"?")
    until(lambda: a.pair.bond is Bond.DEGRADED)
    a.emit("alone")
    assert b.pair.partner_note == before
    monkeypatch.undo()
    until(lambda: a.pair.bond is Bond.PAIRED)
    assert b.pair.partner_note == b"?"


def test_a10_what_a_run_that_is_over_left_behind_does_not_undo_a_newer_note(make: Make) -> None:
    a, b, _ = make(Policy.WITNESS)
    until(whole(a, b))
    a.crash()
    deadline_s = time.monotonic() + 20
    with contextlib.ExitStack() as stack:
        old, new = (Link.connect(b.address, 20, hello=Hello("a", Role.PARTNER, run)) for run in (7, 3))
        stack.callback(old.close)
        stack.callback(new.close)
        assert new.ask(Type.NOTE, b"new", deadline_s)[0] == Type.STORED
        with pytest.raises(ConnectionLost):
            old.ask(Type.NOTE, b"old", deadline_s)
    assert b.pair.partner_note == b"new"


def test_a10_a_note_survives_a_torn_write_and_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "partner-routes"
    file = NoteFile(path)
    size = path.stat().st_size
    assert file.note is None
    for note in (b"first", bytes(limits.EVENT_LINK_NOTE_BYTES_MAX), b"last"):
        file.save(note)
    data = bytearray(path.read_bytes())
    file.save(b"last")
    assert path.read_bytes() == data
    file.close()
    assert len(data) == size  # the room was there from the start
    data[size // 2 + 20] ^= 1  # the last write
    path.write_bytes(data)
    file = NoteFile(path)
    assert file.note == bytes(limits.EVENT_LINK_NOTE_BYTES_MAX)
    file.save(b"next")
    file.close()
    file = NoteFile(path)
    assert file.note == b"next"
    file.close()


def test_a10_a_large_state_is_given_back_in_parts(make: Make) -> None:
    a, b, _ = make(Policy.WITNESS)
    until(whole(a, b))
    b.pair.frame_bytes_max = 2_000
    for number in range(300):
        a.emit(str(number))
    until(lambda: a.empty and b.empty)
    a.recipient.open.clear()
    for number in range(300):
        a.emit(f"second {number}")
    a.crash()
    a.recipient.open.set()
    until(lambda: len(a.recipient.got) == 600)
    a.restart()
    until(whole(a, b))
    until(lambda: a.empty and b.empty)
    assert len(a.recipient.got) == 600


def test_a10_strangers_are_refused(make: Make) -> None:
    a, _, _ = make(Policy.WITNESS)
    for stranger in (Hello("x", Role.PARTNER), Hello("b", Role.MULTIPLEX)):
        with pytest.raises(BadArgument):
            Link.connect(a.address, 10, hello=stranger)


def test_a10_a_pair_has_a_status_and_hands_over_when_it_is_told_to(make: Make) -> None:
    a, b, _ = make(Policy.WITNESS)
    until(whole(a, b))
    status = a.pair.status()
    assert (status["bond"], status["right"], status["duty"]) == ("paired", "holding", "idle")
    assert status["may_deliver"] is True
    a.up = False
    a.engine.stop()
    a.pair.close(hand_over=True)
    a.ring.close()
    a.section.close()
    until(lambda: b.pair.duty is Duty.ACTING)


def test_a10_a_crash_between_applying_and_saying_so_repeats_it(make: Make) -> None:
    a, b, recipient = make(Policy.WITNESS)
    until(whole(a, b))
    recipient.open.clear()
    for number in range(10):
        a.emit(str(number))
    a.crash()
    recipient.open.set()
    until(lambda: len(recipient.got) == 10)
    a.make()
    reached: list[bool] = []

    def stop() -> None:
        reached.append(True)
        raise RuntimeError("stopped here")

    a.registry.arm(Arming("events.pair.after_apply", Call(stop)))
    a.start()
    until(lambda: bool(reached))
    a.crash()
    a.restart()
    until(whole(a, b))
    until(lambda: a.empty and b.empty)
    assert recipient.texts() == [f"a {number}" for number in range(10)]


def test_a10_what_a_pair_remembers_survives_a_torn_write(tmp_path: Path) -> None:
    path = tmp_path / "pair.state"
    file = MemoryFile(path)
    assert file.memory == Memory()
    for epoch in range(1, 4):
        file.save(Memory(epoch, epoch + 1, True))
    file.close()
    data = bytearray(path.read_bytes())
    data[4096 + 10] ^= 1  # the last write
    path.write_bytes(data)
    file = MemoryFile(path)
    assert file.memory == Memory(2, 3, True)
    file.save(Memory(9, 9, False))
    file.close()
    file = MemoryFile(path)
    assert file.memory == Memory(9, 9, False)
    file.close()


def test_a10_a_wrong_address_is_a_failed_connection() -> None:
    with pytest.raises(ConnectionFailed):
        Link.connect(("127.0.0.1", 1), 1, hello=Hello("a", Role.PARTNER))
