"""A cooperating system with real sockets, a real witness and real persistent memory.

Theory of operation
    The machine decides; everything that takes time is done by threads that exist from the start, each with a queue:

    pair       ticks, and is told everything
    link       receives the partner's events and heartbeats (`clarion.events.link.server`)
    mirror     keeps our events at the partner (`Keeper`)
    messenger  heartbeats and other messages to the partner, over a link of its own
    witness    asks for leases, one question at a time
    worker     calls the engine: replay, confirmations, reports

Guarantees
    1. `may_deliver` and `may_act` compare with the clock at the moment of the call, and cost no lock.
    2. What the machine wants remembered is durable before anything that it says after it is done.
    3. The engine is called by one thread, one call at a time, in the order of the machine's instructions; only what the
       partner notes is told to it by the link's.
    4. A note of the partner is durable here when it is answered, and the engine knows it, whether it runs or not.

Rule: the clock goes on while the process, or the machine, is suspended (CLOCK_BOOTTIME).
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from clarion import ids, limits
from clarion.errors import BadArgument, BadFrame, ClarionError, UnknownFrame
from clarion.events.link import frames
from clarion.events.link.client import Address
from clarion.events.link.confirmations import Confirmations, Ranges, pack_confirmations, parts_of, unpack_confirmations
from clarion.events.link.frames import Heartbeat, Hello, Role, Type
from clarion.events.link.server import Peer, Server
from clarion.events.link.sink import ForeignSection, Sink
from clarion.events.memory.ballast import of_process
from clarion.instruments import Registry

from . import messages as m
from .engine import PairEngine
from .given_back import GivenBack
from .keeper import Keeper
from .machine import Machine
from .memory_file import MemoryFile
from .messages import Policy, Timing
from .messenger import Messenger
from .note_file import NoteFile
from .receiver import Receiver
from .states import Bond, Duty, Right
from .witness import Witness
from .worker import Points, Worker


class Pair:
    """One system of a pair. `start` starts its threads; `keeper.mirror(section)` gives each ring its mirror."""

    def __init__(
        self,
        name: str,
        partner: str,
        *,
        listen: Address,
        partner_address: Address,
        section: ForeignSection,
        engine: PairEngine,
        state_path: Path,
        note_path: Path,
        registry: Registry,
        witness: Witness | None = None,
        without_witness: Policy = Policy.WAIT,
        timing: Timing | None = None,
        stored_ms: int = limits.EVENT_PARTNER_MS_DEFAULT,
        frame_bytes_max: int = limits.EVENT_LINK_FRAME_BYTES_DEFAULT,
        memory_id: int = 0,
    ) -> None:
        """`section`: where the partner's events go, `partner-NAME`. `note_path`: where its note goes."""
        if name == partner:
            raise BadArgument(argument="partner", detail=f"{name} cannot be its own partner")
        self.name = name
        self.partner = partner
        self.timing = timing or Timing.of(limits.EVENT_LEASE_MS_DEFAULT)
        self._engine = engine
        self._section = section
        self._witness = witness
        self.frame_bytes_max = frame_bytes_max
        first = time.time_ns()
        self.memory_id = memory_id
        self._hello = Hello(name, Role.PARTNER, first, memory=memory_id)
        self.sink = Sink(section)
        self._file = MemoryFile(state_path)
        self._note_file = NoteFile(note_path)
        policy = Policy.WITNESS if witness is not None else without_witness
        self._lock = threading.RLock()
        self._machine = Machine(name, partner, policy, self.timing, self._file.memory, now_ms=clock_ms(), first=first)
        self.points = Points(registry)
        self.keeper = Keeper(
            partner_address, self._hello, registry, stored_s=stored_ms / 1000, frame_bytes_max=frame_bytes_max,
            on_whole=self._mirrored,
        )  # fmt: skip
        self.server = Server(Receiver(self), listen, frame_bytes_max=frame_bytes_max, ballast=of_process())
        self._worker = Worker("pair-worker")
        self._messenger = Messenger(
            partner_address, partner, self._hello, self.timing, self.points, self._connected,
            frame_bytes_max=frame_bytes_max,
        )  # fmt: skip
        self._witness_worker = Worker("pair-witness")
        self._thread = threading.Thread(target=self._run, name="clarion-events-pair", daemon=True)
        self._stop = threading.Event()
        self._asking: set[str] = set()
        self._floors: dict[int, int] = {}
        self._confirmed: list[tuple[str, Ranges]] = []
        self._note: bytes | None = None
        self._note_version = 0
        self._partner_run = 0
        """Which run of the partner greeted last."""
        self._partner_memory = 0
        """Which persistent memory it has; 0: it has not said so."""
        self._former_floors: dict[int, int] = {}
        self._confirmed_sent = False
        """The partner knows all confirmations of before the present link."""
        self._given_back = GivenBack()

    # --- for the engine -------------------------------------------------------------------------------

    def start(self) -> None:
        for one in (self._worker, self._messenger, self._witness_worker, self.server, self.keeper):
            one.start()
        self._thread.start()

    def may_deliver(self) -> bool:
        """Whether own events may be delivered now; to be asked before every batch."""
        return self._machine.may_deliver(clock_ms())

    def may_act(self) -> bool:
        """Whether the partner's events may be delivered now; to be asked before every batch."""
        return self._machine.may_act(clock_ms())

    def confirmed(self, recipient: str, ranges: Ranges) -> None:
        """Own events were confirmed: the partner is told soon, so that it sends fewer a second time."""
        with self._lock:
            self._confirmed.append((recipient, ranges))

    def note(self, note: bytes) -> None:
        """What the partner's engine must know to deliver what is recorded from now on: who the recipients are.

        Without one the pair is never whole. To be called before anybody records by it: such events reach the partner
        only after it has the note durable."""
        if len(note) > limits.EVENT_LINK_NOTE_BYTES_MAX:
            raise BadArgument(argument="note", detail=f"{len(note)} bytes are too many")
        with self._lock:
            if note != self._note:
                self._note_version += 1
                self._tell(m.Recipients(self._note_version))
                self.keeper.note(self._note_version, note)
                self._note = note

    @property
    def partner_note(self) -> bytes | None:
        """What the engine wanted kept of the last one of the partner, also of before a restart."""
        return self._note_file.note

    def take_over(self) -> None:
        """An operator says that the partner is dead (policy `wait`)."""
        self._tell(m.TakeOver())

    def proceed(self) -> None:
        """An operator says that nobody acts for this system (without a witness)."""
        self._tell(m.Proceed())

    @property
    def right(self) -> Right:
        return self._machine.right

    @property
    def duty(self) -> Duty:
        return self._machine.duty

    @property
    def bond(self) -> Bond:
        return self._machine.bond

    def status(self) -> dict[str, object]:
        """For a person."""
        machine, now_ms = self._machine, clock_ms()
        return {
            "partner": self.partner,
            "policy": machine.policy.value,
            "bond": machine.bond.value,
            "right": machine.right.value,
            "duty": machine.duty.value,
            "may_deliver": machine.may_deliver(now_ms),
            "may_act": machine.may_act(now_ms),
            "partner_heard": machine.partner_is_heard,
            "epoch": machine.memory.epoch,
            "owes": machine.memory.owes,
            "held_for_partner": self._section.next_sequence - self._section.first_sequence,
            "held_of_former": self._held_of_former(),
            "partner_memory": f"{self._partner_memory:032x}" if self._partner_memory else "",
        }

    def close(self, *, hand_over: bool = False) -> None:
        """Stop. `hand_over` releases the lease on our name, so that the partner acts for us at once."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.keeper.close()
        self.server.close()
        for worker in (self._messenger, self._witness_worker, self._worker):
            worker.close()
        if self._witness is not None:
            if hand_over and self._machine.memory.epoch:
                try:
                    self._witness.release(self.name, self.name, self._machine.memory.epoch)
                except ClarionError:
                    pass  # it runs out
            self._witness.close()
        self._file.close()
        self._note_file.close()

    # --- the machine ----------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = self.timing.heartbeat_ms / 4 / 1000
        while not self._stop.wait(pause_s):
            try:
                self._tell(m.Tick())
                self._send_news()
            except MemoryError:
                pass  # the next tick does it

    def _tell(self, stimulus: m.Stimulus) -> None:
        with self._lock:
            for instruction in self._machine.handle(stimulus, clock_ms()):
                self._obey(instruction)

    def heard(self, heartbeat: Heartbeat) -> Heartbeat:
        """A heartbeat came, in the link's thread; returns the answer."""
        floors, self._former_floors = self._former_floors, {}
        for producer, floor in floors.items():
            self.sink.released(producer, floor)
        with self._lock:
            self._tell(m.Heard(heartbeat))
            return self._machine.heartbeat(clock_ms())

    def _obey(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.SendHeartbeat(heartbeat):
                self._messenger.beat(heartbeat, lambda answer: self._tell(m.Heard(answer)))
            case m.AskLease(name, ttl_ms, _):
                if name not in self._asking:
                    self._asking.add(name)
                    self._witness_worker.do(lambda: self._ask_lease(name, ttl_ms))
            case m.ReleaseLease(name, epoch):
                self._witness_worker.do(lambda: self._release_lease(name, epoch))
            case m.Remember(memory):
                self.points.before_remember()
                self._file.save(memory)
            case m.SetMayDeliver(allowed):
                self._worker.do(lambda: self._engine.may_deliver(allowed))
            case m.StartReplay():
                self._worker.do(self._start_replay)
            case m.StopReplay(number):
                self._worker.do(lambda: self._stop_replay(number))
            case m.AskGiveBack(epoch):
                self._messenger.post(Type.GIVE_BACK_ASK, frames.pack_epoch(epoch))
            case m.SendGiveBack(epoch, token):
                self._worker.do(lambda: self._give_back(epoch, token))
            case m.SendDone(token):
                self._messenger.post(Type.GIVE_BACK_DONE, frames.pack_epoch(token))
            case m.Forget():
                self._worker.do(self._forget)
            case m.Report(type_, severity, data):
                if type_ == "clarion.pair.degraded" and not self._machine.partner_is_heard:
                    self.keeper.suspect()
                self._worker.do(lambda: self._engine.report(type_, severity, dict(data)))

    # --- the witness ----------------------------------------------------------------------------------

    def _ask_lease(self, name: str, ttl_ms: int) -> None:
        assert self._witness is not None
        self.points.before_lease()
        asked_ms = clock_ms()
        answer: m.Stimulus = m.WitnessUnreachable(name)
        try:
            grant = self._witness.acquire(name, self.name, ttl_ms)
            self.points.after_lease()
            granted = m.LeaseGranted(name, grant.epoch, min(ttl_ms, grant.expires_in_ms), asked_ms)
            answer = granted if grant.granted else m.LeaseRefused(name)
        except (ClarionError, OSError):
            pass
        finally:
            with self._lock:
                self._asking.discard(name)
        self._tell(answer)

    def _release_lease(self, name: str, epoch: int) -> None:
        assert self._witness is not None
        try:
            self._witness.release(name, self.name, epoch)
        except (ClarionError, OSError):
            pass  # it runs out

    # --- the engine -----------------------------------------------------------------------------------

    def _start_replay(self) -> None:
        self.points.before_start_replay()
        self._engine.start_replay(self._section)

    def _stop_replay(self, number: int) -> None:
        self.points.before_stop_replay()
        self._engine.stop_replay(self._section)
        self._tell(m.ReplayStopped(number))

    def _give_back(self, epoch: int, token: int) -> None:
        confirmations = self._engine.confirmations(self._section)
        self.points.before_give_back()
        parts = list(parts_of(confirmations, self.frame_bytes_max))
        self._messenger.give_back(parts, epoch, token)

    def _forget(self) -> None:
        self.points.before_forget()
        self._engine.forget(self._section)

    def _apply(self, epoch: int, token: int, state: Confirmations) -> None:
        self.points.before_apply()
        self._engine.apply_confirmations(state)
        self.points.after_apply()
        self._tell(m.StateApplied(epoch, token))

    # --- what is at the partner -----------------------------------------------------------------------

    def _mirrored(self, whole: bool, version: int, detail: str) -> None:
        """The keeper says so. Events that come late there were perhaps confirmed here before."""
        if whole:
            with self._lock:
                self._confirmed_sent = False
        self._tell(m.Mirrored(whole, version, detail))

    def _tell_confirmations(self) -> None:
        self._confirm(self._engine.own_confirmations())

    def _confirm(self, confirmations: Confirmations) -> None:
        if any(ranges for _, ranges in confirmations):
            for part in parts_of(confirmations, self.frame_bytes_max):
                self._messenger.post(Type.CONFIRMED, pack_confirmations(part))

    # --- messages to the partner ----------------------------------------------------------------------

    def _connected(self, welcome: Hello) -> None:
        """There is a new link to the partner, which says what it holds."""
        self._know_memory(welcome.memory)
        self._engine.held_there([(held.producer, held.end) for held in welcome.sections])
        with self._lock:
            self._floors.clear()
            self._confirmed_sent = False

    def _send_news(self) -> None:
        """What changed since the last time: floors, confirmations."""
        if not self._machine.partner_is_heard:
            with self._lock:
                self._confirmed, self._confirmed_sent = [], False
            return
        for producer, floor in self._engine.floors():
            if self._floors.get(producer) != floor:
                self._floors[producer] = floor
                self._messenger.post(Type.RELEASED, frames.pack_released(producer, floor))
        with self._lock:
            confirmed, self._confirmed = self._confirmed, []
            everything, self._confirmed_sent = not self._confirmed_sent, True
        self._confirm(confirmed)
        if everything:
            self._worker.do(self._tell_confirmations)

    # --- messages from the partner --------------------------------------------------------------------

    def greeted(self, hello: Hello) -> None:
        """The partner has connected."""
        self._partner_run = hello.epoch
        self._know_memory(hello.memory)

    def _know_memory(self, memory: int) -> None:
        """The partner says which persistent memory it has. A new one is empty: all that it needs of us is sent again,
        but of what it had recorded in the former one only our copy is left."""
        with self._lock:
            if not memory or memory == self._partner_memory:
                return
            former, self._partner_memory = self._partner_memory, memory
        held = self._held_of_former()
        if former or held:
            data = {"partner": self.partner, "held_of_former": held}
            self._worker.do(lambda: self._engine.report("clarion.pair.partner_replaced", "error", data))

    def is_former(self, producer: int) -> bool:
        """Of a memory that the partner does not have any more."""
        return self._partner_memory != 0 and ids.node_of(producer) != ids.node_of(self._partner_memory)

    def release_former(self, floors: dict[int, int]) -> None:
        """What lies below these was delivered, and its origin cannot say so: the link's thread lets it go."""
        self._former_floors = {producer: floor for producer, floor in floors.items() if self.is_former(producer)}

    def _held_of_former(self) -> int:
        """Events here of a memory that the partner does not have any more: it will not say that they are settled."""
        return self.sink.count_of_others(self._partner_memory) if self._partner_memory else 0

    def received(self, peer: Peer, kind: int, flags: int, payload: memoryview) -> bool:
        """Anything but events and heartbeats; whether it is to be answered."""
        if kind == Type.RELEASED:
            self.sink.released(*frames.unpack_released(payload))
        elif kind == Type.GIVE_BACK_ASK:
            frames.unpack_epoch(payload)
            self._tell(m.GiveBackAsked())
        elif kind == Type.GIVE_BACK:
            whole = self._given_back.take(peer.socket, flags, payload)
            if whole is not None:
                self._worker.do(lambda: self._apply(*whole))
        elif kind == Type.GIVE_BACK_DONE:
            self._tell(m.GiveBackDone(frames.unpack_epoch(payload)))
        elif kind == Type.CONFIRMED:
            _, _, confirmations = unpack_confirmations(payload)
            self._worker.do(lambda: self._engine.partner_confirmed(confirmations))
        elif kind == Type.NOTE:
            self._take_note(peer, bytes(payload))
            return True
        return False

    def _take_note(self, peer: Peer, note: bytes) -> None:
        """It counts when this returns. What a run that is over left in its connection must not undo a newer one."""
        if peer.hello is None or peer.hello.epoch != self._partner_run:
            raise UnknownFrame(type=Type.NOTE, state="over")
        if len(note) > limits.EVENT_LINK_NOTE_BYTES_MAX:
            raise BadFrame(detail=f"NOTE of {len(note)} bytes")
        self.points.before_note_kept()
        self._note_file.save(self._engine.partner_note(note))
        self.points.after_note_kept()


def clock_ms() -> int:
    """Goes on while the process is paused, and while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
