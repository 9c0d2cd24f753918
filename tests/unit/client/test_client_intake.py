"""What was delivered, seen, held and given back: against a naive model that knows every message."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from clarion.client.inbox import Inbox, Part
from clarion.client.intake import Intake
from clarion.client.subscription import wanted_of
from clarion.wire.batch import encode
from clarion.wire.frames import Slice, Type

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["deliver", "take", "take all", "confirm", "reject", "return", "turn", "answer", "lose", "cut"]
        ),
        st.integers(1, 5),
    ),
    max_size=60,
)


class Plain(Intake):
    """A consumer without a broker."""

    def __init__(self, ack: str = "individual") -> None:
        super().__init__(1, wanted_of("q", ack=ack, prefetch_messages=4))  # type: ignore[arg-type]

    def _mark(self, inbox: Inbox) -> None: ...

    def _check_open(self) -> None: ...


@dataclass
class Model:
    """Sets of sequences."""

    next: int = 0
    unseen: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """Confirmed, and not answered."""


def spread(ranges: list[tuple[int, int]]) -> set[int]:
    covered = [sequence for first, end in ranges for sequence in range(first, end)]
    assert len(covered) == len(set(covered))
    return set(covered)


@given(STEPS)
def test_b02_what_is_seen_unseen_and_held_is_known_to_the_message(steps: list[Step]) -> None:
    intake, model = Plain(), Model()
    inbox = intake._inbox
    for step, count in steps:
        match step:
            case "deliver":
                batch = bytes(encode(b"q", 1, [b"x"] * count))
                intake._take_in(inbox, Slice(model.next, 1, False, memoryview(batch)))
                model.unseen += range(model.next, model.next + count)
                model.next += count
            case "take":
                part = intake._part()
                assert (part is None) == (not model.unseen)
                if part is not None:
                    taken = part.first + part.index
                    part.index += 1
                    intake._give_credit(part)
                    assert taken == model.unseen.pop(0)
                    model.seen.add(taken)
            case "take all":
                part = intake._part()
                if part is not None:
                    first, part.index = part.index, part.count
                    intake._give_credit(part)
                    for index in range(first, part.count):
                        assert part.first + index == model.unseen.pop(0)
                        model.seen.add(part.first + index)
            case "confirm" | "reject" | "return":
                for sequence in sorted(model.seen)[: count // 2 + 1]:
                    model.seen.discard(sequence)
                    if step == "confirm":
                        inbox.acknowledge(Type.CONFIRM, sequence, sequence + 1)
                        model.unsure.add(sequence)
                    elif step == "reject":
                        inbox.acknowledge(Type.REJECT, sequence, sequence + 1)
                    else:
                        inbox.give_back(sequence, sequence + 1, "why", None)
            case "turn":
                inbox.take_acks()
            case "answer":
                for ack in list(inbox.unanswered):
                    del inbox.unanswered[ack]
                    if ack.kind == Type.CONFIRM:
                        model.unsure -= spread([(first, end) for first, end, _ in ack.ranges])
            case "lose":
                intake._drop_unseen()
                inbox.detach()
                assert spread(inbox.claim()) == model.seen | model.unsure
                model.unseen.clear()
            case _:
                unseen = spread([one for _, ranges in intake._drop_unseen() for one in ranges])
                assert unseen == set(model.unseen)
                model.unseen.clear()
        in_frame = spread([(f, e) for f, e, _ in inbox.confirming.ranges]) if inbox.confirming else set()
        assert spread([one for _, ranges in intake._seen() for one in ranges]) - in_frame == model.seen
        assert intake._idle == (not model.seen and not inbox.pending() and not _rest(intake))


def _rest(intake: Intake) -> bool:
    """Part of the present part is not taken."""
    current = intake._current
    return current is not None and current.index < current.count


@given(st.lists(st.integers(1, 6), max_size=20), st.integers(0, 40))
def test_b14_what_a_transaction_consumed_is_what_was_taken(sizes: list[int], taken: int) -> None:
    intake = Plain()
    first = 0
    for size in sizes:
        intake._take_in(intake._inbox, Slice(first, 1, False, memoryview(bytes(encode(b"q", 1, [b"x"] * size)))))
        first += size
    got: list[Part] = []
    for _ in range(taken):
        part = intake._part()
        if part is not None:
            part.index += 1
            got.append(part)
    assert intake._take_seen() == ([(1, [(0, len(got))])] if got else [])
    assert intake._take_seen() == []
    assert spread([one for _, ranges in intake._drop_unseen() for one in ranges]) == set(range(len(got), first))


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=30))
def test_b13_credit_adds_up_to_what_was_taken(steps: list[tuple[int, bool]]) -> None:
    intake = Plain()
    taken = given_back = first = 0
    for size, whole in steps:
        intake._take_in(intake._inbox, Slice(first, 1, False, memoryview(bytes(encode(b"q", 1, [b"xy"] * size)))))
        first += size
        part = intake._part()
        assert part is not None
        before = part.index
        part.index = part.count if whole else part.index + 1
        taken += part.index - before
        if part.index >= part.credit_at:
            intake._give_credit(part)
        if intake._credit.due:
            given_back += intake._credit.messages
            assert intake._credit.bytes == 2 * intake._credit.messages
            intake._credit.clear()
        assert taken - intake._credit.half_messages <= given_back + intake._credit.messages <= taken
