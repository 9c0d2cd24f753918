"""Clients, client managers and message managers that commit across groups while everything fails, from a seed.

Real: the machines of `clarion.core.two_phase`, and the bytes of their messages. Simulated: clock, network, logs and
crashes. For a while the network loses, doubles, delays and reorders, logs fill up, and anybody crashes between any two
steps; a log loses what was not durable. Then everything heals, and the world runs until it is at rest.

What must hold then, and is checked by `check`:
    1. no group decided a transaction twice, or otherwise than another group       (all or nothing)
    2. what is committed is committed with all its batches at all its participants
    3. what a client was told is so, and a commit was durable everywhere when told (nothing is lost)
    4. nothing is open any more, and every client that lives has its answer        (no doubt for ever)
    5. a bundle is committed with all its handles, or has committed none
    6. nobody found a contradiction, and replaying a log gives the state that its group has
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from clarion.core import two_phase as tp
from clarion.core.two_phase.messages import EXPIRED, Entry
from tests.simulation.two_phase_hosts import OWNING, Client, Group, Manager, Node, Payload, Staged

CHAOS_MS = 90_000
STEPS_MAX = 20_000
"""Healing takes some hundreds; more is a world that never comes to rest."""
BATCHES_MAX = 2


class Broken(AssertionError):
    """A promise was broken; says which, and how to see it again."""


@dataclass
class Setup:
    """Who is there, what they want, and what goes wrong."""

    groups: int
    clients: list[tuple[str, dict[int, int]]]
    """What each wants, and how many batches it stages in which groups."""
    loss: float = 0
    doubling: float = 0
    delay_ms_max: int = 1
    refusal: float = 0
    full: float = 0
    fragility: float = 0
    """How likely somebody crashes after having been told something."""
    patience_ms: int = 4_000
    """After which a client asks again, at the latest."""
    skews_ms: tuple[int, ...] = (0,)
    survives: slice = field(default_factory=lambda: slice(None))
    """How much of the entries that were not durable a crash may leave, from none to all of them."""
    crashes: list[tuple[int, Node]] = field(default_factory=list)
    """At which time who crashes …"""
    crashes_after: dict[int, Node] = field(default_factory=dict)
    """… and after which step."""
    away_ms: tuple[int, ...] = (1, 500, 10_000, 45_000)

    @classmethod
    def draw(cls, random: Random) -> Setup:
        """A world full of mishaps."""
        groups = random.randint(2, 4)
        clients: list[tuple[str, dict[int, int]]] = []
        for _ in range(random.randint(1, 4)):
            chosen = random.sample(range(1, groups + 1), random.randint(1, groups))
            goal = random.choice(("commit", "commit", "commit", "hold", "hold", "rollback"))
            clients.append((goal, {group: random.randint(0, BATCHES_MAX) for group in chosen}))
        if any(goal == "hold" for goal, _ in clients):
            owners = random.choice((("own",), ("own",), ("own", "own"), ("own", "give up"), ("give up",), ()))
            clients += [(owner, {}) for owner in owners]
        nodes = [Node("group", number) for number in range(1, groups + 1)]
        nodes += [Node("manager", number) for number in range(2)]
        nodes += [Node("client", number) for number in range(len(clients))]
        within_ms = random.choice((3_000, 20_000, CHAOS_MS))
        crashes = random.choice((0, 1, 2, 5, 12))
        return cls(
            groups,
            clients,
            loss=random.choice((0, 0, 0.05, 0.3)),
            doubling=random.choice((0, 0.1, 0.3)),
            delay_ms_max=random.choice((5, 50, 2_000, 40_000)),
            refusal=random.choice((0, 0, 0.1)),
            full=random.choice((0, 0, 0.05)),
            fragility=random.choice((0, 0, 0.01, 0.05)),
            patience_ms=random.choice((4_000, 4_000, 40_000)),
            skews_ms=(0, 0, 3_000, 20_000),
            crashes=[(random.randrange(within_ms), random.choice(nodes)) for _ in range(crashes)],
        )


Anybody = Group | Manager | Client


class World:
    """Everybody, the clock and the network. `run` raises `Broken` if a promise is."""

    def __init__(self, seed: int, setup: Setup | None = None, story: bool = False) -> None:
        self.story: list[str] | None = [] if story else None
        random = self.random = Random(seed)
        self.setup = setup or Setup.draw(random)
        self.again = f"run({seed}{'' if setup is None else f', {setup}'})"
        self.now_ms = 1_000
        self.steps = 0
        self.healed = False
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self._transactions = 0
        self.bundles: dict[tp.TransactionId, tuple[tp.Handle, ...]] = {}
        self.held: list[tp.Handle] = []
        self.told: dict[tp.TransactionId, tuple[tp.Decision, tuple[int, ...]]] = {}
        self.expiry: dict[tuple[int, tp.TransactionId], int] = {}
        self.groups = [Group(number, self) for number in range(1, self.setup.groups + 1)]
        self.managers = [Manager(number, self) for number in range(2)]
        self.clients = [
            Client(number, self, goal, {group: tp.Part(b"%d" % batches) for group, batches in staged.items()})
            for number, (goal, staged) in enumerate(self.setup.clients)
        ]
        everybody: list[Anybody] = [*self.groups, *self.managers, *self.clients]
        self._nodes = {one.node: one for one in everybody}
        for client in self.clients:
            self.plan(random.randrange(3_000), client.act)
        for at_ms, victim in self.setup.crashes:
            self.plan(at_ms, self.crash, self._nodes[victim])
        self.plan(CHAOS_MS, self.heal)

    # --- what the hosts need --------------------------------------------------------------------------

    def new_transaction(self) -> tp.TransactionId:
        self._transactions += 1
        return tp.TransactionId.of(self._transactions, 1)

    def chance(self, probability: float) -> bool:
        return not self.healed and probability > 0 and self.random.random() < probability

    def some_manager(self) -> Manager:
        return self.random.choice(self.managers)

    def plan(self, in_ms: int, what: Callable[..., None], *about: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_ms + in_ms, self._order, what, about))

    def send(self, sender: Node, to: Node, payload: Payload) -> None:
        if self.chance(self.setup.loss):
            self.tell("%s -> %s LOST %s", sender, to, payload)
            return
        copies = 2 if self.chance(self.setup.doubling) else 1
        for _ in range(copies):
            delay_ms = 5 if self.healed else 1 + int(self.random.random() ** 3 * self.setup.delay_ms_max)
            self.plan(delay_ms, self.deliver, sender, to, payload)

    # --- the run --------------------------------------------------------------------------------------

    def run(self) -> World:
        while self.steps < STEPS_MAX:
            if not self._events:
                self.check()
                return self
            self.now_ms, _, what, about = heapq.heappop(self._events)
            what(*about)
            self.steps += 1
            if (victim := self.setup.crashes_after.get(self.steps)) is not None:
                self.crash(self._nodes[victim])
        return self.fail(f"no rest after {STEPS_MAX} steps")

    def deliver(self, sender: Node, to: Node, payload: Payload) -> None:
        node = self._nodes[to]
        if node.up:
            self.tell("%s -> %s %s", sender, to, payload)
            node.receive(payload, sender)
            if self.chance(self.setup.fragility):
                self.crash(node)

    def heal(self) -> None:
        self.tell("everything heals")
        self.healed = True
        for group in self.groups:
            self.restart(group)
        for manager in self.managers:
            self.restart(manager)

    def crash(self, victim: Anybody) -> None:
        if victim.up and not self.healed:
            self.tell("%s CRASHES", victim.node)
            victim.crash()
            self.plan(self.random.choice(self.setup.away_ms), self.restart, victim)

    def restart(self, victim: Anybody) -> None:
        if not victim.up:
            self.tell("%s is noticed to be gone, or comes back", victim.node)
            victim.restart()

    # --- promises -------------------------------------------------------------------------------------

    def logged(self, group: Group, entry: Entry | Staged) -> None:
        """Nobody gives up a prepared transaction before its decision holder's clock says so."""
        if isinstance(entry, tp.Prepared) and entry.participants[0] == group.number:
            self.expiry[group.number, entry.transaction] = entry.expires_at_ms
        if isinstance(entry, tp.Decided) and entry.reason == EXPIRED:
            transaction = entry.transactions[0]
            if group.now_ms < self.expiry.get((group.number, transaction), 0):
                self.fail(f"{group.node} gave {transaction} up before it expired")

    def reported(
        self, transaction: tp.TransactionId, participants: tuple[int, ...], said: tp.Outcome | tp.Held
    ) -> None:
        """A client manager is about to tell its client."""
        self.tell("outcome of %s: %s", transaction, said)
        if isinstance(said, tp.Held):
            return
        known = self.told.setdefault(transaction, (said.decision, participants))
        if known != (said.decision, participants):
            self.fail(f"{transaction} was first told to be {known}, then {said}")
        if said.decision is tp.Decision.COMMIT:
            for number in participants:
                group = self.groups[number - 1]
                if transaction not in _decided(group.log[: group.durable], tp.Decision.COMMIT):
                    self.fail(f"{transaction} was told to be committed before it was durable at {group.node}")

    def check(self) -> None:
        """The world is at rest: does everything hold?"""
        committed = {group.number: _decided(group.log, tp.Decision.COMMIT) for group in self.groups}
        aborted = {group.number: _decided(group.log, tp.Decision.ABORT) for group in self.groups}
        anywhere = set().union(*committed.values())
        for transaction in anywhere & set().union(*aborted.values()):
            self.fail(f"{transaction} was committed here and aborted there")
        prepared = {
            entry.transaction: entry.participants
            for group in self.groups
            for entry in group.log
            if isinstance(entry, tp.Prepared)
        }
        for transaction in anywhere:
            for number in prepared.get(transaction, ()):
                if transaction not in committed[number]:
                    self.fail(f"{transaction} was committed, but not at group {number}")
        for client in self.clients:
            if client.goal not in OWNING and client.transaction in anywhere:
                for number, part in client.parts.items():
                    batches = self.groups[number - 1].staged.get(client.transaction, set())
                    if client.transaction not in committed[number] or len(batches) != int(part.work):
                        self.fail(f"{client.transaction} is committed without all of its batches at group {number}")
            if client.up and client.answer is None:
                self.fail(f"{client.node} has no answer")
        for transaction, (decision, participants) in self.told.items():
            here = [number for number in participants if transaction in committed[number]]
            if here != (list(participants) if decision is tp.Decision.COMMIT else []):
                self.fail(f"{transaction} was told to be {decision.name}, and is committed at groups {here}")
        for bundle, handles in self.bundles.items():
            if bundle in anywhere and not all(handle.transaction in anywhere for handle in handles):
                self.fail(f"the bundle {bundle} was committed without all of {handles}")
        for group in self.groups:
            if len(group.participants):
                self.fail(f"{group.node} still has {group.participants.dump()!r}")
            if group.participants.dump() != group.replayed().dump():
                self.fail(f"the log of {group.node} says something else than its state")

    # --- the story ------------------------------------------------------------------------------------

    def tell(self, text: str, *about: object) -> None:
        if self.story is not None:
            shown = (tp.decode(one) if isinstance(one, bytes) else one for one in about)
            self.story.append(f"{self.now_ms:>8} ms  " + text % tuple(map(str, shown)))

    def fail(self, promise: str) -> World:
        story = "\n".join(self.story or ())
        raise Broken(f"{story}\n{promise}\nto see it again: tests.simulation.two_phase_world.{self.again}")


def _decided(log: list[Entry | Staged], decision: tp.Decision) -> set[tp.TransactionId]:
    return {
        transaction
        for entry in log
        if isinstance(entry, tp.Decided) and entry.decision is decision
        for transaction in entry.transactions
    }


def run(seed: int, setup: Setup | None = None) -> World:
    """One world; if a promise is broken, once more with its story."""
    try:
        return World(seed, setup).run()
    except Broken:
        return World(seed, setup, story=True).run()
