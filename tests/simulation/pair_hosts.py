"""The hosts of a simulated pair: two event systems with their memories and recipients, and their witness (A-10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clarion.events.pair import messages as m
from clarion.events.pair.machine import Machine
from clarion.events.pair.messages import Memory, Timing
from clarion.events.pair.states import Bond

if TYPE_CHECKING:
    from tests.simulation.pair_world import World

TICK_MS = 250
TIMING = Timing.of(3_000)


class Witness:
    """Leases; its clock is the world's. `keeps_epoch`: for a holder that comes late, if nobody else came."""

    def __init__(self, keeps_epoch: bool) -> None:
        self.keeps_epoch = keeps_epoch
        self.leases: dict[str, tuple[str, int, float]] = {}
        self.epochs: dict[str, int] = {}

    def acquire(self, name: str, holder: str, ttl_ms: int, now_ms: float) -> int:
        """The epoch, or 0."""
        held, epoch, until_ms = self.leases.get(name, ("", 0, 0))
        if until_ms > now_ms and held != holder:
            return 0
        if held != holder or (until_ms <= now_ms and not self.keeps_epoch):
            epoch = self.epochs[name] = self.epochs.get(name, 0) + 1
        self.leases[name] = (holder, epoch, now_ms + ttl_ms)
        return epoch

    def release(self, name: str, holder: str, epoch: int) -> None:
        if self.leases.get(name, ("", 0, 0))[:2] == (holder, epoch):
            del self.leases[name]


