"""A crash or a fault of the disk at every write and sync of a ledger (A-05, A-08).

The state found after a crash is one that the ledger had after some entry, and not an older one than was reported
durable; what a confirmation reported is settled, what nobody confirmed is not; every dead event has its bytes.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import ClarionError, JournalFailed, JournalFull, LimitReached
from clarion.testing.faulty_disk import Crashed, FaultyDisk, WriteFault

from .ledger_harness import SEGMENT_BYTES, Opened, canonical, event

STEPS = 260
SECTIONS = (5 << 64, 6 << 64, 7 << 64)
DEAD_MAX = 40

Place = tuple[int, int, int]


class Run:
    """One life of a ledger, and everything that was asked of it and reported."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.history: list[dict[str, Any]] = []
        self.durable_count = 0
        self.asked: set[Place] = set()
        self.reported: set[Place] = set()
        self.opened = Opened(disk, checkpoint_log_entries=40)
        self.ledger = self.opened.ledger
        self.history.append(canonical(self.ledger))
        self._follow()

    def _follow(self) -> None:
        """Note the state after every entry, and how far the journal has reported."""
        log = self.ledger._log
        write, history = log.write, self.history

        def noted(*arguments: Any, **options: Any) -> Any:
            location = write(*arguments, **options)
            history.append(canonical(self.ledger))
            count = len(history) - 1
            log.after(lambda: setattr(self, "durable_count", max(self.durable_count, count)))
            return location

        log.write = noted  # type: ignore[method-assign]

    def confirm(self, section: int, slot: int, ranges: list[tuple[int, int]]) -> None:
        places = {(section, slot, at) for run in ranges for at in range(*run)}
        self.asked |= places
        self.ledger.confirm(section, slot, ranges, lambda: self.reported.update(places))

    def bury(self, section: int, slot: int, at: int, body: bytes) -> None:
        place = section, slot, at
        self.asked.add(place)
        self.ledger.give_up(
            section, slot, at, "no", 2, event(at, body=body), lambda stored: self.reported.update([place] * stored)
        )

    def settled(self) -> set[Place]:
        found: set[Place] = set()
        for row in self.ledger.sections():
            for slot, settled in row.settled.items():
                found |= {(row.section, slot, at) for at in range(1, settled.floor)}
                found |= {(row.section, slot, at) for first, end, _ in settled.spans for at in range(first, end)}
        return found


def body_of(at: int) -> bytes:
    return b"%d " % at * (at * 37 % 1_500)


def script(run: Run, rng: Random, steps: int) -> None:
    ledger = run.ledger
    for name in "pqr":
        ledger.add_recipient(name)
    for _ in range(steps):
        try:
            one_step(run, rng)
        except (JournalFull, LimitReached):
            run.opened.run()
        if rng.random() < 0.5:
            for _ in range(rng.randrange(1, 6)):
                run.opened.committer.step()
        # Everything that lives is still there.
        assert all(one.span for one in ledger.dead_events())
    run.opened.run()


def one_step(run: Run, rng: Random) -> None:
    ledger = run.ledger
    section, slot = rng.choice(SECTIONS), rng.randrange(3)
    known = [row.section for row in ledger.sections()]
    numbers = [one.number for one in ledger.dead_events()]
    first = rng.randrange(1, 60)
    match rng.choice(("confirm",) * 8 + ("bury",) * 5 + ("add", "remove", "adopt", "decide", "purge", "send", "value")):
        case "confirm" if section in known:
            run.confirm(section, slot, [(first, first + rng.randrange(1, 8))])
        case "bury" if section in known and len(numbers) < DEAD_MAX:
            run.bury(section, slot, first, body_of(first))
        case "add":
            ledger.add_recipient(rng.choice("abc"), rng.choice(("", "x = 1")))
        case "remove" if others := [row.name for row in ledger.recipients() if row.name in "abc"]:
            ledger.remove_recipient(rng.choice(others), owed=0, now_ms=1)
        case "adopt":
            ledger.adopt_section(section, "name", "normal")
        case "decide":
            ledger.decide(section, [(first, first + 5, rng.getrandbits(64))])
        case "purge" if numbers:
            ledger.purge_dead(rng.sample(numbers, rng.randrange(1, 1 + min(8, len(numbers)))))
        case "send" if numbers:
            sent = ledger.resend_dead(rng.sample(numbers, 1))
            if sent and rng.random() < 0.5:
                ledger.confirm(0, sent[0].slot, [(sent[0].resent_at, sent[0].resent_at + 1)])
        case "value":
            ledger.set_value(rng.choice("vw"), rng.choice((None, b"1", bytes(500))))


