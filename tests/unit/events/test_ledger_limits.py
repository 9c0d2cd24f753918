"""A ledger without room, with damage, and with much in it (A-05, A-08)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from clarion import limits
from clarion.errors import JournalFailed, LimitReached, NewerFormat, RecordDamaged
from clarion.events.ledger import Ledger
from clarion.events.ledger.entries import Adopted, Dead, Kind, encode, id_bytes
from clarion.events.ledger.state import Settled, State
from clarion.journal import JournalOptions, MemoryStore
from clarion.testing.faulty_disk import FaultyDisk
from clarion.testing.loop_committer import LoopCommitter

from .ledger_harness import SEGMENT_BYTES, Opened, canonical, event

S = 77 << 64


def test_a08_confirmations_that_find_no_room_wait_for_it() -> None:
    """More in one turn than the whole journal can hold: it is written as checkpoints make room."""
    store = MemoryStore(SEGMENT_BYTES, files_max=12)
    made = Opened(store)
    ledger = made.ledger
    ledger.adopt_section(S, "one", "normal")
    made.run()
    told: list[int] = []
    ledger.confirm(S, 0, [(at, at + 1) for at in range(1, 120_001)], lambda: told.append(ledger.floor(S, 0)))
    made.committer.step()
    assert ledger.status().confirmations_waiting > 50_000 and told == []
    for _ in range(200):
        made.run()
        if told:
            break
        ledger.confirm(S, 1, [(1, 2)])  # others go on asking
    assert told == [120_001]
    ledger.close()
    again = Opened(store).ledger
    assert again.settled(S, 0) == (120_001, [])


def test_a07_dead_events_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_DEAD_MAX", 3)
    made = Opened(MemoryStore(SEGMENT_BYTES))
    ledger = made.ledger
    told: list[bool] = []
    for at in range(1, 6):
        ledger.give_up(S, 0, at, "no", 1, event(at), told.append)
    made.run()
    assert sorted(told) == [False, False, True, True, True] and len(ledger.dead_events()) == 3
    monkeypatch.setattr(limits, "EVENT_VALUES_MAX", 1)
    ledger.set_value("a", b"")
    with pytest.raises(LimitReached):
        ledger.set_value("b", b"")


def test_a05_a_large_state_fits_the_parts_of_a_checkpoint() -> None:
    state, rng = State(), Random(1)
    section = id_bytes(S)
    state.apply(Kind.ADOPTED, encode(Adopted(section, "one", "normal", 1, 0)))
    row = state.sections[S]
    for slot in range(8):
        for at in range(2, 8_000, 2):
            row.of(slot).spans.put(at, at + 1)
    for at in range(1, 6_000):
        row.decided.put(at, at + 1, rng.getrandbits(64))
    for number in range(200):
        state.values[f"value{number}"] = rng.randbytes(4_000)
    for number in range(1, 1_000):
        texts = "€" * 1_000 if number % 3 else "no"
        dead = Dead(number, 3, "r" * 255, section, number, section, number, 1, 40, 8, 1, 0, 7, 2, 5, texts)
        state.dead.put(dead, number * 100, 90, number if number % 2 else 0)
    parts = list(state.dump())
    assert max(map(len, parts)) <= limits.CHECKPOINT_PART_BYTES_MAX
    assert sum(map(len, parts)) / 3 <= state.checkpoint_bytes
    again = State()
    again.load(parts)
    assert list(again.dump()) == parts
    assert again.dead.events == state.dead.events and again.values == state.values
    assert list(again.sections[S].decided) == list(row.decided)
    assert list(again.sections[S].of(7).spans) == list(row.of(7).spans)


def test_a05_damage_of_a_dead_event_costs_its_bytes_only() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    made = Opened(disk)
    ledger = made.ledger
    ledger.adopt_section(S, "one", "normal")
    for at in (1, 2, 3):
        ledger.give_up(S, 0, at, "no", 1, event(at, body=b"%d" % at * 2_000), lambda _stored: None)
        made.run()
    middle = ledger.dead_events()[1]
    ledger.close()
    for file in disk.files():
        found = disk.read(file, 0, SEGMENT_BYTES).find(b"2" * 1_000)
        if found >= 0:
            disk.flip(file, found + 500)
    again = Opened(disk).ledger
    assert len(again.lost) == 1
    assert [one.is_lost for one in again.dead_events()] == [False, True, False]
    assert again.settled(S, 0) == (4, [])
    assert again.read_dead(3).body == b"3" * 2_000
    with pytest.raises(RecordDamaged):
        again.read_dead(middle.number)
    again.purge_dead([middle.number])


def test_a07_filters_that_no_record_can_ask_for_are_forgotten() -> None:
    made = Opened(MemoryStore(SEGMENT_BYTES))
    ledger = made.ledger
    ledger.adopt_section(S, "one", "normal")
    for number in range(5):
        ledger.add_recipient("log", f"a = {number}")
    assert len(ledger.recipient("log").filters) == 5
    ledger.released(S, 1, 4)
    ledger.add_recipient("log", "a = 5")
    assert ledger.recipient("log").filters == [(4, "a = 3"), (5, "a = 4"), (6, "a = 5")]


def test_a08_settled_is_a_set() -> None:
    rng = Random(3)
    for _ in range(300):
        settled, model = Settled(1), set[int]()
        for _ in range(30):
            first = rng.randrange(1, 60)
            end = first + rng.randrange(1, 12)
            settled.add(first, end)
            model |= set(range(first, end))
            found = set(range(1, settled.floor)) | {n for f, e, _ in settled.spans for n in range(f, e)}
            assert found == model and settled.floor not in model
            assert all(f > settled.floor for f, _, _ in settled.spans)


def test_a05_an_entry_of_a_later_version_is_refused() -> None:
    with pytest.raises(NewerFormat):
        State().apply(99, b"")


def test_a08_who_awaits_hears_of_a_failure() -> None:
    async def run() -> None:
        disk = FaultyDisk(SEGMENT_BYTES)
        ledger = Ledger.over(disk, LoopCommitter(asyncio.get_running_loop()), JournalOptions(bytes_max=1 << 20))
        await asyncio.sleep(0)
        await ledger.adopt_section(S, "one", "normal")
        disk.fail_sync(disk.syncs + 1, "eio")
        durable = ledger.confirm(S, 0, [(1, 2)])
        with pytest.raises(JournalFailed):
            await durable
        with pytest.raises(JournalFailed):
            await durable
        ledger.close()

    asyncio.run(run())


def test_a07_where_the_dead_of_a_recipient_begin() -> None:
    made = Opened(MemoryStore(SEGMENT_BYTES))
    ledger = made.ledger
    assert ledger.dead_floor(S, 0) is None
    for at in (9, 4, 7):
        ledger.give_up(S, 0, at, "no", 1, event(at), lambda _stored: None)
    made.run()
    assert ledger.dead_floor(S, 0) == 4 and ledger.dead_floor(S, 1) is None
    assert canonical(ledger)["next"] == (4, 1)
