"""What every witness must do, as tests: derive from `WitnessConformance` and say how one is made.

    class TestMyWitness(WitnessConformance):
        def make(self, directory: Path) -> Witness: ...

Each test may make several witnesses: they stand for processes on different hosts that see the same leases.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

from clarion.events.pair.witness import Grant, Witness

WAIT_S = 20.0
"""A test fails when something that must happen has not after this."""


class WitnessConformance(ABC):
    """The suite."""

    __test__ = False
    ttl_ms = 30_000
    """Longer than a test takes."""
    short_ms = 400
    """A time to live that a test can wait for."""

    @abstractmethod
    def make(self, directory: Path) -> Witness:
        """A witness as a new process on some host would make it; leases are those of `directory`."""

    def test_a10_the_first_gets_it_and_the_second_does_not(self, tmp_path: Path) -> None:
        one, two = self.make(tmp_path), self.make(tmp_path)
        granted = one.acquire("a", "a", self.ttl_ms)
        assert granted.granted
        assert granted.epoch >= 1
        assert 0 < granted.expires_in_ms <= self.ttl_ms
        refused = two.acquire("a", "b", self.ttl_ms)
        assert not refused.granted
        _close(one, two)

    def test_a10_a_renewal_keeps_the_epoch(self, tmp_path: Path) -> None:
        one = self.make(tmp_path)
        epochs = {one.acquire("a", "a", self.ttl_ms).epoch for _ in range(5)}
        assert len(epochs) == 1
        _close(one)

    def test_a10_the_same_holder_in_a_new_process_has_it_at_once(self, tmp_path: Path) -> None:
        one, again = self.make(tmp_path), self.make(tmp_path)
        first = one.acquire("a", "a", self.ttl_ms)
        second = again.acquire("a", "a", self.ttl_ms)
        assert second.granted
        assert second.epoch == first.epoch
        _close(one, again)

    def test_a10_names_are_independent(self, tmp_path: Path) -> None:
        one, two = self.make(tmp_path), self.make(tmp_path)
        assert one.acquire("a", "a", self.ttl_ms).granted
        assert two.acquire("b", "b", self.ttl_ms).granted
        assert two.acquire("ä/ö .lease", "b", self.ttl_ms).granted
        assert not one.acquire("b", "a", self.ttl_ms).granted
        _close(one, two)

    def test_a10_who_gets_it_after_a_release_has_a_larger_epoch(self, tmp_path: Path) -> None:
        one, two = self.make(tmp_path), self.make(tmp_path)
        epoch = one.acquire("a", "a", self.ttl_ms).epoch
        for witness, holder in ((two, "b"), (one, "a"), (one, "a")):
            one.release("a", "a", epoch)
            two.release("a", "b", epoch)  # one of the two has it
            granted = witness.acquire("a", holder, self.ttl_ms)
            assert granted.granted
            assert granted.epoch > epoch
            epoch = granted.epoch
        _close(one, two)

    def test_a10_a_release_of_another_holder_or_epoch_changes_nothing(self, tmp_path: Path) -> None:
        one, two = self.make(tmp_path), self.make(tmp_path)
        granted = one.acquire("a", "a", self.ttl_ms)
        two.release("a", "b", granted.epoch)
        two.release("a", "a", granted.epoch + 1)
        one.release("a", "a", granted.epoch - 1)
        one.release("never", "a", 1)
        assert not two.acquire("a", "b", self.ttl_ms).granted
        assert one.acquire("a", "a", self.ttl_ms).epoch == granted.epoch
        _close(one, two)

    def test_a10_a_lease_that_nobody_renews_runs_out_and_not_before(self, tmp_path: Path) -> None:
        two = self.make(tmp_path)
        before_s = time.monotonic()
        granted = self.acquire_and_die(tmp_path, "a", "a", self.short_ms)
        taken = _until_granted(two, "a", "b", self.short_ms)
        assert time.monotonic() - before_s >= granted.expires_in_ms / 1000
        assert taken.epoch > granted.epoch
        _close(two)

    def acquire_and_die(self, directory: Path, name: str, holder: str, ttl_ms: int) -> Grant:
        """What a process does that gets a lease and is killed. If `close` ends a lease, do it otherwise."""
        witness = self.make(directory)
        granted = witness.acquire(name, holder, ttl_ms)
        witness.close()
        return granted

    def test_a10_a_lease_that_is_renewed_does_not_run_out(self, tmp_path: Path) -> None:
        one, two = self.make(tmp_path), self.make(tmp_path)
        epoch = one.acquire("a", "a", self.short_ms).epoch
        end_s = time.monotonic() + 3 * self.short_ms / 1000
        while time.monotonic() < end_s:
            granted = one.acquire("a", "a", self.short_ms)
            assert (granted.granted, granted.epoch) == (True, epoch)
            assert not two.acquire("a", "b", self.short_ms).granted
        _close(one, two)

    def test_a10_of_many_that_ask_at_the_same_time_one_gets_it(self, tmp_path: Path) -> None:
        witnesses = [self.make(tmp_path) for _ in range(6)]
        grants: list[Grant] = []
        together = threading.Barrier(len(witnesses))

        def ask(number: int, witness: Witness) -> None:
            together.wait(WAIT_S)
            grants.append(witness.acquire("a", f"holder {number}", self.ttl_ms))

        threads = [threading.Thread(target=ask, args=one) for one in enumerate(witnesses)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(grants) == len(witnesses)
        assert sum(grant.granted for grant in grants) == 1
        _close(*witnesses)


def _close(*witnesses: Witness) -> None:
    for witness in witnesses:
        witness.close()


def _until_granted(witness: Witness, name: str, holder: str, ttl_ms: int) -> Grant:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        granted = witness.acquire(name, holder, ttl_ms)
        if granted.granted:
            return granted
        time.sleep(0.01)
    raise AssertionError(f"the lease on {name} did not run out within {WAIT_S} s")
