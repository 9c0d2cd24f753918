"""The machine of a pair, step by step; what holds whatever happens is shown by the simulation (A-10)."""

from __future__ import annotations

import pytest

from clarion.events.link.frames import Heartbeat
from clarion.events.pair import messages as m
from clarion.events.pair.machine import Machine
from clarion.events.pair.messages import Memory, Policy, Timing
from clarion.events.pair.states import BOND, DUTY, RIGHT, Bond, Duty, Right

TIMING = Timing.of(3_000)


def new(policy: Policy = Policy.WITNESS, memory: Memory | None = None) -> Machine:
    return Machine("a", "b", policy, TIMING, memory or Memory(), now_ms=0, first=1_000)


def states(machine: Machine) -> tuple[Right, Duty]:
    """A function, for a checker believes that what it compared once stays so."""
    return machine.right, machine.duty


def bond(machine: Machine) -> Bond:
    return machine.bond


def of(kind: type[m.Instruction], said: list[m.Instruction]) -> list[m.Instruction]:
    return [one for one in said if isinstance(one, kind)]


def reports(said: list[m.Instruction]) -> list[str]:
    return [one.type.removeprefix("clarion.pair.") for one in said if isinstance(one, m.Report)]


def holding() -> Machine:
    """With a lease from 0 to 3,000."""
    machine = new()
    machine.handle(m.Tick(), 0)
    machine.handle(m.LeaseGranted("a", 1, 3_000, 0), 10)
    assert states(machine)[0] is Right.HOLDING
    return machine


def acting() -> Machine:
    """Since 3,010, with a lease from 3,000 to 6,000."""
    machine = new()
    for now_ms in range(0, 3_001, 500):
        machine.handle(m.Tick(), now_ms)
    assert states(machine)[1] is Duty.TAKING_OVER
    machine.handle(m.LeaseGranted("b", 7, 3_000, 3_000), 3_010)
    assert states(machine)[1] is Duty.ACTING
    return machine


@pytest.mark.parametrize(
    ("table", "start"), [(RIGHT, Right.WAITING), (DUTY, Duty.IDLE), (BOND, Bond.ALONE)], ids=["right", "duty", "bond"]
)
def test_a10_every_state_is_reached_and_left(table: dict[str, dict[str, str]], start: str) -> None:
    reached, new_ones = {start}, [start]
    while new_ones:
        found = set(table[new_ones.pop()].values()) - reached
        reached |= found
        new_ones += found
    assert reached == set(table)
    assert all(table.values())


def test_a10_a_system_asks_for_its_own_name_and_then_delivers() -> None:
    machine = new()
    said = machine.handle(m.Tick(), 0)
    assert of(m.AskLease, said) == [m.AskLease("a", 3_000, 0)]
    assert not machine.may_deliver(0)
    said = machine.handle(m.LeaseGranted("a", 1, 3_000, 0), 10)
    assert m.SetMayDeliver(True) in said
    assert m.Remember(Memory(epoch=1)) in said
    assert machine.may_deliver(2_699)
    assert not machine.may_deliver(2_700)  # a margin before it runs out


def test_a10_the_fence_needs_nobody_to_tell() -> None:
    machine = holding()
    assert not machine.may_deliver(60_000)  # paused, awake, and nothing was handled yet
    said = machine.handle(m.Tick(), 60_000)
    assert m.SetMayDeliver(False) in said
    assert reports(said)[:2] == ["woke", "fenced"]
    assert states(machine)[1] is Duty.IDLE  # who did not listen cannot say that the other was silent


def test_a10_the_partners_word_is_as_good_as_a_lease_for_as_long_as_it_holds_still() -> None:
    machine = new()
    (sent,) = of(m.SendHeartbeat, machine.handle(m.Tick(), 0))
    assert isinstance(sent, m.SendHeartbeat)
    machine.handle(m.Heard(Heartbeat(1, echo=sent.heartbeat.beat)), 400)
    assert states(machine)[0] is Right.HOLDING
    assert machine.may_deliver(2_699)  # counted from when ours was sent
    assert not machine.may_deliver(2_700)


def test_a10_a_word_that_answers_nothing_of_ours_is_none() -> None:
    machine = new()
    machine.handle(m.Tick(), 0)
    for heartbeat in (Heartbeat(1, echo=5), Heartbeat(2, echo=1_001, acting=3), Heartbeat(3, echo=1_001, owes=True)):
        machine.handle(m.Heard(heartbeat), 10)
        assert machine.right in (Right.WAITING, Right.RETURNING)


