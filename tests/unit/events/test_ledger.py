"""The ledger: recipients and their slots, confirmations, dead events, values (A-07, A-08)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from clarion import limits
from clarion.errors import (
    BadArgument,
    BadName,
    InternalFault,
    JournalFailed,
    LimitReached,
    NoSuchDeadEvent,
    NoSuchRecipient,
    RecipientOwes,
    RecordDamaged,
)
from clarion.events.distribution import Confirm, Pipeline, RetryPolicy
from clarion.events.ledger import DEAD_SECTION, Ledger
from clarion.journal import MemoryStore
from clarion.testing.faulty_disk import FaultyDisk

from .ledger_harness import SEGMENT_BYTES, Opened, canonical, event

S = 77 << 64


def opened(store: MemoryStore | None = None) -> tuple[Opened, Ledger]:
    made = Opened(store or MemoryStore(SEGMENT_BYTES))
    return made, made.ledger


def give_up(ledger: Ledger, at: int, *, slot: int = 0, body: bytes = b"data") -> list[bool]:
    told: list[bool] = []
    ledger.give_up(S, slot, at, "no", 3, event(at, body=body), told.append, now_ms=5)
    return told


# --- recipients -------------------------------------------------------------------------------------------


def test_a07_a_recipient_keeps_its_slot_and_a_new_filter_begins_an_epoch() -> None:
    store = MemoryStore(SEGMENT_BYTES)
    made, ledger = opened(store)
    assert (ledger.add_recipient("log", "a = 1"), ledger.add_recipient("mail"), ledger.epoch) == (0, 1, 2)
    assert (ledger.add_recipient("log", "a = 1"), ledger.epoch) == (0, 2)
    assert (ledger.add_recipient("log", "a = 2"), ledger.epoch) == (0, 3)
    assert ledger.routing(0) == []
    assert ledger.routing(1) == [(0, "a = 1")]
    assert ledger.routing(2) == [(0, "a = 1"), (1, "")]
    assert ledger.routing(3) == [(0, "a = 2"), (1, "")]
    before = canonical(ledger)
    made.run()
    ledger.close()
    _, again = opened(store)
    assert canonical(again) == before
    assert again.recipient("log").filter == "a = 2"
    with pytest.raises(NoSuchRecipient):
        again.recipient("nobody")
    with pytest.raises(BadName):
        again.add_recipient("two words")
    with pytest.raises(BadArgument):
        again.add_recipient("long", "x" * (limits.SELECTOR_BYTES_MAX + 1))


def test_a07_removing_one_that_owes_is_explicit_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    made, ledger = opened()
    ledger.add_recipient("log")
    with pytest.raises(RecipientOwes) as raised:
        ledger.remove_recipient("log", owed=12, now_ms=5)
    assert raised.value.facts == {"recipient": "log", "count": 12} and ledger.recipients()
    with caplog.at_level(logging.WARNING):
        durable = ledger.remove_recipient("log", owed=12, now_ms=5, force=True)
    assert "12 events" in caplog.text
    made.run()
    assert durable.done and ledger.recipients() == []
    (row,) = ledger.recipients(removed=True)
    assert (row.owed, row.removed, row.removed_ms) == (12, 2, 5)
    assert ledger.routing(1) == [(0, "")] and ledger.routing(2) == []
    assert not ledger.owes(S, 0, 1, 0b1, 1)
    with pytest.raises(NoSuchRecipient):
        ledger.remove_recipient("log", owed=0, now_ms=5)


def test_a07_a_slot_is_used_again_only_when_no_record_can_mean_its_last_holder() -> None:
    made, ledger = opened()
    ledger.adopt_section(S, "one", "normal", oldest_epoch=1)
    for number in range(limits.EVENT_RECIPIENTS_MAX):
        assert ledger.add_recipient(f"r{number}") == number
    ledger.confirm(S, 5, [(1, 100)])
    made.run()
    ledger.remove_recipient("r5", owed=0, now_ms=0)
    removed = ledger.epoch
    with pytest.raises(LimitReached):
        ledger.add_recipient("new")
    ledger.released(S, 50, removed - 1)
    with pytest.raises(LimitReached):
        ledger.add_recipient("new")
    ledger.released(S, 60, removed)
    assert ledger.add_recipient("new") == 5
    assert ledger.settled(S, 5) == (60, [])  # nothing is left of the last holder
    assert not ledger.owes(S, 5, 70, 1 << 5, removed - 1)  # decided when the slot was somebody else's
    assert ledger.owes(S, 5, 70, 1 << 5, ledger.epoch)


# --- confirmations ----------------------------------------------------------------------------------------


def test_a08_a_floor_counts_when_it_is_durable() -> None:
    made, ledger = opened()
    slot = ledger.add_recipient("log")
    ledger.adopt_section(S, "one", "normal")
    made.run()
    told: list[str] = []
    durable = ledger.confirm(S, slot, [(1, 11)], lambda: told.append(f"floor {ledger.floor(S, slot)}"))
    assert ledger.confirm(S, slot, [(20, 31)]) is durable  # of the same turn
    for _ in range(2):
        made.committer.step()  # written into the log, not to the disk
    assert ledger.settled(S, slot) == (11, [(20, 31)])
    assert (ledger.floor(S, slot), durable.done, told) == (1, False, [])
    made.run()
    assert (ledger.floor(S, slot), durable.done, told) == (11, True, ["floor 11"])
    assert [at for at in range(1, 33) if ledger.owes(S, slot, at, 1, 1)] == [*range(11, 20), 31, 32]
    assert not ledger.owes(S, slot, 11, 0b10, 1)
    ledger.confirm(S, slot, [(11, 20)])
    made.run()
    assert ledger.settled(S, slot) == (31, [])


def test_a08_confirmations_of_one_turn_are_one_write() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    made = Opened(disk)
    ledger = made.ledger
    for number in range(8):
        ledger.add_recipient(f"r{number}")
    ledger.adopt_section(S, "one", "normal")
    made.run()
    before = disk.syncs
    told: list[int] = []
    for at in range(1, 201):
        for slot in range(8):
            ledger.confirm(S, slot, [(at, at + 1)], lambda slot=slot: told.append(slot))  # type: ignore[misc]
    made.run()
    assert len(told) == 1_600 and disk.syncs == before + 1
    assert [ledger.floor(S, slot) for slot in range(8)] == [201] * 8


def test_a08_a_pipeline_starts_from_what_is_recorded() -> None:
    store = MemoryStore(SEGMENT_BYTES)
    made, ledger = opened(store)
    slot = ledger.add_recipient("log")
    ledger.adopt_section(S, "one", "normal")
    pipeline = Pipeline(slot, "log", RetryPolicy(), lambda _s, at: (at % 3, 0))
    pipeline.add_section(S, 3, 1)
    pipeline.offer_runs(S, [(1, 100)], 100)
    batch = pipeline.next_batch(0, 50)
    assert batch is not None
    for instruction in pipeline.failed(batch, set(range(0, 50, 2)), 0, "no", 0.5):
        assert isinstance(instruction, Confirm)
        ledger.confirm(instruction.section, slot, instruction.ranges)
    made.run()
    ledger.close()
    _, again = opened(store)
    fresh = Pipeline(slot, "log", RetryPolicy(), lambda _s, at: (at % 3, 0))
    fresh.load(S, *again.settled(S, slot))
    fresh.add_section(S, 3, again.floor(S, slot))
    fresh.offer_runs(S, [(1, 100)], 100)
    batch = fresh.next_batch(0, 1_000)
    assert batch is not None
    assert [at for _, at in batch.events()] == [at for at in range(1, 100) if at > 50 or at % 2 == 0]


def test_a08_what_is_finished_is_forgotten() -> None:
    made, ledger = opened()
    ledger.adopt_section(S, "one", "normal", first=5)
    assert ledger.floor(S, 0) == 5
    ledger.confirm(S, 0, [(5, 9)])
    durable = ledger.finish_section(S)
    late = ledger.confirm(S, 0, [(9, 10)])
    made.run()
    assert durable.done and late.done and ledger.sections() == [] and ledger.floor(S, 0) == 1
    with pytest.raises(BadArgument):
        ledger.adopt_section(DEAD_SECTION, "dead", "normal")


def test_a07_decisions_are_kept_until_they_are_released() -> None:
    store = MemoryStore(SEGMENT_BYTES)
    made, ledger = opened(store)
    ledger.adopt_section(S, "one", "normal")
    runs = [(1, 10, 0b1), (10, 20, (1 << 64) - 1)]
    ledger.decide(S, runs)
    made.run()
    ledger.close()
    _, again = opened(store)
    assert again.decided(S, 1, 100) == runs
    again.released(S, 15)
    assert again.decided(S, 1, 100) == [(15, 20, (1 << 64) - 1)] and again.floor(S, 3) == 15


# --- the dead ---------------------------------------------------------------------------------------------


def test_a07_a_dead_event_keeps_its_bytes_until_it_is_purged() -> None:
    store = MemoryStore(SEGMENT_BYTES)
    made, ledger = opened(store)
    ledger.add_recipient("log")
    ledger.adopt_section(S, "one", "normal")
    told = give_up(ledger, 1, body=b"\x00\xffbytes")
    assert told == [] and ledger.floor(S, 0) == 1
    made.run()
    assert told == [True] and ledger.floor(S, 0) == 2
    give_up(ledger, 7)
    made.run()
    ledger.close()
    made, again = opened(store)
    first, second = again.dead_events()
    assert (first.recipient, first.section, first.at, first.reason, first.attempts) == ("log", S, 1, "no", 3)
    assert again.read_dead(first.number) == event(1, body=b"\x00\xffbytes")
    assert again.dead_events("mail") == [] and again.dead_events(after=first.number) == [second]
    assert again.settled(S, 0) == (2, [(7, 8)])
    again.purge_dead([first.number])
    with pytest.raises(NoSuchDeadEvent):
        again.purge_dead([second.number, first.number])
    made.run()
    again.close()
    _, third = opened(store)
    assert [one.number for one in third.dead_events()] == [second.number]


def test_a07_an_event_whose_bytes_are_gone_is_buried_by_name() -> None:
    made, ledger = opened()
    ledger.adopt_section(S, "one", "normal")
    told: list[bool] = []
    ledger.give_up(S, 0, 4, "damaged", 0, None, told.append)
    made.run()
    (dead,) = ledger.dead_events()
    assert told == [True] and dead.is_lost and (dead.producer, dead.sequence) == (S, 4)
    with pytest.raises(RecordDamaged):
        ledger.read_dead(dead.number)
    assert ledger.resend_dead([dead.number]) == []


def test_a07_a_dead_event_sent_again_is_gone_when_it_is_confirmed() -> None:
    store = MemoryStore(SEGMENT_BYTES)
    made, ledger = opened(store)
    ledger.add_recipient("log")
    ledger.add_recipient("mail")
    ledger.adopt_section(S, "one", "normal")
    for at in range(1, 5):
        give_up(ledger, at, slot=at % 2)
    made.run()
    numbers = [one.number for one in ledger.dead_events()]
    sent = ledger.resend_dead(reversed(numbers))
    assert [one.resent_at for one in sent] == [1, 2, 3, 4] and ledger.resend_dead(numbers) == []
    made.run()
    ledger.close()
    made, again = opened(store)
    assert [(one.resent_at, one.at) for one in again.resent(0)] == [(1, 4), (3, 2)]
    assert again.read_dead(again.resent(0)[0].number).at == 1
    again.confirm(DEAD_SECTION, 0, [(1, 3)])  # widened over one that is for somebody else
    told: list[bool] = []
    again.give_up(DEAD_SECTION, 0, 3, "again", 9, None, told.append, now_ms=8)
    made.run()
    assert told == [True]
    assert [(one.at, one.resent_at, one.reason, one.attempts) for one in again.dead_events()] == [
        (1, 4, "no", 3),
        (2, 0, "again", 9),
        (3, 2, "no", 3),
    ]
    again.remove_recipient("mail", owed=0, now_ms=0)
    again.give_up(DEAD_SECTION, 1, 2, "again", 9, None, told.append, now_ms=8)
    assert again.resend_dead([one.number for one in again.dead_events("mail")]) == []
    made.run()
    again.close()
    _, third = opened(store)
    assert canonical(third) == canonical(again)


def test_a07_giving_up_waits_when_there_is_no_room_and_confirmations_go_on() -> None:
    store = MemoryStore(SEGMENT_BYTES, files_max=12)
    made, ledger = opened(store)
    ledger.add_recipient("log")
    ledger.adopt_section(S, "one", "normal")
    at, buried = 1, 0
    while True:
        told = give_up(ledger, at, body=bytes(2_000))
        made.run()
        if told == [False]:
            break
        assert told == [True]
        at, buried = at + 1, buried + 1
    assert buried > 10 and not ledger.settled(S, 0)[0] > at
    for round_ in range(4_000):  # many times the journal, from the reserve
        first = 1 + 40 * round_
        durable = ledger.confirm(S, 1, [(one, one + 1) for one in range(first, first + 40)])
        made.run()
        assert durable.done
    assert len(ledger.dead_events()) == buried and ledger.status().confirmations_waiting == 0
    assert ledger.read_dead(ledger.dead_events()[0].number) == event(1, body=bytes(2_000))
    ledger.purge_dead([one.number for one in ledger.dead_events()][: buried - 2])
    for _ in range(6):
        ledger.confirm(S, 1, [(1, 2)])
        made.run()
        told = give_up(ledger, at, body=bytes(2_000))
        made.run()
        if told == [True]:
            break
    assert told == [True]
    ledger.close()
    _, again = opened(store)
    assert canonical(again) == canonical(ledger)
    assert [again.read_dead(one.number).sequence for one in again.dead_events()] == [buried - 1, buried, at]


def test_a07_a_dead_event_that_is_too_large_stays_owed() -> None:
    made, ledger = opened()
    ledger.adopt_section(S, "one", "normal")
    assert give_up(ledger, 1, body=bytes(SEGMENT_BYTES)) == [False]
    made.run()
    assert ledger.dead_events() == [] and ledger.floor(S, 0) == 1


# --- values, failures, files ------------------------------------------------------------------------------


def test_a05_named_values() -> None:
    store = MemoryStore(SEGMENT_BYTES)
    made, ledger = opened(store)
    ledger.set_value("pair.epoch", b"\x07")
    ledger.set_value("gone", b"x")
    ledger.set_value("gone", None)
    with pytest.raises(LimitReached):
        ledger.set_value("large", bytes(limits.EVENT_VALUE_BYTES_MAX + 1))
    made.run()
    ledger.close()
    _, again = opened(store)
    assert (again.value("pair.epoch"), again.value("gone"), again.value("large")) == (b"\x07", None, None)


def test_a08_after_a_failure_nothing_is_reported_durable() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    made = Opened(disk)
    ledger = made.ledger
    ledger.adopt_section(S, "one", "normal")
    made.run()
    failures: list[object] = []
    ledger.on_failed = failures.append
    disk.fail_sync(disk.syncs + 1, "eio")
    told: list[str] = []
    durable = ledger.confirm(S, 0, [(1, 2)], lambda: told.append("durable"))
    made.committer.step()
    later = ledger.confirm(S, 0, [(2, 3)], lambda: told.append("durable"))
    value = ledger.set_value("v", b"1")
    made.run()
    assert told == [] and not durable.done and ledger.floor(S, 0) == 1
    assert [type(one) for one in (durable.error, later.error, value.error, *failures)] == [JournalFailed] * 4
    with pytest.raises(JournalFailed):
        ledger.confirm(S, 0, [(3, 4)])
    with pytest.raises(JournalFailed):
        ledger.set_value("v", b"2")
    ledger.close()


def test_a08_in_files_with_a_loop(tmp_path: Path) -> None:
    async def first() -> None:
        ledger = Ledger.open(tmp_path / "ledger", asyncio.get_running_loop())
        slot = ledger.add_recipient("log")
        await ledger.adopt_section(S, "one", "normal")
        await asyncio.gather(*(_confirm(ledger, slot, at) for at in range(1, 101)))
        assert ledger.floor(S, slot) == 101 and ledger.status().journal.commits < 20
        buried: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        ledger.give_up(S, slot, 101, "no", 1, event(101, body=bytes(9_000)), buried.set_result)
        assert await buried
        assert ledger.read_dead(1).body == bytes(9_000)
        await ledger.durable()
        ledger.confirm(S, slot, [(200, 201)])
        ledger.close()
        with pytest.raises(InternalFault):
            ledger.confirm(S, slot, [(201, 202)])

    async def second() -> None:
        ledger = Ledger.open(tmp_path / "ledger", asyncio.get_running_loop())
        assert ledger.settled(S, 0) == (102, [(200, 201)]) and ledger.lost == []
        assert ledger.read_dead(1) == event(101, body=bytes(9_000))
        ledger.close()

    asyncio.run(first())
    asyncio.run(second())


async def _confirm(ledger: Ledger, slot: int, at: int) -> None:
    await ledger.confirm(S, slot, [(at, at + 1)])
    assert ledger.floor(S, slot) > at
