"""The hosts of a simulated world: message managers, client managers, clients. See `two_phase_world`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clarion.core import two_phase as tp
from clarion.core.two_phase.coordinator import Stimulus as CoordinatorStimulus
from clarion.core.two_phase.messages import Entry, Message, ParticipantInstruction

if TYPE_CHECKING:
    from tests.simulation.two_phase_world import World

OWNING = ("own", "give up")
"""What a client does that has no transaction of its own: commit handles of others together, or give one up."""


class Node(NamedTuple):
    """An address."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class Staged(NamedTuple):
    """An entry of a host's own: a batch of a transaction."""

    transaction: tp.TransactionId
    batch: int


class StageRequest(NamedTuple):
    transaction: tp.TransactionId
    batch: int


class Request(NamedTuple):
    """A client wants its transaction committed, rolled back or held; or handles committed or given up."""

    transaction: tp.TransactionId
    goal: str
    parts: dict[int, tp.Part]
    handles: tuple[tp.Handle, ...]
    expires_at_ms: int


class Reply(NamedTuple):
    transaction: tp.TransactionId
    said: tp.Outcome | tp.Held | Staged | tp.Refuse


Payload = bytes | StageRequest | Request | Reply | tp.SessionEnded


@dataclass
class Group:
    """The host of a message manager: a log that is durable up to some entry, and effects that wait."""

    number: int
    world: World
    up: bool = True
    log: list[Entry | Staged] = field(default_factory=list)
    durable: int = 0
    waiting: deque[tuple[int, Node, Payload]] = field(default_factory=deque)
    syncing: bool = False
    ticking_ms: int = -1

    def __post_init__(self) -> None:
        self.node = Node("group", self.number)
        self.skew_ms = self.world.random.choice(self.world.setup.skews_ms)
        self.participants = tp.Participants(self.number)
        self.staged: dict[tp.TransactionId, set[int]] = {}

    def receive(self, payload: Payload, sender: Node) -> None:
        match payload:
            case StageRequest(transaction, batch):
                if batch in self.staged.get(transaction, ()):  # a producer's sequence makes it a double
                    self.send_after_durable(sender, Reply(transaction, Staged(transaction, batch)))
                    return
                said = self.participants.handle(tp.Stage(transaction), self.now_ms)
                if said and isinstance(said[0], tp.Refuse):
                    self.send_after_durable(sender, Reply(transaction, said[0]))
                elif self.carry_out(said, sender) and self.append(Staged(transaction, batch)):
                    self.send_after_durable(sender, Reply(transaction, Staged(transaction, batch)))
            case tp.SessionEnded():
                self.carry_out(self.participants.handle(payload, self.now_ms), sender)
            case bytes():
                message = tp.decode(payload)
                assert not isinstance(message, (tp.Ready, tp.Fail))
                self.carry_out(self.participants.handle(message, self.now_ms, self.problem(message)), sender)

    def problem(self, message: Message) -> str:
        """What a host looks at: is everything there that the client staged, and does nothing else forbid it?"""
        if not isinstance(message, (tp.Prepare, tp.CommitOne)) or not message.work:
            return ""
        if self.participants.state_of(message.transaction) not in tp.UNPREPARED:
            return ""
        if len(self.staged.get(message.transaction, ())) != int(message.work):
            return "staged batches are missing"
        return "a consumed message is no longer its own" if self.world.chance(self.world.setup.refusal) else ""

    def tick(self, planned_ms: int) -> None:
        if not self.up or self.ticking_ms != planned_ms:
            return
        self.ticking_ms = -1
        self.carry_out(self.participants.handle(tp.Tick(), self.now_ms), self.node)

    @property
    def now_ms(self) -> int:
        """Its own clock: no two are the same."""
        return self.world.now_ms + self.skew_ms

    def carry_out(self, instructions: list[ParticipantInstruction], sender: Node) -> bool:
        """False: the log was full, and the rest was dropped."""
        done = self._carry_out(instructions, sender)
        self.plan_tick()
        return done

    def _carry_out(self, instructions: list[ParticipantInstruction], sender: Node) -> bool:
        for said in instructions:
            match said:
                case tp.Log(entry):
                    if not self.append(entry):
                        return False
                case tp.AfterDurable(message, to):
                    self.send_after_durable(sender if to is None else Node("group", to), tp.encode(message))
                case tp.Contradiction():
                    self.world.fail(f"{said}")
        return True

    def append(self, entry: Entry | Staged) -> bool:
        world = self.world
        if world.chance(world.setup.full):
            world.tell("%s cannot write %s", self.node, entry)
            return False
        world.tell("%s logs %s", self.node, entry)
        self.log.append(entry)
        self.apply(entry)
        world.logged(self, entry)
        if not self.syncing:
            self.syncing = True
            world.plan(world.random.randrange(1, 30), self.synced, len(self.log))
        return True

    def apply(self, entry: Entry | Staged) -> None:
        if isinstance(entry, Staged):
            self.staged.setdefault(entry.transaction, set()).add(entry.batch)
        else:
            self.participants.apply(entry)

    def synced(self, length: int) -> None:
        if not self.up or not self.syncing or length > len(self.log):
            return  # it has crashed since
        self.durable = max(self.durable, length)
        self.syncing = False
        while self.waiting and self.waiting[0][0] <= self.durable:
            _, to, payload = self.waiting.popleft()
            self.world.send(self.node, to, payload)
        if self.durable < len(self.log):
            self.syncing = True
            self.world.plan(self.world.random.randrange(1, 30), self.synced, len(self.log))

    def send_after_durable(self, to: Node, payload: Payload) -> None:
        if self.durable >= len(self.log):
            self.world.send(self.node, to, payload)
        else:
            self.waiting.append((len(self.log), to, payload))

    def plan_tick(self) -> None:
        due_ms = self.participants.due_ms
        if due_ms is not None and (self.ticking_ms < 0 or due_ms < self.ticking_ms):
            self.ticking_ms = max(due_ms, self.now_ms + 1)
            self.world.plan(self.ticking_ms - self.now_ms, self.tick, self.ticking_ms)

    def crash(self) -> None:
        """Of what was not durable, any first part survives."""
        self.up = False
        del self.log[self.world.random.choice(range(self.durable, len(self.log) + 1)[self.world.setup.survives]) :]
        self.waiting.clear()
        self.syncing = False
        self.ticking_ms = -1

    def restart(self) -> None:
        self.up = True
        self.durable = len(self.log)  # recovery makes it so before anything leaves
        self.participants = self.replayed()
        self.staged = {}
        for entry in self.log:
            if isinstance(entry, Staged):
                self.apply(entry)
        self.plan_tick()

    def replayed(self) -> tp.Participants:
        """What the log says, through a checkpoint somewhere on the way."""
        participants = tp.Participants(self.number)
        checkpoint_at = self.world.random.randint(0, len(self.log))
        for at, entry in enumerate(self.log):
            if at == checkpoint_at:
                data = participants.dump()
                participants = tp.Participants(self.number)
                participants.load(data)
            if not isinstance(entry, Staged):
                participants.apply(entry)
        return participants


