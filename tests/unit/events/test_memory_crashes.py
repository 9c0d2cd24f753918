"""A ring on a faulty disk: killed, without power, damaged, at every write and sync (A-05)."""

from __future__ import annotations

from random import Random

import pytest

from clarion.errors import Blocked, JournalFailed
from clarion.events.encoding import Encoded
from clarion.events.memory.layout import HEADER_OFFSETS, RING_OFFSET, STATE_OFFSETS, Recorded
from clarion.events.memory.ring import Section
from clarion.journal.options import Durability
from clarion.testing.faulty_disk import Crashed, SyncFault, WriteFault
from clarion.testing.faulty_ring import FaultyRing

PRODUCER = 7 << 64
RING_BYTES = 16 << 10
EVENT_BYTES = 1500

Written = tuple[int, bytes, bytes, int]


def event(rng: Random) -> Encoded:
    headers, body = rng.randbytes(rng.choice((1, 80, 200))), rng.randbytes(rng.choice((0, 10, 300, 1200)))
    return Encoded(rng.randrange(1 << 62), 40, headers, body)


def read_all(section: Section) -> list[Recorded]:
    found: list[Recorded] = []
    first = section.first_sequence
    while some := section.read(first, 7, 2000):
        found += some
        first = some[-1].at + 1
    return found


class Model:
    """What was recorded, and what of it somebody was told."""

    def __init__(self, rng: Random, durability: Durability = "power") -> None:
        self.rng = rng
        self.ring = FaultyRing(PRODUCER, RING_BYTES, EVENT_BYTES, durability)
        self.attempted: dict[int, list[Encoded]] = {}
        self.told: dict[int, Encoded] = {}
        self.released = 1

    def run(self, section: Section, steps: int) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.15:
                self.released = max(self.released, self.rng.randint(section.first_sequence, section.next_sequence))
                section.release(self.released)
            elif self.rng.random() < 0.2:
                self._append_many(section)
            else:
                self._append(section)

    def _append(self, section: Section) -> None:
        given = event(self.rng)
        self.attempted.setdefault(section.writer.next[0], []).append(given)
        try:
            sequence = section.append(given, 5, 1)
        except Blocked:
            self.released = section.next_sequence - self.rng.randrange(3)
            section.release(self.released)
        else:
            self.told[sequence] = given

    def _append_many(self, section: Section) -> None:
        given = [event(self.rng) for _ in range(self.rng.randrange(1, 6))]
        for number, each in enumerate(given):
            self.attempted.setdefault(section.writer.next[0] + number, []).append(each)
        try:
            for sequence, each in zip(section.append_many(given, 5, 1), given, strict=True):
                self.told[sequence] = each
        except Blocked:
            self.released = max(self.released, section.next_sequence - 1)
            section.release(self.released)

    def check(self, section: Section) -> None:
        """Everything that somebody was told is there, byte for byte; nothing is there that was not recorded."""
        assert section.lost == []
        found = {each.at: each for each in read_all(section)}
        assert list(found) == sorted(found)
        assert section.first_sequence <= max(self.released, 1)
        for sequence, given in self.told.items():
            if sequence >= max(self.released, section.first_sequence):
                assert same(found[sequence], given)
        for sequence, each in found.items():
            assert any(same(each, given) for given in self.attempted[sequence])
            self.told[sequence] = next(given for given in self.attempted[sequence] if same(each, given))
        self.released = section.first_sequence


def same(found: Recorded, given: Encoded) -> bool:
    return (found.headers, found.body, found.time_ns) == (given.headers, given.body, given.time_ns)


@pytest.mark.parametrize("seed", range(150))
def test_a05_power_loss_at_any_write_or_sync_loses_nothing_that_append_returned_for(seed: int) -> None:
    rng = Random(seed)
    model = Model(rng)
    for _ in range(8):
        crash_somewhere(model, rng)
        try:
            section = model.ring.open()  # may crash itself
            model.check(section)
            model.run(section, 60)
        except Crashed:
            pass
        model.ring.crash(rng)
    section = model.ring.open()
    model.check(section)
    model.run(section, 30)
    model.check(section)


def crash_somewhere(model: Model, rng: Random) -> None:
    faults: tuple[WriteFault, ...] = ("crash", "torn", "short")
    for _ in range(2):
        model.ring.disk.fail_write(rng.randrange(1, 60), rng.choice(faults))
    sync_fault: SyncFault = "crash"
    model.ring.disk.fail_sync(rng.randrange(1, 60), sync_fault)


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("seed", range(20))
def test_a05_a_kill_loses_nothing(seed: int, durability: Durability) -> None:
    rng = Random(seed)
    model = Model(rng, durability)
    for _ in range(10):
        section = model.ring.open()
        model.check(section)
        model.run(section, 50)
        model.ring.disk.kill()


def test_a05_crash_at_every_single_write_and_sync() -> None:
    for number in range(1, 40):
        for what in ("write", "sync"):
            rng = Random(number)
            model = Model(rng)
            model.run(model.ring.open(), 10)
            model.ring.disk.kill()
            if what == "write":
                model.ring.disk.fail_write(number, "torn")
            else:
                model.ring.disk.fail_sync(number, "crash")
            try:
                section = model.ring.open()
                model.check(section)
                model.run(section, 30)
            except Crashed:
                pass
            model.ring.crash(rng)
            model.check(model.ring.open())


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("seed", range(60))
def test_a05_a_flipped_bit_costs_only_the_record_it_hits_and_is_reported(seed: int, durability: Durability) -> None:
    rng = Random(seed)
    model = Model(rng, durability)
    section = model.ring.open()
    for _ in range(rng.randrange(1, 12)):
        model._append(section)
    model.released = 1
    before = {each.at: each for each in read_all(section)}
    for _ in range(rng.choice((1, 2))):
        model.ring.disk.flip(0, rng.randrange(RING_OFFSET, RING_OFFSET + section.writer.next[1] % RING_BYTES or 1), 3)
    if rng.random() < 0.5:  # while somebody reads, or at the next start
        model.ring.disk.kill()
        section = model.ring.open()
    else:
        section = model.ring.look()
    after = {each.at: each for each in read_all(section)}
    missing = before.keys() - after.keys()
    assert len(missing) <= 2
    assert all(after[at] == before[at] for at in after)
    assert {at for first, end in section.lost for at in range(first, end)} == missing


@pytest.mark.parametrize("seed", range(40))
def test_a05_damaged_header_or_state_pages_lose_nothing(seed: int) -> None:
    rng = Random(seed)
    model = Model(rng)
    section = model.ring.open()
    model.run(section, rng.randrange(80))
    before = [each.at for each in read_all(section)]
    section.close()
    for offset in STATE_OFFSETS if seed % 2 else HEADER_OFFSETS[:2]:
        model.ring.disk.flip(0, offset + rng.randrange(20), rng.randrange(8))
    section = model.ring.open()
    after = [each.at for each in read_all(section)]
    assert after[len(after) - len(before) :] == before
    assert section.lost == []
    model.run(section, 50)
    model.ring.disk.kill()
    model.ring.open()


def test_a05_a_failed_sync_stops_the_ring() -> None:
    rng = Random(1)
    model = Model(rng)
    section = model.ring.open()
    model._append(section)
    model.ring.disk.fail_sync(model.ring.disk.syncs + 1, "eio")
    with pytest.raises(JournalFailed):
        model._append(section)
    for _ in range(3):
        with pytest.raises(JournalFailed):
            model._append(section)
    assert section.next_sequence == 2
    model.ring.crash(rng)
    model.check(model.ring.open())
