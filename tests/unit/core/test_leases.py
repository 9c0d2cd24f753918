"""Leases: one holder at a time, also over restarts; epochs grow and never repeat (A-10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from clarion import limits
from clarion.core.entries import Kind, SetLease
from clarion.core.leases import Leases
from clarion.core.state import State
from clarion.errors import LimitReached

SEGMENT_BYTES = 1 << 20
NAMES = st.sampled_from(["a", "b", "c", "d"])
HOLDERS = st.sampled_from(["one", "two", "three"])
TTLS = st.sampled_from([100, 250, 1_000])


class Machine(RuleBasedStateMachine):
    """A log, its state, and what each holder believes: that it has a lease for its time after it asked for it."""

    @initialize(maximum=st.integers(1, 4))
    def start(self, maximum: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(limits, "LEASES_MAX", maximum)
        self.state = State(SEGMENT_BYTES)
        self.log: list[tuple[int, bytes]] = []
        self.checkpoint: tuple[list[bytes], int] = ([], 0)
        self.now_ms = 1_000_000
        self.true_ms = 0
        self.believed: dict[str, dict[str, tuple[int, int]]] = {}
        """Lease → holder → when its time is over by a clock that is always right, and its epoch."""
        self.epochs: dict[int, tuple[str, str]] = {}

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    def write(self, entry: SetLease) -> None:
        self.log.append((len(self.log) + 1, entry.encode()))
        self.state.apply(self.log[-1][0], Kind.LEASE, self.log[-1][1])

    @rule(name=NAMES, holder=HOLDERS, ttl_ms=TTLS)
    def acquire(self, name: str, holder: str, ttl_ms: int) -> None:
        leases = self.state.leases
        held = {who: epoch for who, (until_ms, epoch) in self.believed.get(name, {}).items() if until_ms > self.true_ms}
        last, count, was = leases.last_epoch, len(leases), leases.find(name)
        try:
            entries = leases.granted(name, holder, ttl_ms, self.now_ms)
        except LimitReached:
            assert was is None and count == limits.LEASES_MAX
            return
        if entries is None:
            assert was is not None and was.holder != holder
            return
        assert set(held) <= {holder}, "somebody still thinks that he has it"
        for entry in entries:
            self.write(entry)
        leases.renew(name, self.now_ms)
        lease = leases.find(name)
        assert lease is not None and (lease.holder, lease.ttl_ms) == (holder, ttl_ms)
        assert lease.expires_in_ms(self.now_ms) == ttl_ms
        if was is not None and was.holder == holder:
            assert lease.epoch == was.epoch
        else:
            assert lease.epoch == last + 1 and lease.epoch not in self.epochs
        self.epochs[lease.epoch] = (name, holder)
        self.believed.setdefault(name, {})[holder] = (self.true_ms + ttl_ms, lease.epoch)

    @rule(name=NAMES, holder=HOLDERS)
    def release(self, name: str, holder: str) -> None:
        lease = self.state.leases.find(name)
        if lease is not None and lease.holder == holder:
            self.write(Leases.given_up(lease, self.now_ms))
            assert self.state.leases.find(name) is None
            self.believed.get(name, {}).pop(holder, None)

    @rule(passed_ms=st.integers(1, 600))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.true_ms += passed_ms

    @rule()
    def make_checkpoint(self) -> None:
        self.checkpoint = (list(self.state.dump()), len(self.log))

    @rule(clock_ms=st.integers(0, 5_000_000), away_ms=st.integers(0, 300))
    def restart(self, clock_ms: int, away_ms: int) -> None:
        """With a clock that says anything."""
        before = [(name, lease.holder, lease.epoch, lease.ttl_ms) for name, lease in self._leases()]
        last = self.state.leases.last_epoch
        parts, since = self.checkpoint
        self.state = State(SEGMENT_BYTES)
        if parts:
            self.state.load(parts)
        for index, head in self.log[since:]:
            self.state.apply(index, Kind.LEASE, head)
        self.now_ms, self.true_ms = clock_ms, self.true_ms + away_ms
        self.state.leases.recovered(self.now_ms)
        assert [(name, lease.holder, lease.epoch, lease.ttl_ms) for name, lease in self._leases()] == before
        assert self.state.leases.last_epoch == last
        assert all(lease.expires_in_ms(self.now_ms) == lease.ttl_ms for _, lease in self._leases())

    def _leases(self) -> list[tuple[str, Any]]:
        return [(name, self.state.leases.find(name)) for name in self.state.leases.names()]

    @invariant()
    def one_holder(self) -> None:
        if not hasattr(self, "state"):
            return
        assert len(self.state.leases) <= limits.LEASES_MAX
        for name, holders in self.believed.items():
            now = [(who, epoch) for who, (until_ms, epoch) in holders.items() if until_ms > self.true_ms]
            assert len(now) <= 1
            for who, epoch in now:
                lease = self.state.leases.find(name)
                assert lease is not None and (lease.holder, lease.epoch) == (who, epoch)
                assert lease.expires_in_ms(self.now_ms) > 0


TestA10Leases = Machine.TestCase
TestA10Leases.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a10_a_checkpoint_of_before_leases_has_none() -> None:
    state = State(SEGMENT_BYTES)
    state.apply(1, Kind.LEASE, SetLease("a", "one", 1, 100, 5).encode())
    state._load_tables([1, 1, [[], [], []], state.policies.dump(), 1, [], state.streams.dump()])
    assert state.applied == 1
    again = State(SEGMENT_BYTES)
    again.load(list(state.dump()))
    assert again.leases.names() == ["a"] and again.leases.last_epoch == 1


def test_a10_too_many_leases_are_refused_and_those_that_are_over_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASES_MAX", 2)
    leases = Leases()
    for name, ttl_ms in (("a", 500), ("b", 100)):
        for entry in leases.granted(name, "one", ttl_ms, 0) or ():
            leases.apply(entry)
    with pytest.raises(LimitReached):
        leases.granted("c", "one", 100, 99)
    entries = leases.granted("c", "one", 100, 100)
    assert entries is not None and [(entry.name, entry.holder, entry.epoch) for entry in entries] == [
        ("b", "", 2),
        ("c", "one", 3),
    ]