@dataclass
class Manager:
    """The host of a client manager: coordinators, and clients that wait for them. Nothing survives."""

    number: int
    world: World
    up: bool = True

    def __post_init__(self) -> None:
        self.node = Node("manager", self.number)
        self.coordinators: dict[tp.TransactionId, tp.Coordinator] = {}
        self.clients: dict[tp.TransactionId, tuple[Node, tp.TransactionId]] = {}
        """Who is told the outcome, and as that of which request."""
        self.due: dict[tp.TransactionId, int] = {}

    def receive(self, payload: Payload, sender: Node) -> None:
        if isinstance(payload, Request):
            self.request(payload, sender)
            return
        assert isinstance(payload, bytes)
        message = tp.decode(payload)
        assert isinstance(message, (tp.Ready, tp.Fail, tp.Completed))
        if message.transaction in self.coordinators:
            self.handle(message.transaction, message)

    def request(self, request: Request, client: Node) -> None:
        transaction, parts = request.transaction, request.parts
        undo = request.goal in ("rollback", "give up")
        stimulus: CoordinatorStimulus = tp.Rollback() if undo else tp.Commit()
        if request.goal == "hold":
            stimulus = tp.Hold(request.expires_at_ms)
        elif request.goal == "own":
            known = [one for one, (who, asked) in self.clients.items() if (who, asked) == (client, transaction)]
            transaction = known[-1] if known else self.world.new_transaction()
            parts = {}
            for handle in request.handles:
                for group in handle.participants:
                    handles = parts.get(group, tp.Part()).handles
                    parts[group] = tp.Part(handles=(*handles, handle.transaction))
            self.world.bundles.setdefault(transaction, request.handles)
        if transaction not in self.coordinators:
            self.coordinators[transaction] = tp.Coordinator(transaction, parts)
        self.clients[transaction] = (client, request.transaction)
        self.handle(transaction, stimulus)

    def handle(self, transaction: tp.TransactionId, stimulus: CoordinatorStimulus) -> None:
        world, coordinator = self.world, self.coordinators[transaction]
        for said in coordinator.handle(stimulus, world.now_ms):
            match said:
                case tp.Send(to, message):
                    world.send(self.node, Node("group", to), tp.encode(message))
                case tp.Outcome() | tp.Held():
                    world.reported(transaction, coordinator.participants, said)
                    client, asked = self.clients[transaction]
                    world.send(self.node, client, Reply(asked, said))
                case tp.Contradiction():
                    world.fail(f"{said}")
        due_ms = coordinator.due_ms
        if due_ms is not None and self.due.get(transaction) != due_ms:
            self.due[transaction] = due_ms
            world.plan(max(1, due_ms - world.now_ms), self.remind, coordinator, due_ms)

    def remind(self, coordinator: tp.Coordinator, due_ms: int) -> None:
        transaction = coordinator.transaction
        if self.coordinators.get(transaction) is coordinator and coordinator.due_ms == due_ms:
            self.due.pop(transaction, None)
            self.handle(transaction, tp.Tick())

    def crash(self) -> None:
        self.up = False
        self.coordinators.clear()
        self.clients.clear()
        self.due.clear()

    def restart(self) -> None:
        self.up = True


