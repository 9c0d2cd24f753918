"""A crash or a fault at every write and every sync of a run (A-05, A-08).

The invariant: everything reported durable is recovered, nothing that was never appended appears, order
is kept, and indexes are contiguous, for no damage was done here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import JournalFailed, JournalFull
from clarion.journal import writer
from clarion.testing.faulty_disk import Crashed, FaultyDisk, WriteFault

from .journal_harness import SEGMENT_BYTES, Owner, body_of, open_owner

Entry = tuple[int, bytes, bytes]

STEPS = 150
BYTES_MAX = 12 * SEGMENT_BYTES
"""So small that every run recycles segments many times."""


@dataclass
class Run:
    """One script, and what of it has been appended and reported, also if it ends in a crash."""

    waits_here: bool = False
    """Lone commits are made by whoever appends."""
    expected: list[Entry] = field(default_factory=list)
    owner: Owner | None = None

    def script(self, disk: FaultyDisk, seed: int) -> None:
        self.owner = open_owner(disk, waits_here=self.waits_here, bytes_max=BYTES_MAX)
        self.owner.appended = self.expected
        run_steps(self.owner, Random(seed), STEPS)

    @property
    def durable_count(self) -> int:
        return self.owner.durable_count if self.owner else 0


def run_steps(owner: Owner, rng: Random, steps: int) -> None:
    for number in range(steps):
        body = body_of(rng)
        try:
            owner.append(body, b"%d" % number)
        except JournalFull:
            owner.committer.run()  # it grows, or two checkpoints make it recycle
            for _ in range(2):
                owner.checkpoint([b"%d" % len(owner.appended)])
                owner.committer.run()
            owner.append(body, b"%d" % number)
        if rng.random() < 0.5:
            for _ in range(rng.randrange(1, 6)):
                owner.committer.step()
        if number % 25 == 20 and owner.journal._checkpointer.run is None:
            # The parts stand for all entries before the checkpoint: their count is the state.
            owner.checkpoint([b"%d" % len(owner.appended), bytes(3_000), bytes(9_000)])
    owner.committer.run()


def check(owner: Owner, expected: list[Entry], durable_count: int) -> None:
    """Compare what was recovered with what was appended."""
    found = owner.found
    assert found.lost == []
    covered = int(found.parts[0]) if found.parts else 0
    recovered = found.entries
    assert recovered == expected[covered : covered + len(recovered)]
    assert covered + len(recovered) >= durable_count
    assert [entry[0] for entry in recovered] == list(range(covered + 1, covered + len(recovered) + 1))
    del expected[covered + len(recovered) :]


WAYS = [(seed, False) for seed in range(1, 7)] + [(seed, True) for seed in range(1, 3)]
"""Seeds, and whether lone commits are made in place."""


@pytest.fixture(autouse=True)
def _any_disk_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run is the same whatever the machine does."""
    monkeypatch.setattr(writer, "QUICK_US_MAX", float("inf"))


def operations(seed: int, waits_here: bool = False) -> tuple[int, int]:
    disk = FaultyDisk(SEGMENT_BYTES)
    run = Run(waits_here)
    run.script(disk, seed)
    assert run.owner is not None and run.owner.checkpoints >= 1
    assert (run.owner.journal.commits_here > 0) == waits_here
    return disk.writes, disk.syncs


def fail_and_recover(disk: FaultyDisk, seed: int, rng: Random, waits_here: bool = False) -> Run:
    """Run until the programmed fault; stop; recover twice; run on; stop; recover."""
    run = Run(waits_here)
    try:
        run.script(disk, seed)
    except (Crashed, JournalFailed):
        pass
    expected = run.expected
    if rng.random() < 0.5:
        disk.kill()
    else:
        disk.crash(rng)
    check(open_owner(disk, bytes_max=BYTES_MAX), expected, run.durable_count)
    # What was recovered is durable now, whatever happens next.
    disk.crash(rng)
    third = open_owner(disk, bytes_max=BYTES_MAX)
    check(third, expected, len(expected))
    # And the discarded tail does not revive behind what is written next.
    third.appended, third.ends, third.durable_count = expected, [0] * len(expected), len(expected)
    run_steps(third, Random(seed + 1), 8)
    disk.crash(rng)
    check(open_owner(disk, bytes_max=BYTES_MAX), expected, len(expected))
    return run


@pytest.mark.parametrize("fault", ["crash", "torn"])
@pytest.mark.parametrize(("seed", "waits_here"), WAYS)
def test_a05_crash_at_every_write(seed: int, waits_here: bool, fault: WriteFault) -> None:
    for number in range(1, operations(seed, waits_here)[0] + 1):
        disk = FaultyDisk(SEGMENT_BYTES)
        disk.fail_write(number, fault)
        fail_and_recover(disk, seed, Random(number), waits_here)


