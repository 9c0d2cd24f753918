"""Flow control as producers see it, and the sending half as a whole against a naive broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import limits
from clarion.client.outbox import Ticket
from clarion.errors import Blocked
from clarion.wire import frames
from clarion.wire.frames import CONFIRMED
from tests.unit.client.recording_host import RecordingHost, Sent
from tests.unit.client.scripted_broker import run


def test_b13_a_refused_destination_is_blocked_until_it_resumes() -> None:
    host = RecordingHost()
    there = host.publisher
    assert not there.is_blocked() and not there.is_blocked("q")
    there.send_nowait("q", b"0")
    there.send_nowait("q", b"1", priority=9)
    host.flush()
    host.refused(2)
    assert there.is_blocked("q")
    assert not there.is_blocked() and not there.is_blocked("other")
    host.published(host.sent[0])  # stored before the refusal, said after it
    assert there.is_blocked("q")
    for retry in host.still.timers:  # trying again by itself does not mean that it goes on
        retry()
    host.turn()
    assert len(host.sent) == 3
    assert there.is_blocked("q")
    host.refused(2)
    host.resume(2)
    assert not there.is_blocked("q")
    host.turn()
    host.refused(2)
    for retry in host.still.timers[1:]:
        retry()
    host.turn()
    host.published(host.sent[-1])  # it went through without a RESUME
    assert not there.is_blocked("q")
    assert there.buffered_bytes == 0


def test_b13_a_new_connection_is_not_blocked() -> None:
    host = RecordingHost()
    host.publisher.send_nowait("q", b"0")
    host.turn()
    host.refused(1)
    host.reconnect()
    assert not host.publisher.is_blocked("q")


def test_b13_try_send_takes_no_more_than_a_window_for_a_refused_destination() -> None:
    host = RecordingHost(window=100_000)
    there = host.publisher
    first = there.try_send("q", bytes(1_000))
    assert isinstance(first, Ticket)
    host.turn()
    host.refused(1)
    taken = 0
    while there.try_send("q", bytes(1_000), priority=taken % 3) is not None:
        taken += 1
        assert taken < 1_000
    assert 80 <= taken < 100
    assert there.try_send("other", b"") is not None
    there.send_nowait("q", b"whoever insists may")
    assert there.try_send("q", b"") is None
    host.resume(1)
    assert there.try_send("q", b"") is not None


def test_b13_try_send_returns_none_when_the_buffer_is_full() -> None:
    host = RecordingHost(buffer_bytes=200_000)
    taken = 0
    while host.publisher.try_send("q", bytes(20_000)) is not None:
        taken += 1
        assert taken < 100
    assert host.publisher.is_blocked() and host.publisher.is_blocked("q")
    with pytest.raises(Blocked):
        host.publisher.send_nowait("q", b"")


def test_b13_whoever_waited_for_room_may_send_a_quarter_of_the_buffer() -> None:
    async def main() -> None:
        host = RecordingHost(buffer_bytes=8 * limits.BATCH_BYTES_TARGET)
        there = host.publisher
        while there.try_send("q", bytes(20_000)) is not None:
            pass
        host.turn()
        waiting = asyncio.create_task(there.writable())
        for batch in list(host.sent):  # as few answers as possible
            host.published(batch)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if waiting.done():
                break
        assert there.buffered_bytes > 4 * limits.BATCH_BYTES_TARGET
        for _ in range(2 * limits.BATCH_BYTES_TARGET // 1_024 - 8):
            there.send_nowait("q", bytes(1_000))  # none of them raises

    run(main())


def test_b13_a_destination_that_fails_instead_of_waiting_raises_blocked_and_the_lane_goes_on() -> None:
    async def main() -> None:
        host = RecordingHost()
        tickets = [host.publisher.send_nowait("q", b"%d" % number, priority=number) for number in range(3)]
        host.flush()
        host.failed(host.sent[1], Blocked(destination="q", detail="its quota is used up"))
        host.published(host.sent[0], host.sent[2])
        await tickets[0]
        with pytest.raises(Blocked, match="its quota is used up"):
            await tickets[1]
        await tickets[2]
        assert not host.publisher.is_blocked("q")
        later = asyncio.create_task(host.publisher.send("q", b"later"))
        await asyncio.sleep(0)
        host.turn()
        host.failed(host.sent[-1], Blocked(destination="q", detail="its quota is used up"))
        with pytest.raises(Blocked):  # not sent again by itself, as it would be if the buffer were full
            await later
        last = host.publisher.send_nowait("q", b"last")
        host.turn()
        host.published(host.sent[-1])
        await last

    run(main())


def test_b01_what_waits_for_room_shares_the_session_with_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        host = RecordingHost(answering=True)
        calls: list[bool] = []
        send_nowait, put_many = host.publisher.send_nowait, host.publisher._put_many

        def guarded_send(*arguments: Any, **options: Any) -> Ticket:
            calls.append(host.publisher.lock.locked())
            return send_nowait(*arguments, **options)

        def guarded_put(*arguments: Any) -> Any:
            calls.append(host.publisher.lock.locked())
            return put_many(*arguments)

        monkeypatch.setattr(host.publisher, "send_nowait", guarded_send)
        monkeypatch.setattr(host.publisher, "_put_many", guarded_put)
        await host.publisher.send("q", b"0")
        await host.publisher.send_many("q", [b"1", b"2"])
        assert calls == [True, True]

    run(main())


# --- against a naive broker -----------------------------------------------------------------------


class NaiveBroker:
    """Stores, refuses, forgets with the connection, and watches; as docs/formats/wire.md has it, without any speed."""

    def __init__(self, host: RecordingHost, window: int) -> None:
        self.host = host
        self.window = window
        self.arrived: list[Sent] = []
        self.full: set[str] = set()
        self.refused: dict[str, int] = {}
        self.unanswered: dict[str, dict[int, int]] = {}
        self.stored: dict[str, dict[int, bytes]] = {}
        self.watched: list[int] = []
        self.confirmed: set[int] = set()
        host.on_sent = self.arrive

    def arrive(self, sent: Sent) -> None:
        known = self.unanswered.setdefault(sent.destination, {})
        known[sent.first] = sent.batch.size
        assert len(known) == 1 or sum(known.values()) <= self.window
        self.arrived.append(sent)

    def answer(self) -> None:
        """Judge the oldest one."""
        if not self.arrived:
            return
        sent = self.arrived.pop(0)
        name = sent.destination
        if sent.first > self.refused.get(name, sent.first):
            return
        if name in self.full and sent.first not in self.stored.get(name, {}):
            self.refused[name] = sent.first
            self.unanswered[name] = {}
            self.host.refused(sent.first)
            return
        self.refused.pop(name, None)
        del self.unanswered[name][sent.first]
        log = self.stored.setdefault(name, {})
        assert sent.first in log or not log or sent.first > max(log), "out of order"
        for index, body in enumerate(sent.bodies):
            assert log.setdefault(sent.first + index, body) == body
        self.host.published(sent)
        if sent.flags & (frames.UNTIL_ANY | frames.UNTIL_EVERY):
            self.watched.extend(range(sent.first, sent.end))

    def resume(self) -> None:
        self.full.clear()
        for first in list(self.refused.values()):
            self.host.resume(first)

    def confirm(self, count: int) -> None:
        """Say DELIVERED for the youngest watched ones, and again for what was said before."""
        for _ in range(min(count, len(self.watched))):
            sequence = self.watched.pop()
            self.confirmed.add(sequence)
            self.host.delivered((sequence, sequence + 1, CONFIRMED))

    def cut(self) -> None:
        self.arrived.clear()
        self.refused.clear()
        self.unanswered.clear()
        self.watched.clear()
        self.host.reconnect()


ACTION = st.one_of(
    st.tuples(
        st.just("send"),
        st.sampled_from(["q", "r"]),
        st.sampled_from([10, 3_000]),
        st.sampled_from(["stored", "stored", "any", "every"]),
        st.integers(3, 5),
    ),
    st.tuples(st.just("many"), st.sampled_from(["q", "r"]), st.integers(0, 30)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("answer")),
    st.tuples(st.just("full"), st.sampled_from(["q", "r"])),
    st.tuples(st.just("resume")),
    st.tuples(st.just("retry")),
    st.tuples(st.just("confirm"), st.integers(1, 5)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("link"), st.booleans()),
)


@settings(max_examples=300)
@given(st.lists(ACTION, max_size=60))
def test_b13_whatever_happens_everything_is_stored_once_in_order_and_told(actions: list[Any]) -> None:
    window = 8_000
    host = RecordingHost(window=window, batch_bytes_max=10_000)
    there = NaiveBroker(host, window)
    wanted: dict[str, list[bytes]] = {"q": [], "r": []}
    tickets: list[tuple[Ticket, str]] = []
    for number, action in enumerate(actions):
        match action:
            case ("send", name, size, until, priority):
                body = b"%d " % number + bytes(size)
                tickets.append((host.publisher.send_nowait(name, body, until=until, priority=priority), until))
                wanted[name].append(body)
            case ("many", name, count):
                bodies = [b"%d.%d" % (number, index) + bytes(200) for index in range(count)]
                host.publisher.send_many_nowait(name, bodies)
                wanted[name] += bodies
            case ("turn",):
                host.turn()
            case ("answer",):
                there.answer()
            case ("full", name):
                there.full.add(name)
            case ("resume",):
                there.resume()
            case ("retry",):
                timers, host.still.timers = host.still.timers, []
                for timer in timers:
                    timer()
            case ("confirm", count):
                there.confirm(count)
            case ("cut",):
                there.cut()
            case ("link", writable):
                host.writable = writable
    host.writable = True
    for _ in range(len(actions) + 5):  # everything goes well from now on
        there.resume()
        host.turn()
        while there.arrived:
            there.answer()
            host.turn()
    there.confirm(1 << 20)
    assert {name: list(there.stored.get(name, {}).values()) for name in wanted} == wanted
    assert all(ticket.done for ticket, _ in tickets)
    assert all(ticket.how == (None if until == "stored" else "confirmed") for ticket, until in tickets)
    assert host.publisher.buffered_bytes == 0
    assert all(lane.idle and not lane.used and not lane.unanswered_bytes for lane in host.publisher._lanes.values())
    assert not host.publisher.is_blocked("q") and not host.publisher.is_blocked("r")
