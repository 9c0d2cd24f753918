"""The pipeline of one recipient: every event it is owed, once delivered never again, in order, until it confirms.

Theory of operation
    The engine reads sections and offers what the recipient is owed, as runs of sequences. `next_batch` says what to
    deliver; `delivered` or `failed` says what came of it, and gives instructions: `Confirm` and `GiveUp` go to the
    ledger, and when they are durable the pipeline hears of it (`recorded`, `buried`, `kept`).

    A batch that fails as a whole tells nothing of the events in it: nobody is blamed, the next batch is a quarter of
    it, after a short pause. An event that fails alone (or beside others that were done) is to blame: its source is
    held, it is tried again after its own pause, other sources go on. Two such failures without a success between them
    make the recipient itself the suspect: then everything waits, longer and longer.

Guarantees
    1. An event that was offered is in a batch again and again until it was delivered or is durably given up.
    2. Nothing is in a batch after it was delivered, or if `load` said that it is confirmed.
    3. Sequences of one source are sent in the order of their section: none before an earlier one is settled.
    4. Nothing of a rank is sent while something of a lower rank is unread (as far as announced), or unsettled and not
       safe with the recipient (`stored`).
    5. At most `window_events` of each rank are unrecorded: `room` says how many may be offered. What of a higher rank
       was offered before a lower one appeared never takes the room of that one.

Rules
    1. Pure: no clock, no file, no random numbers. `facts_of` is asked only after a failure.
    2. Whoever does not call `recorded` stops the pipeline when the window is full.

Cost: nothing per event that comes in runs, 20 us a batch; 0.7 us an event where every second one is for others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable

from pyroaring import BitMap64

from clarion import limits
from clarion.errors import InternalFault
from clarion.events.distribution.batch import Batch, Confirm, GiveUp, Instruction
from clarion.events.distribution.holding import Held
from clarion.events.distribution.lane import Lane, Range
from clarion.events.distribution.policy import RetryPolicy
from clarion.events.distribution.reading import Reading

FactsOf = Callable[[int, int], tuple[Hashable, int]]
"""(section, at) -> (key of its source, when it was recognised in Unix ms)."""

NARROWING = 4
"""A batch that failed is tried again in parts of this size; after a success it grows by as much."""
SUSPECT_STRIKES = 3
"""So many events failed alone, one after the other, that what is too old is given up untried."""
GIVE_UPS_MAX = 256
"""Events given up at a time because of their age."""


class Pipeline(Reading):
    """See the module."""

    def __init__(
        self,
        slot: int,
        name: str,
        policy: RetryPolicy,
        facts_of: FactsOf,
        window_events: int = limits.EVENT_WINDOW_EVENTS,
    ) -> None:
        super().__init__(window_events)
        self.slot = slot
        self.name = name
        self.policy = policy
        self.last_error = ""
        self.failures = 0
        """Batches that failed, wholly or in part."""
        self._facts_of = facts_of
        self._flight: Batch | None = None
        self._held: dict[Hashable, Held] = {}
        """By rank and source: what comes first must not wait behind an event of a higher rank."""
        self._buried_for: dict[tuple[int, int], Held] = {}
        self._returned: list[tuple[Lane, int]] = []
        """What a recipient had safe and lost, while sources were held or about to be."""
        self._allowance: int | None = None
        """Events in the next batch, while it is not clear what makes batches fail."""
        self._strikes = 0
        self._pause_until_ms = 0
        self._yielding = False
        self._turn = 0

    def remove_section(self, section: int) -> None:
        """Forget a section, whatever of it is unsettled. A batch in flight may still be answered."""
        for lane in self._forget_section(section):
            for held in list(self._held.values()):
                held.forget(lane)
                self._free(held)
        for key in [key for key in self._buried_for if key[0] == section]:
            del self._buried_for[key]

    def retry_now(self) -> None:
        """The recipient is known to be back, or an operator says so: no pause holds any more."""
        self._pause_until_ms = 0
        for held in self._held.values():
            held.due_ms = 0

    # --- what to deliver ------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return 0 if self._flight is None else self._flight.count

    @property
    def held_sources(self) -> int:
        """Sources that wait because of an event that failed."""
        return len(self._held)

    def due_ms(self) -> int | None:
        """When to ask `next_batch` (again): 0 is at once; None: not before something is offered or answered."""
        if self._flight is not None:
            return None
        self._reorder()
        active = self._active()
        if any(lane.waiting for lane in active):
            return self._pause_until_ms
        due = [held.due_ms for held in self._held.values() if held.head is not None and held.head[0] in active]
        return max(min(due), self._pause_until_ms) if due else None

    def next_batch(self, now_ms: int, events_max: int) -> Batch | None:
        """What to deliver now; None while a batch is in flight, or nothing is due."""
        if self._flight is not None or now_ms < self._pause_until_ms:
            return None
        self._reorder()
        active = self._active()
        if not active:
            return None
        lone: Held | None = None
        picks: dict[Lane, BitMap64] = {}
        left = events_max if self._allowance is None else min(self._allowance, events_max)
        for held in self._held.values():
            if held.head is None or held.due_ms > now_ms or held.head[0] not in active:
                continue
            if held.alone:
                lone = lone or held
            elif left:
                picks.setdefault(held.head[0], BitMap64()).add(held.head[1])
                left -= 1
        # One that failed alone takes turns with the rest: neither of them starves.
        if lone is None or self._yielding:
            self._fill(active, picks, left)
        self._yielding = False
        if not picks and lone is not None and lone.head is not None:
            self._yielding = True
            picks[lone.head[0]] = BitMap64([lone.head[1]])
        if not picks:
            return None
        self._flight = Batch(list(picks.items()), sum(len(picked) for picked in picks.values()))
        return self._flight

    def _fill(self, active: list[Lane], picks: dict[Lane, BitMap64], left: int) -> None:
        """Add what is waiting: a different section first each time."""
        self._turn += 1
        for number in range(len(active)):
            lane = active[(self._turn + number) % len(active)]
            if left <= 0:
                return
            if lane.waiting:
                picked = self._pick(lane, left) if self._held else lane.take(left)
                if picked:
                    left -= len(picked)
                    picks[lane] = picks[lane] | picked if lane in picks else picked

    def _pick(self, lane: Lane, count: int) -> BitMap64:
        """`take`, with what belongs to a held source put behind its head."""
        picked = BitMap64()
        while lane.waiting and len(picked) < count:
            for at in lane.take(count - len(picked)):
                held = self._held.get((lane.rank, self._facts_of(lane.section, at)[0]))
                if held is None:
                    picked.add(at)
                else:
                    held.follow(lane, at)
        return picked

    # --- what came of it ------------------------------------------------------------------------------

    def delivered(self, batch: Batch) -> list[Instruction]:
        """The recipient has processed all of it."""
        self._land(batch)
        self._succeeded()
        return self._confirm(batch.picks)

    def _succeeded(self) -> None:
        self._strikes = self._pause_until_ms = 0
        if self._allowance is not None:
            grown = self._allowance * NARROWING
            self._allowance = grown if grown < self._window_events else None

    def failed(
        self, batch: Batch, done: int | Collection[int], now_ms: int, error: str, chance: float
    ) -> list[Instruction]:
        """The recipient has processed only `done`: a count from the start, or indexes. `chance` (0 to 1) is the jitter.

        To blame are those before the last that was done, and the one after it, for others may not have been tried.
        """
        count = batch.count
        indexes = range(min(done, count)) if isinstance(done, int) else {one for one in done if 0 <= one < count}
        if len(indexes) == count:
            return self.delivered(batch)
        self._land(batch)
        self.failures += 1
        self.last_error = error
        places = [(lane, at) for lane, picked in batch.picks for at in picked]
        if not indexes and count > 1:
            self._narrow(batch, places, now_ms, chance)
            return []
        instructions: list[Instruction] = []
        if indexes:
            self._strikes = self._pause_until_ms = 0
            finished: dict[Lane, BitMap64] = {}
            for index in indexes:
                lane, at = places[index]
                finished.setdefault(lane, BitMap64()).add(at)
            instructions += self._confirm(list(finished.items()))
        blamed_to = max(indexes, default=-1) + 1
        for index, (lane, at) in enumerate(places):
            if index not in indexes and not lane.removed:
                if index <= blamed_to:
                    instructions += self._blame(lane, at, now_ms, chance, alone=count == 1)
                elif not self._is_head(lane, at):
                    lane.waiting.add(at)
        if count == 1 and self._strikes >= SUSPECT_STRIKES and self.policy.give_up_age_ms is not None:
            instructions += self._give_up_old(now_ms)
        return instructions

    def stored(self, batch: Batch) -> None:
        """The recipient has all of it safe, and confirms it later (`confirmed`): what follows need not wait."""
        self._land(batch)
        self._succeeded()
        for lane, picked in batch.picks:
            if not lane.removed:
                lane.stored |= picked
        for held in list(self._held.values()):
            if held.head is not None and held.head[1] in held.head[0].stored:
                held.head = None
                self._free(held)

    def confirmed(self, batch: Batch, indexes: Iterable[Range]) -> list[Instruction]:
        """The recipient has confirmed these (ranges of indexes) of a batch that it had `stored`."""
        picks = [(lane, part & lane.stored) for lane, part in batch.cut(indexes)]
        return self._confirm([(lane, done) for lane, done in picks if done])

    def again(self, batch: Batch, indexes: Iterable[Range]) -> None:
        """The recipient does not have these any more: they are owed as before."""
        for lane, part in batch.cut(indexes):
            lost = part & lane.stored
            lane.stored -= lost
            lane.waiting |= lost
            if self._held or self._flight is not None:
                self._returned += [(lane, at) for at in lost]

    def _reorder(self) -> None:
        """What came back goes before what failed after it. Behind that, in a section's older lane, it never goes."""
        returned, self._returned = self._returned, []
        for lane, at in returned:
            if lane.removed or at not in lane.unsettled or at in lane.stored:
                continue
            held = self._held.get((lane.rank, self._facts_of(lane.section, at)[0]))
            if held is None:
                continue
            if held.burying:
                self._returned.append((lane, at))  # there is no head to compare with yet
            elif held.head is not None and held.head[0].section == lane.section and at < held.head[1]:
                held.follow(*held.head)
                held.head = None
                self._free(held)

    def unreadable(self, batch: Batch, lost: Collection[int]) -> list[Instruction]:
        """Persistent memory lost these (indexes): they are settled by that. The others were not tried, and wait."""
        self._land(batch)
        finished: dict[Lane, BitMap64] = {}
        for index, (lane, at) in enumerate((lane, at) for lane, picked in batch.picks for at in picked):
            if index in lost:
                finished.setdefault(lane, BitMap64()).add(at)
            elif not lane.removed and not self._is_head(lane, at):
                lane.waiting.add(at)
        return self._confirm(list(finished.items()))

    def _land(self, batch: Batch) -> None:
        if batch is not self._flight:
            raise InternalFault(detail=f"recipient {self.name}: this batch is not in flight")
        self._flight = None

    def _confirm(self, picks: list[tuple[Lane, BitMap64]]) -> list[Instruction]:
        instructions: list[Instruction] = []
        for lane, done in picks:
            ranges = lane.settle(done)
            if not lane.removed:
                instructions.append(Confirm(lane.section, ranges, len(done)))
        for held in list(self._held.values()):
            if held.head is not None and held.head[1] not in held.head[0].unsettled:
                held.head = None
                self._free(held)
        return instructions

    def _narrow(self, batch: Batch, places: list[tuple[Lane, int]], now_ms: int, chance: float) -> None:
        """Nothing of several events was done: all of them are owed as before."""
        self._allowance = max(1, batch.count // NARROWING)
        self._pause_until_ms = now_ms + self.policy.pause_ms(1, chance)
        for lane, at in places:
            if not lane.removed and not self._is_head(lane, at):
                lane.waiting.add(at)

    def _is_head(self, lane: Lane, at: int) -> bool:
        if not self._held:
            return False
        held = self._held.get((lane.rank, self._facts_of(lane.section, at)[0]))
        return held is not None and held.head == (lane, at)

    def _hold(self, lane: Lane, source: Hashable) -> Held:
        key = lane.rank, source
        return self._held.setdefault(key, Held(key))

    def _blame(self, lane: Lane, at: int, now_ms: int, chance: float, *, alone: bool) -> list[Instruction]:
        """This event failed: its source waits for it."""
        source, time_ms = self._facts_of(lane.section, at)
        held = self._hold(lane, source)
        if held.head is None and not held.burying:
            held.head = lane, at
        elif held.head != (lane, at):
            held.follow(lane, at)  # behind one of the same batch
            return []
        held.attempts += 1
        held.alone |= alone
        held.due_ms = now_ms + self.policy.pause_ms(held.attempts, chance)
        if alone:
            self._strikes += 1
            if self._strikes > 1:
                self._pause_until_ms = now_ms + self.policy.pause_ms(self._strikes - 1, chance)
        reason = self.policy.why_given_up(held.attempts, now_ms - time_ms)
        if reason is None:
            return []
        held.head = None
        return [self._bury(held, lane, at, held.attempts, reason)]

    # --- giving up ------------------------------------------------------------------------------------

    def _bury(self, held: Held, lane: Lane, at: int, attempts: int, reason: str) -> GiveUp:
        held.burying[lane, at] = attempts
        self._buried_for[lane.section, at] = held
        return GiveUp(lane.section, at, f"{reason}: {self.last_error}" if self.last_error else reason, attempts)

    def _give_up_old(self, now_ms: int) -> list[Instruction]:
        """The recipient fails whatever it is sent: what is too old is not tried one by one."""
        given_up: list[Instruction] = []
        active = self._active()
        for held in list(self._held.values()):
            if held.head is not None and held.head[0] in active:
                lane, at = held.head
                reason = self.policy.why_too_old(now_ms - self._facts_of(lane.section, at)[1])
                if reason is None:
                    continue  # nor then is what comes after it
                held.head = None
                given_up.append(self._bury(held, lane, at, held.attempts, reason))
            for lane, followers in held.followers.items():
                if lane in active and len(given_up) < GIVE_UPS_MAX:
                    given_up += self._bury_old(lane, followers, now_ms, GIVE_UPS_MAX - len(given_up))
        for lane in active:
            given_up += self._bury_old(lane, lane.waiting, now_ms, GIVE_UPS_MAX - len(given_up))
        return given_up

    def _bury_old(self, lane: Lane, sequences: BitMap64, now_ms: int, count: int) -> list[GiveUp]:
        given_up: list[GiveUp] = []
        for at in list(sequences[: max(count, 0)]):
            source, time_ms = self._facts_of(lane.section, at)
            reason = self.policy.why_too_old(now_ms - time_ms)
            if reason is None:
                break
            held = self._hold(lane, source)
            sequences.discard(at)
            if held.head is not None or held.kept:
                held.follow(lane, at)
            else:
                given_up.append(self._bury(held, lane, at, 0, reason))
        return given_up

    def buried(self, section: int, at: int) -> None:
        """The ledger has the dead event durably."""
        held = self._buried_for.pop((section, at), None)
        if held is not None:
            lane = self._lane_of(section, at)
            del held.burying[lane, at]
            lane.drop(at)
            self._free(held)

    def kept(self, section: int, at: int, now_ms: int, chance: float) -> None:
        """There was no room for it among the dead: it is owed as before, and tried again."""
        held = self._buried_for.pop((section, at), None)
        if held is not None:
            lane = self._lane_of(section, at)
            held.attempts = max(held.attempts, held.burying.pop((lane, at)), 1)
            held.due_ms = now_ms + self.policy.pause_ms(held.attempts, chance)
            held.kept.append((lane, at))
            self._free(held)

    def _free(self, held: Held) -> None:
        """Let a source go on if nothing stands at its head."""
        if held.burying:
            return
        held.settle_kept()
        if held.head is None and self._held.get(held.key) is held:
            del self._held[held.key]
            held.release()
