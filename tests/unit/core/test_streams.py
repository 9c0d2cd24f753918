"""Large bodies in the core: the index of fragments, and that a replay finds exactly what lived (B-12)."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import ids
from clarion.core.destination import Destination
from clarion.core.entries import (
    Change,
    Create,
    Drop,
    Due,
    Fragment,
    Kind,
    Large,
    Outcome,
    Publish,
    Ranges,
    Stage,
    StreamDropped,
    Subscribe,
    Transfer,
    decode_moved_fragment,
    encode_moved_fragment,
    runs_of,
)
from clarion.core.state import State
from clarion.core.streams import Stream, Streams, keyed_id, producer_of, stream_id

SEGMENT_BYTES = 1 << 20
PRODUCER = ids.IdGenerator.begin(0, 1, ids.EPOCH_MS + 1).next_producer()


# --- ids --------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_b12_an_id_of_a_key_is_the_same_for_everybody_and_of_no_producer(name: str, key: str, other: str) -> None:
    identity = keyed_id(name, key)
    assert identity == keyed_id(name, key)
    assert len(identity) == 24
    assert producer_of(identity) == 0
    assert (identity == keyed_id(name, other)) == (key == other)
    assert (identity == keyed_id(other, key)) == (name == other)


def test_b12_an_id_of_a_producer_names_it() -> None:
    assert producer_of(stream_id(PRODUCER, 7)) == PRODUCER
    assert stream_id(PRODUCER, 7) != stream_id(PRODUCER, 8)


# --- the index --------------------------------------------------------------------------------------

_sizes = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def made(sizes: list[int]) -> Stream:
    stream = Stream(1, stream_id(PRODUCER, 1), 1)
    offset = 0
    for number, size in enumerate(sizes):
        assert stream.append(offset, size, number * 300_000, size + 60, number, number)
        offset += size
    return stream


@given(_sizes, st.data())
def test_b12_every_byte_is_found_in_its_fragment(sizes: list[int], data: st.DataObject) -> None:
    stream = made(sizes)
    assert stream.size == sum(sizes)
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    offset = data.draw(st.integers(0, stream.size))
    piece = stream.find(offset)
    if offset == stream.size:
        assert piece is None
    else:
        assert piece is not None
        number = owners[offset]
        assert piece == (sum(sizes[:number]), sum(sizes[: number + 1]), number * 300_000, sizes[number] + 60)


@given(_sizes, st.data())
def test_b12_moved_fragments_are_found_at_their_new_place_and_space_adds_up(
    sizes: list[int], data: st.DataObject
) -> None:
    stream = made(sizes)
    rows = list(stream)
    moved = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    for number in moved:
        old = rows[number]
        assert stream.move(old.first, 900_000_000 + number, 99) == old
        rows[number] = old._replace(position=900_000_000 + number, span=99)
    assert stream.move(stream.size + 1, 5, 5) is None
    assert list(stream) == rows
    assert stream.bytes_live == sum(row.span for row in rows)
    spaces: dict[int, int] = {}
    for row in rows:
        ordinal = row.position // SEGMENT_BYTES
        spaces[ordinal * SEGMENT_BYTES] = spaces.get(ordinal * SEGMENT_BYTES, 0) + row.span
    assert dict(stream.spaces(SEGMENT_BYTES)) == spaces
    low = data.draw(st.integers(0, 12_000_000))
    assert stream.in_segment(low, low + SEGMENT_BYTES) == [
        row for row in rows if low <= row.position < low + SEGMENT_BYTES
    ]
    again = Stream.load(stream.dump())
    assert list(again) == rows
    assert (again.size, again.bytes_live, again.checksum) == (stream.size, stream.bytes_live, stream.checksum)


def test_b12_a_fragment_that_does_not_follow_or_is_lost_changes_nothing() -> None:
    stream = made([10, 20])
    before = stream.dump()
    assert not stream.append(29, 5, 1, 1, 0, 0)
    assert not stream.append(31, 5, 1, 1, 0, 0)
    assert not stream.append(30, 5, 1, 0, 0, 0), "its bytes are lost"
    assert stream.dump() == before
    stream.complete = True
    assert not stream.append(30, 5, 1, 1, 0, 0)


def test_b12_keys_are_remembered_and_the_oldest_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clarion.limits.STREAM_KEYS_MAX", 2)
    streams = Streams()
    keys = [keyed_id("q", f"k{number}") for number in range(3)]
    for number, key in enumerate(keys, 1):
        streams.append(number, key, 1, 0, 5, 0, 0, 1000, 65)
        streams.complete(number, PRODUCER + number, 5)
    assert list(streams.finished) == keys[1:]
    streams.drop_destination(1)
    assert not streams.finished


# --- replay -----------------------------------------------------------------------------------------


@dataclass
class Life:
    """A state and its log; checkpoints are taken part by part while entries go on, as in the journal."""

    rng: Random
    state: State = field(default_factory=lambda: State(SEGMENT_BYTES))
    log: list[tuple[int, int, bytes, int, int]] = field(default_factory=list)
    index: int = 0
    position: int = SEGMENT_BYTES
    sequence: int = 1
    names: int = 0
    parts: list[bytes] = field(default_factory=list)
    begun_at: int = 0

    def write(self, kind: int, head: bytes, size: int = 0) -> tuple[int, int]:
        self.index += 1
        span = len(head) + size + 32
        at = self.position
        self.position += span
        self.log.append((self.index, kind, head, at, span))
        self.state.apply(self.index, kind, head, at, span)
        for destination in self.state.destinations.values():
            destination.visible = destination.tail
        return at, span

    # --- steps --------------------------------------------------------------------------------------

    def create(self) -> None:
        self.names += 1
        kind = self.rng.choice(("queue", "topic"))
        self.write(Kind.CREATE, Create(self.state.next_destination, kind, f"d{self.names}", 0).encode())
        if kind == "topic":
            for number, name in enumerate(("s", "t"), 1):
                entry = Subscribe(self.state.next_destination - 1, number, name, False, 1)
                self.write(Kind.SUBSCRIBE, entry.encode())

    def fragment(self) -> None:
        destination = self.pick()
        streams = self.state.streams
        if destination is None:
            return
        key = keyed_id(destination.name, str(self.rng.randrange(3)))
        stream = streams.find(key)
        if stream is not None and stream.complete:
            stream = None  # the key is used again for the next message
        number = streams.next_number if stream is None else stream.number
        offset = 0 if stream is None else stream.size
        size = self.rng.randrange(1, 1000)
        self.write(
            Kind.FRAGMENT, Fragment(destination.identity, number, key, offset, size, 0, self.index).encode(), size
        )

    def complete(self) -> None:
        found = self.state.streams.incomplete()
        if not found:
            return
        stream = self.rng.choice(found)
        destination = self.state.destinations[stream.destination]
        staged = self.rng.random() < 0.4
        first_id, self.sequence = PRODUCER + self.sequence, self.sequence + 1
        batch = Publish(destination.identity, 1, 0 if staged else destination.tail, 0, first_id)
        stage = Stage(batch, destination.stages.next_number if staged else 0, 10**12 if staged else 0, b"")
        self.write(Kind.LARGE, Large(stage, stream.number, stream.size).encode(), 90)

    def publish(self) -> None:
        destination = self.pick()
        if destination is not None:
            first_id, self.sequence = PRODUCER + self.sequence, self.sequence + 1
            self.write(Kind.PUBLISH, Publish(destination.identity, 1, destination.tail, 0, first_id).encode(), 50)

    def decide(self) -> None:
        """A delayed one becomes visible, or one in the wings is dropped."""
        destination = self.pick()
        if destination is None or not len(destination.stages):
            return
        number = self.rng.choice([staged.number for staged in destination.stages])
        runs = runs_of([number])
        if self.rng.random() < 0.5:
            change = Change(destination.identity, visible=runs, first=destination.tail)
            self.write(Kind.DUE, Due(self.index, change).encode())
        else:
            change = Change(destination.identity, dropped=runs)
            self.write(Kind.OUTCOME, Outcome([bytes(24)], False, self.index, [change]).encode())

    def confirm(self) -> None:
        destination = self.pick()
        if destination is not None and destination.tail > 1:
            first = self.rng.randrange(1, destination.tail)
            end = self.rng.randrange(first + 1, destination.tail + 1)
            for subscription in list(destination.subscriptions.values()):
                if self.rng.random() < 0.7:
                    head = Ranges(destination.identity, subscription.identity, [(first, end)]).encode()
                    self.write(Kind.CONFIRM, head)

    def transfer(self) -> None:
        """A message with a large body goes to another destination."""
        source, target = self.pick(), self.pick()
        if source is None or target is None or source is target or not source.large:
            return
        sequence = self.rng.choice(list(source.large))
        number = source.large[sequence]
        subscription = self.rng.choice(list(source.subscriptions.values()))
        if subscription.confirmed.covers(sequence, sequence + 1):
            return
        entry = Transfer(
            target.identity, target.tail, 2, self.index, 4, 0, 0, 0,
            source.identity, subscription.identity, [(sequence, sequence + 1)], [(1, number)],
        )  # fmt: skip
        self.write(Kind.TRANSFER, entry.encode(), 90)
        assert target.large[entry.first + 1] == number
        stream = self.state.streams.get(number)
        assert stream is not None
        stream.held[target.identity] += 1

    def give_up(self) -> None:
        found = self.state.streams.incomplete()
        if found:
            self.write(Kind.STREAM_DROPPED, StreamDropped([self.rng.choice(found).number]).encode())

    def drop(self) -> None:
        destination = self.pick()
        if destination is not None:
            numbers = [*destination.large.values(), *(staged.stream for staged in destination.stages)]
            numbers += destination.dropped_streams
            self.write(Kind.DROP, Drop(destination.identity).encode())
            for number in numbers:
                self.state.streams.let_go(number, destination.identity)

    def move(self) -> None:
        """Compaction copies a fragment."""
        streams = [stream for stream in self.state.streams if len(stream)]
        if streams:
            stream = self.rng.choice(streams)
            piece = self.rng.choice(list(stream))
            at, self.position = self.position, self.position + piece.span
            self.log.append((0, 6, encode_moved_fragment(stream.number, piece.first), at, piece.span))
            stream.move(piece.first, at, piece.span)

    def release(self) -> None:
        """What a host does after durability."""
        self.state.streams.dropped.clear()
        for destination in self.state.destinations.values():
            dropped, destination.dropped_streams = destination.dropped_streams, []
            for number in (*dropped, *destination.release_large([(1, destination.tail)])):
                self.state.streams.let_go(number, destination.identity)

    def pick(self) -> Destination | None:
        found = list(self.state.destinations.values())
        return self.rng.choice(found) if found else None

    # --- checkpoint and replay ------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        work = [self.fragment] * 8 + [self.complete] * 4 + [self.publish, self.decide, self.confirm, self.confirm]
        work += [self.transfer, self.transfer, self.give_up, self.move, self.move, self.release, self.release]
        self.create()
        self.create()
        dumping = None
        checkpoint_at, pace = self.rng.randrange(steps), self.rng.choice((0.03, 0.1, 0.5))
        for step in range(steps):
            if step == checkpoint_at:
                self.begun_at, dumping = len(self.log), self.state.dump()
            if dumping is not None and self.rng.random() < pace:
                part = next(dumping, None)
                if part is None:
                    dumping = None
                else:
                    self.parts.append(part)
            if self.rng.random() < 0.03:
                self.rng.choice((self.create, self.drop))()
            self.rng.choice(work)()
        self.parts += list(dumping or ())
        self.release()

    def replayed(self) -> State:
        state = State(SEGMENT_BYTES)
        state.load(self.parts)
        for index, kind, head, position, span in self.log[self.begun_at :]:
            moved = decode_moved_fragment(head) if kind == 6 else None
            if moved is not None:
                stream = state.streams.get(moved[0])
                if stream is not None:
                    stream.move(moved[1], position, span)
            else:
                state.apply(index, kind, head, position, span)
        state.count_streams()
        state.recovered()
        for destination in state.destinations.values():
            for number in destination.release_large([(1, destination.tail)]):
                state.streams.let_go(number, destination.identity)
        return state


def story(state: State) -> dict[int, object]:
    return {
        stream.number: (list(stream), stream.complete, stream.wanted, dict(stream.held), stream.identity)
        for stream in state.streams
    }


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 32))
def test_b12_a_replay_finds_the_bodies_that_lived_and_no_others(seed: int) -> None:
    life = Life(Random(seed))
    life.run(120)
    again = life.replayed()
    assert story(again) == story(life.state)
    assert again.streams.next_number == life.state.streams.next_number
    assert again.streams.finished == life.state.streams.finished
    for identity, destination in life.state.destinations.items():
        assert again.destinations[identity].large == destination.large
        assert again.destinations[identity].bytes_streamed >= 0
