"""Two event systems that cooperate, a witness, and everything that can go wrong between them, from a seed (A-10)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from clarion.events.pair import messages as m
from clarion.events.pair.messages import Policy
from clarion.events.pair.states import Bond, Duty, Right
from clarion.testing.invariants import Handling
from tests.simulation.pair_hosts import System, Witness

CHAOS_MS = 30_000
REST_MS = 90_000


class Broken(AssertionError):
    """A promise was broken; says which, and how to see it again."""


@dataclass
class Setup:
    """What goes wrong."""

    policy: Policy
    loss: float = 0
    doubling: float = 0
    delay_ms_max: int = 5
    faults: list[tuple[int, str, str, int]] = field(default_factory=list)
    """(when, what, to whom, how long)"""
    rates: dict[str, float] = field(default_factory=lambda: {"a": 1.0, "b": 1.0})
    emits: int = 40
    changes: int = 4
    """So often recipients change."""

    @classmethod
    def draw(cls, random: Random, policy: Policy) -> Setup:
        kinds = ["crash", "pause", "cut", "deaf", "witness"]
        faults = [
            (
                random.randrange(CHAOS_MS),
                random.choice(kinds),
                random.choice("ab"),
                random.choice((50, 1_000, 2_800, 3_500, 8_000, 25_000)),
            )
            for _ in range(random.choice((0, 1, 2, 3, 6, 10)))
        ]
        return cls(
            policy,
            loss=random.choice((0, 0, 0.05, 0.3)),
            doubling=random.choice((0, 0, 0.2)),
            delay_ms_max=random.choice((5, 5, 50, 1_000, 6_000)),
            faults=sorted(faults),
            rates={"a": random.choice((0.98, 1, 1.02)), "b": random.choice((0.98, 1, 1.02))},
        )


class World:
    """Both systems, the witness, the network and the clock.

    Real: the machine of `clarion.events.pair`. Simulated: clocks that run differently, a network that loses, doubles,
    delays, reorders and is cut (each way by itself), persistent memories, recipients, crashes that lose all soft state,
    pauses after which everything that waited happens at once, a witness that is away. Then everything heals, and the
    world runs until it is at rest.

    What must hold is `clarion.testing.invariants.Handling`; that a system which calls itself paired has a partner that
    has recorded who its recipients are, and could deliver every event for which `emit()` returned; and that in the end
    both memories are empty and both systems deliver their own events again.
    """

    def __init__(self, seed: int, policy: Policy, setup: Setup | None = None, story: bool = False) -> None:
        self.random = Random(f"{seed} {policy}")
        self.changing = Random(f"{seed} {policy} recipients")  # of its own: what else happens stays the same
        self.setup = setup or Setup.draw(self.random, policy)
        self.again = f"run({seed}, Policy.{policy.name}{'' if setup is None else f', {setup}'})"
        self.story: list[str] | None = [] if story else None
        self.now_ms = 1_000.0
        self.healed = False
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self.cut: dict[tuple[str, str], float] = {}
        self.witness = Witness(self.random.random() < 0.5)
        self.witness_until_ms = 0.0
        self.handling = Handling(exclusive=policy is not Policy.REPLAY)
        self.systems = {"a": System("a", "b", self), "b": System("b", "a", self)}
        self.seen: set[str] = set()
        for when, what, whom, long_ms in self.setup.faults:
            self.plan(when, self.fault, what, whom, long_ms)
        for _ in range(self.setup.emits):
            self.plan(self.random.randrange(CHAOS_MS), self.systems[self.random.choice("ab")].emit)
        for _ in range(self.setup.changes):
            self.plan(self.changing.randrange(CHAOS_MS), self.systems[self.changing.choice("ab")].change)
        self.plan(CHAOS_MS, self.heal)

    def plan(self, in_ms: float, what: Callable[..., None], *about: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_ms + in_ms, self._order, what, about))

    def chance(self, probability: float, random: Random) -> bool:
        return not self.healed and probability > 0 and random.random() < probability

    # --- the network --------------------------------------------------------------------------------

    def _travel(self, sender: str, to: str, what: Callable[..., None], *about: object, note: bool = False) -> None:
        random = self.changing if note else self.random
        if self.chance(self.setup.loss, random):
            return
        for _ in range(2 if self.chance(self.setup.doubling, random) else 1):
            delay_ms = 1 + (4 if self.healed else random.random() ** 3 * self.setup.delay_ms_max)
            self.plan(delay_ms, self._arrive, sender, to, what, about)

    def _arrive(self, sender: str, to: str, what: Callable[..., None], about: tuple[object, ...]) -> None:
        if self.cut.get((sender, to), 0) <= self.now_ms:
            what(*about)

    def send(self, sender: str, to: str, kind: str, about: tuple[object, ...]) -> None:
        system = self.systems[to]
        self._travel(sender, to, lambda: system.after(0, system.receive, kind, about), note=kind in ("note", "noted"))

    def ask(self, system: System, name: str, ttl_ms: int, asked_ms: int) -> None:
        run = system.run

        def asked() -> None:
            if self.now_ms < self.witness_until_ms:
                return
            epoch = self.witness.acquire(name, system.name, ttl_ms, self.now_ms)
            answer: m.Stimulus = m.LeaseGranted(name, epoch, ttl_ms, asked_ms) if epoch else m.LeaseRefused(name)
            self._travel("w", system.name, answered, answer)

        def answered(answer: m.Stimulus) -> None:
            if system.run == run:
                system.after(0, system.handle, answer)

        self._travel(system.name, "w", asked)

    def release(self, system: System, name: str, epoch: int) -> None:
        self._travel(system.name, "w", self.witness.release, name, system.name, epoch)

    # --- what goes wrong ----------------------------------------------------------------------------

    def fault(self, what: str, whom: str, long_ms: int) -> None:
        system, other = self.systems[whom], self.systems[whom].other
        self.tell("FAULT %s of %s for %s ms", what, whom, long_ms)
        until_ms = self.now_ms + long_ms
        if what == "crash" and system.up:
            system.up = False
            system.paused_until_ms = 0
            self.plan(long_ms, self._restart, system)
        elif what == "pause" and system.runs:
            system.paused_until_ms = until_ms
        elif what == "cut":
            self.cut[whom, other] = self.cut[other, whom] = until_ms
        elif what == "deaf":
            for sender in (other, "w"):
                self.cut[sender, whom] = until_ms
        elif what == "alone":
            for end in (other, "w"):
                self.cut[end, whom] = self.cut[whom, end] = until_ms
        elif what == "witness":
            self.witness_until_ms = until_ms
        if self.setup.policy is Policy.WAIT and what in ("crash", "pause") and long_ms > 3_500:
            self.plan(3_400, self._operate, system, self.systems[other])

    def _operate(self, dead: System, survivor: System) -> None:
        """An operator who looks before he speaks."""
        if not dead.runs and survivor.runs:
            survivor.handle(m.TakeOver())

    def _restart(self, system: System) -> None:
        if not system.up:
            self.tell("%s starts again", system.name)
            system.start()

    def heal(self) -> None:
        self.tell("everything heals")
        self.healed = True
        self.cut.clear()
        self.witness_until_ms = 0
        for system in self.systems.values():
            system.paused_until_ms = 0
            self._restart(system)

    # --- the run ------------------------------------------------------------------------------------

    def watch_rights(self) -> None:
        for owner in self.systems.values():
            other = self.systems[owner.other]
            holders = [owner.name] if owner.runs and owner.machine.may_deliver(owner.now_ms) else []
            if other.runs and other.machine.may_act(other.now_ms):
                holders.append(other.name)
                self.seen.add("acting")
            self.handling.on_rights(owner.name, holders)
            self.seen.add(owner.machine.right.value)
            self.seen.add(owner.machine.duty.value)
        if self.handling.faults:
            self.fail(self.handling.faults[0])

    def watch_bond(self, system: System) -> None:
        """Whatever happens next, the partner knows for whom our events are, or we do not say that we have one."""
        self.seen.add(system.machine.bond.value)
        if system.machine.bond is Bond.PAIRED and self.systems[system.other].noted < system.recipients:
            self.fail(f"{system.name} is paired, but {system.other} does not know its recipients")

    def run(self) -> World:
        end_ms = self.now_ms + CHAOS_MS + REST_MS
        rest_ms = 0.0
        while self._events and self.now_ms < end_ms:
            self.now_ms, _, what, about = heapq.heappop(self._events)
            what(*about)
            if self.healed and self.now_ms > rest_ms:
                if rest_ms and not self.unrest():
                    break
                rest_ms = self.now_ms + 2_000
        try:
            self.handling.check()
        except AssertionError as error:
            self.fail(str(error))
        if unrest := self.unrest():
            self.fail(unrest)
        return self

    def unrest(self) -> str:
        """Why it is not over yet."""
        for system in self.systems.values():
            machine = system.machine
            found = (machine.right, machine.duty, machine.bond, system.own, system.kept, system.memory.owes)
            if found != (Right.HOLDING, Duty.IDLE, Bond.PAIRED, {}, {}, False):
                return f"{system.name} is not at rest: {found}"
        return ""

    def tell(self, text: str, *about: object) -> None:
        if self.story is not None:
            self.story.append(f"{self.now_ms:>10.1f} ms  " + text % tuple(map(str, about)))

    def fail(self, promise: str) -> None:
        story = "\n".join((self.story or [])[-400:])
        raise Broken(f"{story}\n{promise}\nto see it again: tests.simulation.pair_world.{self.again}")


def run(seed: int, policy: Policy, setup: Setup | None = None) -> World:
    """One world; if a promise is broken, once more with its story."""
    try:
        return World(seed, policy, setup).run()
    except Broken:
        return World(seed, policy, setup, story=True).run()
