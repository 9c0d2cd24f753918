"""One system of a cooperating pair: who may deliver what, and when. Stimuli in, instructions out.

Theory of operation
    Each system delivers its own events while it has the *right* to, and has the *duty* to deliver its partner's while
    that is not operational. Whether its events are at the partner as well is its *bond*. The three change by the
    tables of `states`, and by nothing else.

    A right lasts for a while, and is renewed by a lease of the witness on the system's own name, or by the partner's
    word: a heartbeat that answers one of ours and says that it does not act for us. The partner will not begin to
    before it was without a sign of life from us for `takeover_ms`, so the word holds that long, from when ours was
    sent. To begin, the partner needs the lease on our name, which it gets only after ours ran out.

Rules
    1. Pure: the time is an argument, everything else leaves as an instruction, and these are obeyed in order.
    2. With a witness never do both have the right to deliver the same events. Times are cut by `margin_ms`.
    3. `may_deliver` and `may_act` compare with the clock of the moment: a system that was paused has lost its right
       when it wakes, before anybody told it so. This is the fence.
    4. What was done for the partner is remembered until the partner says that it has recorded it.
    5. The bond is whole only while the partner has recorded who our recipients are: it cannot deliver a copy of which
       it does not know for whom it is.
"""

from __future__ import annotations

from clarion.events.link.frames import Heartbeat

from .messages import (
    AskGiveBack,
    AskLease,
    Forget,
    GiveBackAsked,
    GiveBackDone,
    Heard,
    Instruction,
    LeaseGranted,
    LeaseRefused,
    Memory,
    Mirrored,
    Policy,
    Proceed,
    Recipients,
    ReleaseLease,
    Remember,
    ReplayStopped,
    Report,
    SendDone,
    SendGiveBack,
    SendHeartbeat,
    SetMayDeliver,
    StartReplay,
    StateApplied,
    Stimulus,
    StopReplay,
    TakeOver,
    Tick,
    Timing,
    WitnessUnreachable,
)
from .states import BOND, DUTY, RIGHT, Bond, Duty, Event, Right

FOREVER_MS = 1 << 62
BEATS_KEPT = 64
"""Of our last heartbeats the machine knows when they were sent."""