def test_a10_nobody_acts_before_the_witness_says_so() -> None:
    machine = new()
    for now_ms in range(0, 20_000, 500):
        said = machine.handle(m.Tick(), now_ms)
        machine.handle(m.LeaseRefused("b"), now_ms)
        machine.handle(m.WitnessUnreachable("b"), now_ms)
        assert not of(m.StartReplay, said)
    assert states(machine)[1] is Duty.TAKING_OVER
    said = machine.handle(m.LeaseGranted("b", 7, 3_000, 19_500), 19_600)
    assert [type(one) for one in said[:2]] == [m.Remember, m.StartReplay]  # remembered first
    assert machine.memory.owes


def test_a10_a_grant_that_comes_when_the_partner_has_spoken_up_is_given_back() -> None:
    machine = new()
    for now_ms in range(0, 3_001, 500):
        machine.handle(m.Tick(), now_ms)
    machine.handle(m.Heard(Heartbeat(1)), 3_005)
    assert states(machine)[1] is Duty.IDLE
    said = machine.handle(m.LeaseGranted("b", 7, 3_000, 3_000), 3_010)
    assert said == [m.ReleaseLease("b", 7)]
    for now_ms in range(3_500, 7_001, 500):
        machine.handle(m.Tick(), now_ms)
    assert states(machine)[1] is Duty.TAKING_OVER
    said = machine.handle(m.LeaseGranted("b", 7, 3_000, 7_000), 7_010)  # the release is still on its way
    assert said == [m.ReleaseLease("b", 7)]
    machine.handle(m.LeaseGranted("b", 8, 3_000, 7_000), 7_020)
    assert states(machine)[1] is Duty.ACTING


def test_a10_giving_back_stops_first_then_tells_then_forgets_then_releases() -> None:
    machine = acting()
    said = machine.handle(m.GiveBackAsked(), 3_100)
    (stop,) = of(m.StopReplay, said)
    assert isinstance(stop, m.StopReplay)
    assert not machine.may_act(3_100)
    assert not of(m.SendGiveBack, said)
    (send,) = of(m.SendGiveBack, machine.handle(m.ReplayStopped(stop.number), 3_200))
    assert isinstance(send, m.SendGiveBack)
    assert send.epoch == 7
    assert machine.handle(m.GiveBackDone(send.token - 1), 3_300) == []
    said = machine.handle(m.GiveBackDone(send.token), 3_300)
    kinds = [type(one) for one in said if not isinstance(one, m.Report)]
    assert kinds == [m.Forget, m.Remember, m.ReleaseLease]
    assert states(machine)[1] is Duty.IDLE
    assert not machine.memory.owes


def test_a10_a_partner_that_dies_while_it_gets_its_events_back_is_acted_for_again() -> None:
    machine = acting()
    machine.handle(m.Heard(Heartbeat(1)), 3_050)
    machine.handle(m.GiveBackAsked(), 3_100)
    said: list[m.Instruction] = []
    for now_ms in range(3_500, 7_001, 500):
        machine.handle(m.Tick(), now_ms)
        said = machine.handle(m.LeaseGranted("b", 7, 3_000, now_ms), now_ms)
    assert states(machine)[1] is Duty.TAKING_OVER
    assert said == [m.ReleaseLease("b", 7)]  # what was done in it was told
    machine.handle(m.LeaseGranted("b", 8, 3_000, 7_000), 7_010)
    assert states(machine)[1] is Duty.ACTING
    assert machine.memory == Memory(act=8, owes=True)


def test_a10_nobody_acts_again_in_an_epoch_that_was_given_back() -> None:
    """The partner waits for nothing more that was done in it. A witness may keep it for who had it last."""
    machine = acting()
    machine.handle(m.Tick(), 5_700)  # the lease ran out
    (send,) = of(m.SendGiveBack, give_back(machine, 5_800))
    assert isinstance(send, m.SendGiveBack)
    machine.handle(m.GiveBackDone(send.token), 5_900)
    for again in (machine, new(memory=machine.memory)):
        for now_ms in range(6_000, 10_001, 500):
            again.handle(m.Tick(), now_ms)
        assert again.handle(m.LeaseGranted("b", 7, 3_000, 10_000), 10_010) == [m.ReleaseLease("b", 7)]
        assert states(again)[1] is Duty.TAKING_OVER
        again.handle(m.LeaseGranted("b", 8, 3_000, 10_500), 10_510)
        assert states(again)[1] is Duty.ACTING


