"""A pipeline beside the plainest possible account of what one recipient is owed: sets and lists."""

from __future__ import annotations

from dataclasses import dataclass, field

from clarion.core.spans import Spans
from clarion.events.distribution import Batch, Confirm, GiveUp, Instruction, Pipeline, RetryPolicy

WINDOW = 12
FIRST = 1
Place = tuple[int, int]


@dataclass
class Section:
    number: int
    rank: int
    end: int | None
    """Of what was there at the start; None: it goes on."""
    sources: list[str] = field(default_factory=list)
    """Of the event FIRST + index; "" is not owed."""
    times: list[int] = field(default_factory=list)

    @property
    def tail(self) -> int:
        return FIRST + len(self.sources)


class World:
    def __init__(self, policy: RetryPolicy, sections: list[Section], replay_rank: int = 1) -> None:
        self.policy = policy
        self.replay_rank = replay_rank
        """Of what a section that goes on had before a restart; 3: old and new are of one rank."""
        self.sections = {section.number: section for section in sections}
        self.now_ms = 1_000
        self.durable: set[Place] = set()
        """What the ledger has recorded as settled, everything that it was told, owed or not."""
        self.dead: set[Place] = set()
        self.restarts = 0
        self.cuts: dict[int, int] = {}
        """Where what is new begins in a section that goes on."""
        self.start()

    def start(self) -> None:
        """As after a crash: only what is durable is known."""
        self.settled: set[Place] = {place for place in self.durable if place in self.owed_places()}
        """Delivered, or given up durably."""
        self.offered: set[Place] = set()
        self.confirms: list[Confirm] = []
        self.give_ups: list[GiveUp] = []
        self.batch: Batch | None = None
        self.stored: list[Batch] = []
        self.safe: set[Place] = set()
        """With the recipient, which has not confirmed it yet."""
        self.returned: set[Place] = set()
        """The recipient had it safe, and lost it: what came after it may have been sent meanwhile."""
        self.pipeline = Pipeline(3, "recipient", self.policy, self.facts_of, WINDOW)
        for section in self.sections.values():
            floor, spans = self.floor_and_spans(section)
            self.pipeline.load(section.number, floor, spans)
            if section.end is None and self.restarts:
                # What was there before this start is replayed, what comes now is new: two lanes of one section.
                self.pipeline.add_section(section.number, self.replay_rank, FIRST, section.tail)
                self.pipeline.add_section(section.number, section.rank, section.tail)
                self.cuts[section.number] = section.tail
            else:
                self.pipeline.add_section(section.number, section.rank, FIRST, section.end)
                self.cuts[section.number] = FIRST

    def rank_of(self, place: Place) -> int:
        section = self.sections[place[0]]
        return self.replay_rank if section.end is None and place[1] < self.cuts[place[0]] else section.rank

    def floor_and_spans(self, section: Section) -> tuple[int, list[tuple[int, int]]]:
        spans = Spans()
        for number, at in sorted(self.durable):
            if number == section.number:
                spans.put(at, at + 1)
        ranges = [(first, end) for first, end, _ in spans]
        if ranges and ranges[0][0] <= FIRST:
            return ranges[0][1], ranges[1:]
        return FIRST, ranges

    def facts_of(self, section: int, at: int) -> tuple[str, int]:
        here = self.sections[section]
        return here.sources[at - FIRST], here.times[at - FIRST]

    def owed_places(self) -> set[Place]:
        return {
            (section.number, FIRST + index)
            for section in self.sections.values()
            for index, source in enumerate(section.sources)
            if source
        }

    # --- steps ------------------------------------------------------------------------------------------

    def emit(self, number: int, source: str) -> None:
        section = self.sections[number]
        if section.end is None:
            section.sources.append(source)
            section.times.append(self.now_ms - 31 * section.tail % 90)

    def offer(self, number: int, count: int) -> None:
        section = self.sections[number]
        cursor = self.pipeline.cursor(number)
        read_to = min(section.tail, cursor + count)
        # Runs that begin before the cursor are allowed.
        owed = [at for at in range(max(FIRST, cursor - 2), read_to) if section.sources[at - FIRST]]
        runs = [(first, end) for first, end, _ in Spans([(at, at + 1, 0) for at in owed])]
        taken = self.pipeline.offer_runs(number, runs, read_to)
        reached = self.pipeline.cursor(number)
        fresh = {(number, at) for at in owed if cursor <= at < reached} - self.durable
        assert len(fresh) == taken
        assert cursor <= reached <= read_to or reached == cursor
        self.offered |= fresh

    def deliver(self, events_max: int) -> None:
        """Take a batch, and check everything that may be said of it."""
        if self.batch is not None:
            assert self.pipeline.next_batch(self.now_ms, events_max) is None
            return
        due = self.pipeline.due_ms()
        batch = self.batch = self.pipeline.next_batch(self.now_ms, events_max)
        if batch is None:
            return
        assert due is not None and due <= self.now_ms
        places = batch.events()
        assert places == [(number, at) for number, runs in batch.parts for run in runs for at in range(*run)]
        assert len(places) == len(set(places)) == batch.count <= max(events_max, 1)
        assert set(places) <= self.offered - self.settled - self.durable - self.safe
        burying = {(give_up.section, give_up.at) for give_up in self.give_ups}
        assert not burying & set(places)
        self.check_ranks(places)
        gone = self.settled | self.safe | self.returned
        for place in places:  # order per source: nothing before an earlier one of its section is settled or before it
            source = self.facts_of(*place)[0]
            earlier = [(place[0], at) for at in range(FIRST, place[1]) if self.facts_of(place[0], at)[0] == source]
            assert set(earlier) <= gone
            gone.add(place)

    def check_ranks(self, places: list[Place]) -> None:
        ranks = {self.rank_of(place) for place in places}
        assert len(ranks) == 1
        rank = ranks.pop()
        lower = {place for place in self.owed_places() if self.rank_of(place) < rank}
        for number, section in self.sections.items():
            bound = section.end if section.end is not None else self.cuts[number]
            lower -= {(number, at) for at in range(bound, section.tail)}
        assert lower <= self.settled | self.safe | self.returned

    def succeed(self) -> None:
        if self.batch is not None:
            batch, self.batch = self.batch, None
            self.settled |= set(batch.events()) & self.offered
            self.take(self.pipeline.delivered(batch))

    def fail(self, done: set[int]) -> None:
        if self.batch is not None:
            batch, self.batch = self.batch, None
            self.settled |= {place for index, place in enumerate(batch.events()) if index in done} & self.offered
            self.take(self.pipeline.failed(batch, done, self.now_ms, "no", 0.5))

    def store(self) -> None:
        """The recipient has the batch safe, and will confirm it."""
        if self.batch is not None:
            batch, self.batch = self.batch, None
            self.pipeline.stored(batch)
            self.stored.append(batch)
            self.safe |= set(batch.events()) & self.offered

    def confirm_later(self, number: int, first: int, end: int, *, lost: bool = False) -> None:
        """It confirms some of a batch that it has safe, or has lost them."""
        if self.stored:
            batch = self.stored[number % len(self.stored)]
            end = min(end, batch.count)
            places = set(batch.events()[first:end]) & self.safe
            self.safe -= places
            if lost:
                self.returned |= places
                self.pipeline.again(batch, [(first, end)])
            else:
                self.settled |= places
                self.take(self.pipeline.confirmed(batch, [(first, end)]))

    def lose(self, lost: set[int]) -> None:
        """Some of the batch cannot be read any more."""
        if self.batch is not None:
            batch, self.batch = self.batch, None
            self.settled |= {place for index, place in enumerate(batch.events()) if index in lost} & self.offered
            self.take(self.pipeline.unreadable(batch, lost))

    def take(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, GiveUp):
                place = instruction.section, instruction.at
                assert place in self.offered - self.settled
                self.give_ups.append(instruction)
            else:
                covered = {(instruction.section, at) for run in instruction.ranges for at in range(*run)}
                assert covered & self.owed_places() <= self.settled, "confirms what was not delivered"
                assert all(first < end for first, end in instruction.ranges)
                assert instruction.section in self.sections
                self.confirms.append(instruction)

    def record(self) -> None:
        """The ledger's next group is durable."""
        if self.confirms:
            confirm = self.confirms.pop(0)
            self.durable |= {(confirm.section, at) for run in confirm.ranges for at in range(*run)}
            self.pipeline.recorded(confirm)

    def answer_give_up(self, *, room: bool) -> None:
        if self.give_ups:
            give_up = self.give_ups.pop(0)
            place = give_up.section, give_up.at
            if place[0] not in self.sections:
                self.pipeline.buried(*place)
                self.pipeline.kept(*place, self.now_ms, 0.5)
            elif room:
                self.durable.add(place)
                self.settled.add(place)
                self.dead.add(place)
                self.pipeline.buried(*place)
            else:
                self.pipeline.kept(*place, self.now_ms, 0.5)

    def crash(self) -> None:
        self.restarts += 1
        self.start()

    def add(self, section: Section) -> None:
        """A partner died: its events go before what is new, also before what was offered already."""
        if section.number not in self.sections:
            self.sections[section.number] = section
            self.cuts[section.number] = FIRST
            self.pipeline.add_section(section.number, section.rank, FIRST, section.end)

    def remove(self, number: int) -> None:
        """A section is given back; what is in flight of it may still be answered."""
        if self.sections.pop(number, None) is not None:
            self.pipeline.remove_section(number)
            self.offered = {place for place in self.offered if place[0] in self.sections}
            self.safe &= self.offered

    # --- what always holds --------------------------------------------------------------------------------

    def check(self) -> None:
        pipeline = self.pipeline
        unrecorded = self.offered - self.durable
        assert pipeline.unrecorded == len(unrecorded)
        assert pipeline.owed == len(self.offered - self.settled)
        for rank in range(4):
            assert len([place for place in unrecorded if self.rank_of(place) == rank]) <= WINDOW
        for number in self.sections:
            cursor = pipeline.cursor(number)
            here = [at for section, at in unrecorded if section == number]
            assert pipeline.settled_floor(number) == min(here, default=cursor)
        if self.batch is None and self.give_ups == [] and pipeline.due_ms() is None:
            waits_for_lower = [
                number
                for number, section in self.sections.items()
                if pipeline.cursor(number) < (section.end or self.cuts[number])
            ]
            assert not self.offered - self.settled - self.safe or waits_for_lower

    def finish(self) -> None:
        """From now on everything succeeds: everything is delivered, and confirmed."""
        for _ in range(3_000):
            while self.give_ups:
                self.answer_give_up(room=True)
            self.succeed()
            for number, batch in enumerate(self.stored):
                self.confirm_later(number, 0, batch.count)
            while self.confirms:
                self.record()
            for number in self.sections:
                self.offer(number, 5)
            self.deliver(4)
            due = self.pipeline.due_ms()
            if self.batch is None and due is not None:
                self.now_ms = max(self.now_ms, due)
            self.check()
            if self.owed_places() <= self.durable and self.batch is None:
                return
        raise AssertionError(f"left over: {self.owed_places() - self.durable}")