class Machine:
    """The state of one system. `handle` is its only entry; `may_deliver` and `may_act` are asked before each batch."""

    def __init__(
        self, name: str, partner: str, policy: Policy, timing: Timing, memory: Memory, *, now_ms: int, first: int
    ) -> None:
        """`first`: a number larger than any that an earlier run of this system can have used (nanoseconds do)."""
        self.name = name
        self.partner = partner
        self.policy = policy
        self.timing = timing
        self.memory = memory
        self.right = Right.WAITING
        self.duty = Duty.IDLE
        self.bond = Bond.ALONE
        self._now_ms = self._started_ms = now_ms
        self._said: list[Instruction] = []
        # The right.
        self._lease_until_ms = 0
        self._lease_epoch = 0
        self._word_until_ms = 0
        self._owed_until_ms = 0
        self._ask_own_ms = now_ms
        self._ask_back_ms = now_ms
        # The duty.
        self._act_until_ms = 0
        self._act_epoch = 0
        self._ask_partner_ms = now_ms
        self._dead_epoch = memory.act
        """The last epoch that gives no right any more: we asked to release its lease, which may end at any time, or
        told the partner what we did in it, which then waits for nothing more of it. One of an earlier run may be
        either."""
        self._stopped = True
        self._stops = 0
        self._token = first
        self._sent_token = 0
        # The partner.
        self._heard_ms = now_ms
        self._heard_ever = False
        self._whole = False
        self._recipients = 0
        """The version of now; 0: not known before something delivers here."""
        self._recipients_there = 0
        self._heard_beat = 0
        self._acts = 0
        self._owes = False
        self._beat = first
        self._beats: dict[int, int] = {}
        self._beat_due_ms = now_ms

    # --- what hosts ask before every batch ------------------------------------------------------------

    def may_deliver(self, now_ms: int) -> bool:
        """Whether our own events may be delivered at this moment."""
        return self.right is Right.HOLDING and now_ms < self._right_until_ms()

    def may_act(self, now_ms: int) -> bool:
        """Whether the partner's events may be delivered at this moment."""
        return self.duty is Duty.ACTING and now_ms < self._duty_until_ms()

    @property
    def partner_is_heard(self) -> bool:
        """Not silent."""
        return self._heard_ever and self._now_ms - self._heard_ms < self.timing.silence_ms

    def _right_until_ms(self) -> int:
        if self.policy is Policy.WITNESS:
            return max(self._lease_until_ms, self._word_until_ms)
        return FOREVER_MS if self.policy is Policy.REPLAY else self._now_ms + self.timing.pause_ms

    def _duty_until_ms(self) -> int:
        if self.policy is Policy.WITNESS:
            return self._act_until_ms
        return FOREVER_MS if self.policy is Policy.REPLAY else self._now_ms + self.timing.pause_ms

    # --- stimuli --------------------------------------------------------------------------------------

    def handle(self, stimulus: Stimulus, now_ms: int) -> list[Instruction]:
        """What to do about a stimulus, in this order."""
        self._said = []
        self._time(now_ms)
        match stimulus:
            case Tick():
                self._tick()
            case Heard(heartbeat):
                self._heard(heartbeat)
            case Recipients(version):
                self._recipients = version
                self._weigh("the recipients have changed")
            case Mirrored(whole, version, detail):
                self._whole, self._recipients_there = whole, version
                self._weigh(detail)
            case LeaseGranted(name, epoch, ttl_ms, asked_ms):
                until_ms = asked_ms + ttl_ms - self.timing.margin_ms
                if name == self.name:
                    self._own_lease(epoch, until_ms)
                else:
                    self._partner_lease(epoch, until_ms)
            case LeaseRefused(name):
                self._refused(name)
            case WitnessUnreachable():
                pass  # asked again when it is due; what is held runs out by itself
            case GiveBackAsked():
                self._give_back()
            case ReplayStopped(number):
                if number == self._stops:
                    self._stopped = True
                    if self.duty is Duty.GIVING_BACK:
                        self._send_back()
            case StateApplied(epoch, token):
                self._applied(epoch, token)
            case GiveBackDone(token):
                self._done(token)
            case TakeOver():
                self._take_over()
            case Proceed():
                if self.policy is not Policy.WITNESS:
                    self._right(Event.ORDERED)
        said, self._said = self._said, []
        return said

    def heartbeat(self, now_ms: int) -> Heartbeat:
        """What to answer a heartbeat of the partner, after it was handled."""
        self._beat += 1
        self._beats[self._beat] = now_ms
        while len(self._beats) > BEATS_KEPT:
            del self._beats[next(iter(self._beats))]
        acting = self._act_epoch if self.duty in (Duty.ACTING, Duty.GIVING_BACK) else 0
        return Heartbeat(
            self._beat, self._heard_beat, self.memory.epoch, acting, self.memory.owes, self.may_deliver(now_ms)
        )

    # --- time -----------------------------------------------------------------------------------------

    def _time(self, now_ms: int) -> None:
        """First of all: what ran out meanwhile."""
        paused_ms = now_ms - self._now_ms
        lapsed = self.right in (Right.HOLDING, Right.OWED) and now_ms >= self._right_until_ms()
        duty_lapsed = self.duty in (Duty.ACTING, Duty.GIVING_BACK) and now_ms >= self._duty_until_ms()
        self._now_ms = max(now_ms, self._now_ms)
        if paused_ms > self.timing.pause_ms:
            # Whoever did not listen cannot say that the other was silent.
            self._heard_ms = now_ms
            self._report("woke", "warning", paused_ms=paused_ms)
        if lapsed:
            self._right(Event.LAPSED)
        if duty_lapsed:
            self._duty(Event.LAPSED)

    def _tick(self) -> None:
        now_ms, timing = self._now_ms, self.timing
        silent_ms = now_ms - self._heard_ms
        if silent_ms >= timing.silence_ms:
            self._bond(Event.SILENT, f"nothing heard for {silent_ms} ms")
            self._owes, self._acts = False, 0
            if self.policy is Policy.REPLAY and self.right in (Right.WAITING, Right.RETURNING):
                self._right(Event.ALLOWED)
        if silent_ms >= timing.takeover_ms and self.policy is not Policy.WAIT:
            self._duty(Event.SILENT)
        if self.right is Right.OWED and now_ms >= self._owed_until_ms:
            self._report("unreturned", "error", waited_ms=timing.return_wait_ms)
            self._right(Event.PATIENCE)
        if self.policy is Policy.WITNESS:
            self._ask_leases()
        if self._wants_back() and now_ms >= self._ask_back_ms:
            self._ask_back_ms = now_ms + timing.retry_ms
            self._say(AskGiveBack(self.memory.epoch))
        if now_ms >= self._beat_due_ms:
            self._beat_due_ms = now_ms + timing.heartbeat_ms
            self._say(SendHeartbeat(self.heartbeat(now_ms)))

    def _ask_leases(self) -> None:
        if self._now_ms >= self._ask_own_ms:
            self._ask_own_ms = self._now_ms + self.timing.retry_ms
            self._say(AskLease(self.name, self.timing.lease_ms, self._now_ms))
        if self.duty is not Duty.IDLE and self._now_ms >= self._ask_partner_ms:
            self._ask_partner_ms = self._now_ms + self.timing.retry_ms
            self._say(AskLease(self.partner, self.timing.lease_ms, self._now_ms))

    def _wants_back(self) -> bool:
        if not self.partner_is_heard:
            return False
        return bool(self._owes or self._acts) or self.right is Right.OWED

    # --- the partner ----------------------------------------------------------------------------------

    def _heard(self, heartbeat: Heartbeat) -> None:
        if heartbeat.beat <= self._heard_beat:
            return  # overtaken by a later one
        self._heard_beat = heartbeat.beat
        self._heard_ms = self._now_ms
        self._heard_ever = True
        self._duty(Event.HEARD)
        if self._whole:
            self._weigh("heard again")
        self._acts, self._owes = heartbeat.acting, heartbeat.owes
        sent_ms = self._beats.get(heartbeat.echo)
        if heartbeat.acting:
            self._acted_for(heartbeat.acting)
        elif heartbeat.owes:
            if self.right in (Right.WAITING, Right.FENCED):
                self._right(Event.ACTED)
        elif sent_ms is not None:
            until_ms = sent_ms + self.timing.takeover_ms - self.timing.margin_ms
            if until_ms > self._now_ms:
                self._word_until_ms = max(self._word_until_ms, until_ms)
                if self.right is not Right.OWED:  # that wants to be told in so many words
                    self._right(Event.ALLOWED)

    def _acted_for(self, epoch: int) -> None:
        """It acts for us. With a witness a lease of ours that is newer shows that this is an old story."""
        if self.policy is Policy.WITNESS and epoch < self._lease_epoch and self._now_ms < self._lease_until_ms:
            return
        self._acts = epoch
        self._word_until_ms = 0
        self._right(Event.ACTED)

    # --- the right ------------------------------------------------------------------------------------

    def _own_lease(self, epoch: int, until_ms: int) -> None:
        if self._now_ms >= until_ms or epoch < self._lease_epoch:
            return
        self._lease_until_ms, self._lease_epoch = max(until_ms, self._lease_until_ms), epoch
        if self.right is Right.HOLDING:
            self._know(epoch)
        elif self.right is not Right.OWED:
            word = self._now_ms < self._word_until_ms
            gap = epoch - self.memory.epoch >= 2  # then somebody else had it in between
            owed = not word and (gap or self._owes or bool(self._acts))
            self._right(Event.OWED if owed else Event.ALLOWED)

    def _refused(self, name: str) -> None:
        if name != self.name:
            return
        self._lease_until_ms = 0
        if self.right in (Right.HOLDING, Right.OWED) and self._now_ms >= self._right_until_ms():
            self._right(Event.LAPSED)

    def _applied(self, epoch: int, token: int) -> None:
        self._acts, self._owes = 0, False
        if epoch > self.memory.epoch:
            self._remember(epoch=epoch)
        self._say(SendDone(token))
        self._right(Event.APPLIED)
        self._ask_own_ms = self._now_ms
        self._ask_back_ms = self._now_ms + self.timing.retry_ms

    def _right(self, event: Event) -> None:
        before, after = self.right, RIGHT[self.right].get(event)
        if after is None:
            return
        self.right = after
        if after is Right.HOLDING:
            self._know(self._lease_epoch)
            self._say(SetMayDeliver(True))
            self._report("may_deliver", "info", because=event.value)
        elif before is Right.HOLDING:
            self._say(SetMayDeliver(False))
            self._report("fenced", "warning", because=event.value)
        if after is Right.OWED:
            self._owed_until_ms = self._now_ms + self.timing.return_wait_ms
        if after in (Right.OWED, Right.RETURNING):
            self._ask_back_ms = self._now_ms

    def _know(self, epoch: int) -> None:
        if epoch > self.memory.epoch:
            self._remember(epoch=epoch)

    # --- the duty -------------------------------------------------------------------------------------

    def _partner_lease(self, epoch: int, until_ms: int) -> None:
        if epoch <= self._dead_epoch:
            self._say(ReleaseLease(self.partner, epoch))  # that was lost, or is still on its way
            return
        if self.duty is Duty.IDLE:
            self._release_partner(epoch)  # it spoke up meanwhile
            return
        if self._now_ms >= until_ms:
            return
        self._act_until_ms = max(until_ms, self._act_until_ms)
        self._act_epoch = epoch
        if self.memory.owes and epoch > self.memory.act:
            self._remember(act=epoch)
        self._duty(Event.GRANTED)

    def _release_partner(self, epoch: int) -> None:
        self._dead_epoch = max(epoch, self._dead_epoch)
        self._act_until_ms = 0
        self._say(ReleaseLease(self.partner, epoch))

    def _take_over(self) -> None:
        silent_ms = self._now_ms - self._heard_ms
        if self.policy is not Policy.WAIT or silent_ms < self.timing.takeover_ms:
            self._report("takeover_refused", "warning", silent_ms=silent_ms, policy=self.policy.value)
            return
        self._duty(Event.ORDERED)

    def _give_back(self) -> None:
        self._duty(Event.ASKED)
        if self._stopped and self.duty is not Duty.TAKING_OVER:
            self._send_back()

    def _send_back(self) -> None:
        self._token += 1
        self._sent_token = self._token
        epoch = max(self._act_epoch, self.memory.act)
        if self.duty is Duty.IDLE:
            self._dead_epoch = max(epoch, self._dead_epoch)
        self._say(SendGiveBack(epoch, self._token))

    def _done(self, token: int) -> None:
        if token != self._sent_token or self.duty in (Duty.ACTING, Duty.TAKING_OVER):
            return  # of an earlier time: more was done since
        self._sent_token = 0
        if self.memory.owes:
            self._say(Forget())
            self._remember(owes=False)
        self._duty(Event.DONE)

    def _duty(self, event: Event) -> None:
        before, after = self.duty, DUTY[self.duty].get(event)
        if after is None:
            return
        if after is Duty.TAKING_OVER and self.policy is Policy.REPLAY:
            after = Duty.ACTING
        self.duty = after
        self._ask_partner_ms = self._now_ms
        if after is Duty.ACTING:
            self._act()
        elif before is Duty.ACTING:
            self._stops += 1
            self._say(StopReplay(self._stops))
            self._report("stopped_acting", "notice", because=event.value, partner=self.partner)
        if before is Duty.GIVING_BACK and self.policy is Policy.WITNESS:
            self._release_partner(self._act_epoch)
        if before is Duty.GIVING_BACK and event is Event.DONE:
            self._report("gave_back", "notice", partner=self.partner)

    def _act(self) -> None:
        if self.policy is not Policy.WITNESS:
            self._act_epoch = self.memory.act + 1
        self._sent_token = 0
        self._remember(act=self._act_epoch, owes=True)
        self._stopped = False
        self._say(StartReplay(self._act_epoch))
        self._report("acting", "warning", partner=self.partner, epoch=self._act_epoch)

    # --- the bond -------------------------------------------------------------------------------------

    @property
    def recipients_are_known(self) -> bool:
        """The partner has recorded who they are now."""
        return self._recipients_there >= self._recipients > 0

    def _weigh(self, detail: str) -> None:
        if not self._whole:
            self._bond(Event.BROKEN, detail)
        else:
            self._bond(Event.WHOLE if self.recipients_are_known else Event.UNTOLD, detail)

    def _bond(self, event: Event, detail: str) -> None:
        before, after = self.bond, BOND[self.bond].get(event)
        if after is None:
            return
        self.bond = after
        if Bond.TELLING in (after, before) and after is not Bond.DEGRADED:
            return  # groups wait meanwhile, so nothing was without its copy
        severity = "info" if after is Bond.PAIRED else "warning"
        self._report(after.value, severity, partner=self.partner, detail=detail)

    # --- saying ---------------------------------------------------------------------------------------

    def _say(self, instruction: Instruction) -> None:
        self._said.append(instruction)

    def _report(self, what: str, severity: str, **data: str | int | bool) -> None:
        self._say(Report(f"clarion.pair.{what}", severity, data))

    def _remember(self, *, epoch: int | None = None, act: int | None = None, owes: bool | None = None) -> None:
        old = self.memory
        self.memory = Memory(
            old.epoch if epoch is None else epoch,
            old.act if act is None else act,
            old.owes if owes is None else owes,
        )
        self._say(Remember(self.memory))