def give_back(machine: Machine, now_ms: int) -> list[m.Instruction]:
    """With nothing on its way."""
    machine.handle(m.ReplayStopped(1), now_ms)
    machine.handle(m.Heard(Heartbeat(1)), now_ms)
    return machine.handle(m.GiveBackAsked(), now_ms)


def test_a10_acting_ends_with_the_lease() -> None:
    machine = acting()
    assert machine.may_act(5_699)
    assert not machine.may_act(5_700)
    said = machine.handle(m.Tick(), 5_700)
    assert of(m.StopReplay, said)
    assert machine.memory.owes


def test_a10_who_was_acted_for_waits_for_what_was_done_but_not_for_ever() -> None:
    machine = new(memory=Memory(epoch=4))
    machine.handle(m.Tick(), 0)
    machine.handle(m.LeaseGranted("a", 6, 3_000, 0), 10)  # 5 was somebody else's
    assert states(machine)[0] is Right.OWED
    said: list[m.Instruction] = []
    now_ms = 10
    while states(machine)[0] is Right.OWED:
        now_ms += 500
        machine.handle(m.LeaseGranted("a", 6, 3_000, now_ms), now_ms)
        said = machine.handle(m.Tick(), now_ms)
    assert now_ms >= TIMING.return_wait_ms
    assert "unreturned" in reports(said)


def test_a10_what_the_partner_did_is_recorded_before_it_is_told_so() -> None:
    machine = new(memory=Memory(epoch=4))
    machine.handle(m.Tick(), 0)
    machine.handle(m.Heard(Heartbeat(1, acting=5, owes=True)), 10)
    assert states(machine)[0] is Right.RETURNING
    assert of(m.AskGiveBack, machine.handle(m.Tick(), 20)) == [m.AskGiveBack(4)]
    said = machine.handle(m.StateApplied(5, 77), 100)
    assert said == [m.Remember(Memory(epoch=5)), m.SendDone(77)]
    machine.handle(m.LeaseGranted("a", 6, 3_000, 100), 200)
    assert states(machine)[0] is Right.HOLDING


def test_a10_degraded_and_paired_are_said_once_each() -> None:
    machine = holding()
    machine.handle(m.Recipients(1), 50)
    heard = reports(machine.handle(m.Mirrored(True, 1), 100))
    heard += reports(machine.handle(m.Mirrored(False, 1, "why"), 200))
    heard += reports(machine.handle(m.Mirrored(False, 1, "why"), 300))
    heard += reports(machine.handle(m.Mirrored(True, 1), 400))
    assert heard == ["paired", "degraded", "paired"]


def test_a10_a_pair_is_not_whole_before_the_partner_knows_the_recipients() -> None:
    machine = holding()
    machine.handle(m.Mirrored(True, 0), 100)
    assert bond(machine) is Bond.ALONE  # it has every event, and does not know for whom
    machine.handle(m.Recipients(1), 200)
    machine.handle(m.Heard(Heartbeat(1)), 250)
    assert bond(machine) is Bond.ALONE
    assert reports(machine.handle(m.Mirrored(True, 1), 300)) == ["paired"]
    assert bond(machine) is Bond.PAIRED


def test_a10_recipients_that_change_are_told_before_a_pair_is_whole_again() -> None:
    machine = holding()
    machine.handle(m.Recipients(1), 50)
    machine.handle(m.Mirrored(True, 1), 100)
    assert machine.handle(m.Recipients(2), 200) == []
    assert bond(machine) is Bond.TELLING
    assert machine.handle(m.Mirrored(True, 1), 250) == []  # said before, told later
    assert bond(machine) is Bond.TELLING
    assert machine.handle(m.Mirrored(True, 2), 300) == []  # nothing was without its copy: nothing to report
    assert bond(machine) is Bond.PAIRED
    machine.handle(m.Recipients(3), 400)
    assert reports(machine.handle(m.Mirrored(False, 2, "why"), 450)) == ["degraded"]
    assert machine.handle(m.Mirrored(True, 2), 500) == []
    assert bond(machine) is Bond.DEGRADED
    assert reports(machine.handle(m.Mirrored(True, 3), 550)) == ["paired"]


def test_a10_times_fit_each_other() -> None:
    for lease_ms in (100, 1_000, 3_000, 60_000):
        timing = Timing.of(lease_ms)
        assert 2 * timing.heartbeat_ms < timing.silence_ms <= timing.takeover_ms - timing.margin_ms
        assert timing.retry_ms < timing.lease_ms - 2 * timing.margin_ms
        assert timing.takeover_ms >= timing.lease_ms
        assert timing.pause_ms <= timing.takeover_ms - timing.margin_ms