class System:
    """One of the two, with what it keeps across a crash, and what it does not.

    Recipients change now and then, each time under a new number, and a system that starts knows its own only a moment
    later. A copy can be delivered by who knows the recipients it was recorded for, by their number.
    """

    def __init__(self, name: str, other: str, world: World) -> None:
        self.name, self.other, self.world = name, other, world
        # Durable.
        self.memory = Memory()
        self.own: dict[int, bool] = {}
        """Events that are not released, and whether they are confirmed."""
        self.sequence = 0
        self.kept: dict[int, bool] = {}
        """The partner's events, and whether we have confirmed them for it."""
        self.kept_to = 0
        self.recipients = 1
        self.recorded_for: dict[int, int] = {}
        """Own events, and the recipients of when they were recorded."""
        self.noted = 0
        """The recipients of the partner, as far as we know."""
        # Soft.
        self.up = False
        self.paused_until_ms = 0.0
        self.run = 0
        self.start()

    def start(self) -> None:
        self.up = True
        self.run += 1
        first = int(self.world.now_ms * 1_000_000) + 1
        self.machine = Machine(
            self.name, self.other, self.world.setup.policy, TIMING, self.memory, now_ms=self.now_ms, first=first
        )
        self.stored_to = 0
        self.told_settled = 0
        self.whole = False
        self.known = False
        """There is an engine, so it is known who the recipients are."""
        self.told = 0
        """The recipients that the partner has recorded, as it said since this start."""
        self.putting: dict[int, int] = {}
        self.replaying = False
        self.busy: set[tuple[str, int]] = set()
        self.stopping: list[int] = []
        self.after(0, self.tick)
        self.after(20, self.deliver)
        self.after(self.world.changing.choice((0, 100, 2_000)), self.know)

    @property
    def now_ms(self) -> int:
        return int(self.world.now_ms * self.world.setup.rates[self.name]) + (7_000_000 if self.name == "b" else 0)

    @property
    def runs(self) -> bool:
        return self.up and self.paused_until_ms <= self.world.now_ms

    # --- doing things in time -----------------------------------------------------------------------

    def after(self, in_ms: float, what: Callable[..., None], *about: object) -> None:
        """In this run of the system only; what falls into a pause happens when it ends, in order."""
        self.world.plan(in_ms, self._due, self.run, what, about)

    def _due(self, run: int, what: Callable[..., None], about: tuple[object, ...]) -> None:
        if not self.up or run != self.run:
            return
        if not self.runs:
            self.world.plan(self.paused_until_ms - self.world.now_ms, self._due, run, what, about)
            return
        what(*about)

    def tick(self) -> None:
        self.handle(m.Tick())
        untold = self.known and self.told < self.recipients
        if untold:
            self.send("note", self.recipients)
        if not self.whole and self.world.random.random() < 0.6 and not untold:
            missing = [one for one in self.own if one > self.stored_to]
            self.send("put", missing, self.sequence)
        settled = self.sequence - len(self.own)
        if settled != self.told_settled or self.world.random.random() < 0.1:
            self.told_settled = settled
            self.send("released", [one for one in range(1, self.sequence + 1) if one not in self.own])
        self.after(TICK_MS, self.tick)

    def handle(self, stimulus: m.Stimulus) -> None:
        if not isinstance(stimulus, m.Tick):
            self.world.tell("%s <- %s", self.name, stimulus)
        said = self.machine.handle(stimulus, self.now_ms)
        self.world.watch_rights()
        self.world.watch_bond(self)
        for instruction in said:
            if not isinstance(instruction, m.SendHeartbeat | m.AskLease):
                self.world.tell("%s    -> %s", self.name, instruction)
            self.obey(instruction)

    def obey(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.SendHeartbeat(heartbeat):
                self.send("heartbeat", heartbeat, True)
            case m.AskLease(name, ttl_ms, asked_ms):
                self.world.ask(self, name, ttl_ms, asked_ms)
            case m.ReleaseLease(name, epoch):
                self.world.release(self, name, epoch)
            case m.Remember(memory):
                self.memory = memory
            case m.StartReplay():
                self.replaying = True
            case m.StopReplay(number):
                self.replaying = False
                self.stopping.append(number)
                self.stopped()
            case m.AskGiveBack():
                self.send("ask")
            case m.SendGiveBack(epoch, token):
                self.send("state", epoch, token, [one for one, done in self.kept.items() if done])
            case m.SendDone(token):
                self.send("done", token)
            case m.Forget():
                for one, done in list(self.kept.items()):
                    if done:
                        del self.kept[one]
            case m.Report("clarion.pair.unreturned"):
                self.world.handling.doubles = True
            case _:
                pass

    # --- events -------------------------------------------------------------------------------------

    def emit(self) -> None:
        if not self.runs:
            return
        self.sequence += 1
        number = self.sequence
        self.own[number] = False
        self.recorded_for[number] = self.recipients
        self.world.handling.on_recorded((self.name, number))
        if self.whole:
            self.putting[number] = number
            if not self.known or self.told >= self.recipients:
                self.send("put", [number], number)
            self.after(1_000, self.late, number)
        else:
            self.returned(number)

    def returned(self, number: int) -> None:
        """`emit()` has returned. In a pair that says it is one, the partner can deliver the event from now on."""
        self.world.handling.on_emitted((self.name, number))
        if self.machine.bond is Bond.PAIRED and number in self.own:
            partner = self.world.systems[self.other]
            if partner.kept_to < number or partner.noted < self.recorded_for[number]:
                self.world.fail(f"{self.name} is paired, but {self.other} cannot deliver its event {number}")

    def know(self) -> None:
        """The engine begins: it knows the recipients."""
        self.known = True
        self.handle(m.Recipients(self.recipients))

    def change(self) -> None:
        """Somebody comes or goes, in a system that delivers."""
        if self.runs and self.known:
            self.recipients += 1
            self.handle(m.Recipients(self.recipients))

    def late(self, number: int) -> None:
        """The partner's copy did not come in time: degraded, and emit() returns."""
        if self.putting.pop(number, None) is not None:
            self.mirrored(False)
            self.returned(number)

    def mirrored(self, whole: bool) -> None:
        if whole != self.whole:
            self.whole = whole
            self.handle(m.Mirrored(whole, self.told))

    def deliver(self) -> None:
        self.after(150, self.deliver)
        self.world.watch_rights()
        if self.machine.may_deliver(self.now_ms):
            for one in [one for one, done in self.own.items() if not done][:3]:
                self.hand_out(self.name, one)
        if self.replaying and self.machine.may_act(self.now_ms):
            known = self.world.systems[self.other].recorded_for
            for one in [one for one, done in self.kept.items() if not done and known[one] <= self.noted][:3]:
                self.hand_out(self.other, one)

    def hand_out(self, owner: str, number: int) -> None:
        if (owner, number) not in self.busy:
            self.busy.add((owner, number))
            self.world.handling.on_handled((owner, number), self.name)
            self.after(self.world.random.choice((1, 10, 300)), self.confirmed, owner, number)

    def confirmed(self, owner: str, number: int) -> None:
        self.busy.discard((owner, number))
        if owner == self.name:
            self.own.pop(number, None)
        elif number in self.kept:
            self.kept[number] = True
            self.world.handling.on_done_for_partner((owner, number), self.name)
        self.stopped()

    def stopped(self) -> None:
        if self.stopping and not any(owner == self.other for owner, _ in self.busy):
            numbers, self.stopping = self.stopping, []
            for number in numbers:
                self.handle(m.ReplayStopped(number))

    # --- messages -----------------------------------------------------------------------------------

    def send(self, kind: str, *about: object) -> None:
        self.world.send(self.name, self.other, kind, about)

    def receive(self, kind: str, about: tuple[Any, ...]) -> None:
        match kind, about:
            case "heartbeat", (heartbeat, wants_answer):
                self.handle(m.Heard(heartbeat))
                if wants_answer:
                    self.send("heartbeat", self.machine.heartbeat(self.now_ms), False)
            case "put", (numbers, end):
                for number in numbers:
                    if number > self.kept_to:
                        self.kept[number] = False
                        self.kept_to = number
                self.send("stored", numbers, end)
            case "stored", (numbers, end):
                for number in numbers:
                    if self.putting.pop(number, None) is not None:
                        self.returned(number)
                self.stored_to = max(self.stored_to, end)
                if not self.whole and self.stored_to >= self.sequence:
                    self.mirrored(True)
            case "note", (recipients,):
                self.noted = max(self.noted, recipients)
                self.send("noted", recipients)
            case "noted", (recipients,):
                if recipients > self.told:
                    self.told = recipients
                    self.handle(m.Mirrored(self.whole, self.told))
                    waited = [one for one in self.putting if one > self.stored_to]
                    if waited and self.told >= self.recipients:
                        self.send("put", waited, waited[-1])
            case "released", (numbers,):
                for number in numbers:
                    if not self.kept.get(number, True) or not self.memory.owes:
                        self.kept.pop(number, None)
            case "ask", ():
                self.handle(m.GiveBackAsked())
            case "state", (epoch, token, numbers):
                for number in numbers:
                    self.own.pop(number, None)
                self.handle(m.StateApplied(epoch, token))
            case "done", (token,):
                self.handle(m.GiveBackDone(token))
            case _:
                raise AssertionError(kind)