@dataclass
class Client:
    """Stages, then asks until it is answered, of whichever client manager is there."""

    number: int
    world: World
    goal: str
    parts: dict[int, tp.Part]
    up: bool = True
    answer: tp.Outcome | tp.Held | tp.Refuse | None = None
    asked: int = 0
    owned: tuple[tp.Handle, ...] = ()

    def __post_init__(self) -> None:
        self.node = Node("client", self.number)
        self.transaction = self.world.new_transaction()
        self.expires_at_ms = self.world.random.choice((20_000, 60_000, 200_000))
        self.decides = self.world.random.random() < 0.2
        self.missing = {(group, batch) for group, part in self.parts.items() for batch in range(int(part.work or 0))}

    def act(self) -> None:
        """Say whatever has no answer, and come back later."""
        world = self.world
        if self.answer is not None or not self.up:
            return
        if self.missing:
            for group, batch in sorted(self.missing):
                world.send(self.node, Node("group", group), StageRequest(self.transaction, batch))
        elif self.goal not in OWNING or self.takes():
            self.asked += 1
            request = Request(self.transaction, self.goal, self.parts, self.owned, self.expires_at_ms)
            world.send(self.node, world.some_manager().node, request)
        world.plan(world.random.randrange(500, world.setup.patience_ms), self.act)

    def takes(self) -> bool:
        """An owner takes some of what others have prepared, and does not wait for it for ever."""
        world, held = self.world, self.world.held
        if held and not self.owned:
            self.owned = tuple(world.random.sample(held, world.random.randint(1, len(held))))
            if self.goal == "give up":
                self.transaction, participants = self.owned[0]
                self.parts = {group: tp.Part() for group in participants}
        if not held and world.healed:
            self.answer = tp.Refuse("there is nothing to own")
        return bool(held)

    def receive(self, payload: Payload, sender: Node) -> None:
        assert isinstance(payload, Reply)
        match payload.said:
            case Staged(_, batch):
                self.missing.discard((sender.number, batch))
                if not self.missing and not self.asked:
                    self.act()
            case said:
                if self.answer is not None or payload.transaction != self.transaction:
                    return
                if isinstance(said, tp.Held):
                    self.world.held.append(said.handle)
                    if self.decides:  # in its own session, whoever else has the handle
                        self.goal, self.decides = self.world.random.choice(("commit", "rollback")), False
                        return
                self.answer = said

    def crash(self) -> None:
        self.up = False

    def restart(self) -> None:
        """It does not come back; its client manager notices, sooner or later or never."""
        if self.answer is None:
            for group in self.parts:
                self.world.send(self.node, Node("group", group), tp.SessionEnded(self.transaction.producer))