@pytest.mark.parametrize(("seed", "waits_here"), WAYS)
def test_a05_crash_at_every_sync(seed: int, waits_here: bool) -> None:
    for number in range(1, operations(seed, waits_here)[1] + 1):
        disk = FaultyDisk(SEGMENT_BYTES)
        disk.fail_sync(number, "crash")
        fail_and_recover(disk, seed, Random(number), waits_here)


@pytest.mark.parametrize("waits_here", [False, True])
@pytest.mark.parametrize("fault", ["short", "enospc"])
def test_a05_a_short_write_or_a_full_disk_at_every_write_is_survived(fault: WriteFault, waits_here: bool) -> None:
    for number in range(1, operations(1, waits_here)[0] + 1):
        disk = FaultyDisk(SEGMENT_BYTES)
        disk.fail_write(number, fault)
        run = fail_and_recover(disk, 1, Random(number), waits_here)
        assert run.owner is not None and run.owner.failures == []
        assert run.durable_count >= STEPS


@pytest.mark.parametrize("waits_here", [False, True])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a05_an_error_of_the_disk_stops_the_journal_once(operation: str, waits_here: bool) -> None:
    writes, syncs = operations(1, waits_here)
    for number in range(1, (writes if operation == "write" else syncs) + 1):
        disk = FaultyDisk(SEGMENT_BYTES)
        if operation == "write":
            disk.fail_write(number, "eio")
        else:
            disk.fail_sync(number, "eio")
        run = fail_and_recover(disk, 1, Random(number), waits_here)
        if run.owner is not None:
            assert [type(failure) for failure in run.owner.failures] in ([JournalFailed], [])


def test_a05_after_a_failed_sync_nothing_is_reported_durable() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = open_owner(disk)
    disk.fail_sync(disk.syncs + 1, "eio")
    owner.append(b"doubtful")
    durable = owner.journal.durable
    owner.committer.run()
    assert owner.journal.durable == durable and owner.durable_count == 0
    assert len(owner.failures) == 1
    for _ in range(2):
        with pytest.raises(JournalFailed):
            owner.append(b"later")
    owner.committer.run()
    owner.journal.close()
    assert len(owner.failures) == 1 and owner.durable_count == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a05_many_crashes_in_a_row(seed: int) -> None:
    rng = Random(seed)
    disk = FaultyDisk(SEGMENT_BYTES)
    expected: list[Entry] = []
    durable_count = 0
    for _ in range(6):
        owner = open_owner(disk, bytes_max=BYTES_MAX)
        check(owner, expected, durable_count)
        owner.appended, owner.ends, owner.durable_count = expected, [0] * len(expected), len(expected)
        if rng.random() < 0.7:
            disk.fail_write(disk.writes + rng.randrange(1, 20), rng.choice(("crash", "torn")))
        else:
            disk.fail_sync(disk.syncs + rng.randrange(1, 20), "crash")
        try:
            run_steps(owner, rng, rng.randrange(40))
        except Crashed:
            pass
        durable_count = owner.durable_count
        if rng.random() < 0.3:
            disk.kill()
        else:
            disk.crash(rng)


def test_a05_recovery_makes_the_tail_durable_before_it_starts() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = open_owner(disk)
    disk.fail_sync(disk.syncs + 1, "crash")
    owner.append(b"written, never synced")
    with pytest.raises(Crashed):
        owner.committer.run()
    disk.kill()  # the page cache still shows it
    again = open_owner(disk)
    assert [entry[2] for entry in again.found.entries] == [b"written, never synced"]
    disk.crash(Random(0), kept=0.0)
    assert open_owner(disk).found.entries == again.found.entries


def test_a05_a_discarded_segment_does_not_speak_of_old_checkpoints() -> None:
    """A tail is cut that reached into the next segment; then that file stays unused for long."""
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = open_owner(disk)
    owner.checkpoint([b"old"])
    owner.committer.run()
    owner.append(bytes(6_000))
    disk.fail_sync(disk.syncs + 1, "crash")
    owner.append(bytes(6_000))
    with pytest.raises(Crashed):
        owner.committer.run()
    # Of the last commit only what lies in the second segment has arrived.
    image = disk.read(1, 0, SEGMENT_BYTES)
    disk.crash(Random(0), kept=0.0)
    disk.write(1, 0, [image])
    disk.sync(1)
    again = open_owner(disk)
    assert again.found.parts == [b"old"] and again.found.entries == []
    for name in (b"new", b"newer"):
        again.checkpoint([name])
        again.committer.run(idle=False)  # a busy writer leaves no hints
    again.append(b"small")
    again.committer.run(idle=False)
    disk.crash(Random(0))
    assert open_owner(disk).found.parts == [b"newer"]
