"""The producer window against a naive model, and requests that wait (B-13)."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import CreditExceeded, ProtocolError
from clarion.nodes.connection import Connection
from clarion.nodes.gateway import Rejected
from clarion.nodes.sessions import REQUESTS_UNANSWERED_MAX, ProducerWindow, Session
from clarion.wire.frames import Type

WINDOW = 100

steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from("ab"), st.integers(1, 150)),
        st.tuples(st.just("settle"), st.integers(0, 30), st.integers(1, 3)),
        st.tuples(st.just("refuse"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("again"), st.sampled_from("ab"), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_b13_the_window_holds_exactly_what_was_relayed_and_not_answered(steps: list[tuple[str, object, int]]) -> None:
    window = ProducerWindow(WINDOW)
    sent: dict[int, tuple[str, int]] = {}  # the naive model: sequence → destination, size; one message a batch
    refused: dict[str, int] = {}
    sizes: dict[int, tuple[str, int]] = {}
    following = 1
    for step, what, size in steps:
        if step in ("publish", "again"):
            destination = str(what)
            if step == "publish":
                first, following = following, following + 1
                sizes[first] = (destination, size)
            elif destination in refused:
                first = refused[destination]
                size = sizes[first][1]
            else:
                continue
            waiting = sum(n for where, n in sent.values() if where == destination)
            if destination in refused and first > refused[destination]:
                assert not window.take(destination, first, 1, size)
                continue
            if waiting and waiting + size > WINDOW:
                with pytest.raises(CreditExceeded):
                    window.take(destination, first, 1, size)
                return  # it costs the connection
            assert window.take(destination, first, 1, size)
            refused.pop(destination, None)
            sent[first] = (destination, size)
        elif step == "settle":
            first = cast(int, what)
            window.settle(first, size)
            for sequence in range(first, first + size):
                if sequence not in sent:
                    break
                del sent[sequence]
        elif cast(int, what) in sent:
            first = cast(int, what)
            destination = sent[first][0]
            window.refuse(first, None)
            refused[destination] = first
            sent = {n: batch for n, batch in sent.items() if batch[0] != destination or n < first}
        assert window.unanswered_bytes == sum(n for _, n in sent.values())


def test_b13_one_answer_may_settle_several_batches() -> None:
    window = ProducerWindow(WINDOW)
    window.take("a", 1, 10, 30)
    window.take("b", 11, 5, 30)
    window.take("a", 16, 1, 30)
    window.settle(1, 15)
    assert window.unanswered_bytes == 30


def test_b13_sending_the_same_batch_over_and_over_uses_the_window_up() -> None:
    window = ProducerWindow(WINDOW)
    for _ in range(3):
        assert window.take("a", 1, 1, 30)
    with pytest.raises(CreditExceeded):
        window.take("a", 1, 1, 30)
    window.settle(1, 1)
    assert window.unanswered_bytes == 0
    window.take("a", 2, 1, 30)
    with pytest.raises(ProtocolError):
        window.take("b", 2, 1, 30)


def test_b13_requests_without_an_answer_are_bounded() -> None:
    session = Session(1, 2, 1, cast(Connection, None), WINDOW)
    for request in range(REQUESTS_UNANSWERED_MAX):
        session.asked(request, Type.REQUEST, 10 + request)
    with pytest.raises(Rejected):
        session.asked(5_000, Type.REQUEST, 99)
    assert list(session.overdue(12)) == [0, 1, 2]
    session.asked(5_000, Type.REQUEST, 5_000)
    assert len(list(session.overdue(1 << 40))) == REQUESTS_UNANSWERED_MAX - 2
    assert not session.awaits