def check(disk: FaultyDisk, before: Run) -> Run:
    """Open again and compare."""
    run = Run(disk)
    found = run.history[0]
    assert run.ledger.lost == []
    # The dead differ in nothing but time, and a state may come twice: any of the states not older than reported.
    assert found in before.history[before.durable_count :]
    settled = run.settled()
    live = {row.section for row in run.ledger.sections()}
    assert {place for place in settled if place[0] in live} <= before.asked
    assert {place for place in before.reported if place[0] in live} <= settled
    for dead in run.ledger.dead_events():
        assert run.ledger.read_dead(dead.number).body == body_of(dead.at)
    run.asked, run.reported = before.asked, settled
    return run


def fail_and_recover(disk: FaultyDisk, seed: int, rng: Random) -> None:
    first: Run | None = None
    try:
        first = Run(disk)
        script(first, Random(seed), STEPS)
    except (Crashed, JournalFailed):
        pass
    if rng.random() < 0.5:
        disk.kill()
    else:
        disk.crash(rng)
    if first is None:  # it never started
        Run(disk)
        return
    second = check(disk, first)
    second.durable_count = 0
    disk.crash(rng)  # what was recovered is durable, whatever happens next
    third = check(disk, second)
    script(third, Random(seed + 1), 10)
    disk.crash(rng)
    check(disk, third)


def operations(seed: int) -> tuple[int, int]:
    disk = FaultyDisk(SEGMENT_BYTES)
    run = Run(disk)
    script(run, Random(seed), STEPS)
    assert run.durable_count == len(run.history) - 1
    assert len(run.reported) > 50 and run.ledger.status().journal.checkpoint_older
    return disk.writes, disk.syncs


@pytest.mark.parametrize("fault", ["crash", "torn"])
def test_a08_crash_at_every_write(fault: WriteFault) -> None:
    for number in range(1, operations(1)[0] + 1):
        disk = FaultyDisk(SEGMENT_BYTES)
        disk.fail_write(number, fault)
        fail_and_recover(disk, 1, Random(number))


def test_a08_crash_at_every_sync() -> None:
    for number in range(1, operations(2)[1] + 1):
        disk = FaultyDisk(SEGMENT_BYTES)
        disk.fail_sync(number, "crash")
        fail_and_recover(disk, 2, Random(number))


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a08_an_error_of_the_disk_is_reported_once_and_nothing_after_it(operation: str) -> None:
    writes, syncs = operations(3)
    for number in range(9, writes if operation == "write" else syncs, 3):
        disk = FaultyDisk(SEGMENT_BYTES)
        run = Run(disk)
        failures: list[ClarionError] = []
        run.ledger.on_failed = failures.append
        if operation == "write":
            disk.fail_write(disk.writes + number, "eio")
        else:
            disk.fail_sync(disk.syncs + number, "eio")
        try:
            script(run, Random(3), STEPS)
        except JournalFailed:
            run.opened.run()
        assert len(failures) <= 1
        disk.crash(Random(number))
        check(disk, run)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a08_many_crashes_in_a_row(seed: int) -> None:
    rng = Random(seed)
    disk = FaultyDisk(SEGMENT_BYTES)
    run = Run(disk)
    for _ in range(5):
        if rng.random() < 0.7:
            disk.fail_write(disk.writes + rng.randrange(1, 40), rng.choice(("crash", "torn")))
        else:
            disk.fail_sync(disk.syncs + rng.randrange(1, 40), "crash")
        try:
            script(run, rng, rng.randrange(80))
        except Crashed:
            pass
        if rng.random() < 0.3:
            disk.kill()
        else:
            disk.crash(rng)
        run = check(disk, run)
