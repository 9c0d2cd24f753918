"""Both ends of a link over real sockets: durable when answered, each once, whatever dies or runs out (A-10)."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.errors import BadArgument, Blocked, ConnectionFailed, ConnectionLost, MessageTooLarge
from clarion.events.link import frames
from clarion.events.link.client import Link
from clarion.events.link.confirmations import pack_confirmations
from clarion.events.link.frames import Heartbeat, Held, Hello, Role, Type
from clarion.events.link.server import Server
from clarion.events.link.sink import Sink
from clarion.events.memory.layout import Recorded
from clarion.events.memory.ring import Section
from tests.unit.events.link_harness import ServerProgram, StoringHandler, new_section, texts_of, until

HELLO = Hello("client", Role.PARTNER)
PRODUCER = 5 << 64


def events(first: int, end: int, *, producer: int = PRODUCER, size: int = 10, epoch: int = 1) -> list[Recorded]:
    return [
        Recorded(producer, number, 1, 20, 1, epoch, 0, b"", f'"{number}"'.ljust(size).encode())
        for number in range(first, end)
    ]


def soon() -> float:
    return time.monotonic() + 10


@pytest.fixture
def section(tmp_path: Path) -> Iterator[Section]:
    section = new_section(tmp_path / "partner.ring", "partner")
    yield section
    section.close()


@pytest.fixture
def handler(section: Section) -> StoringHandler:
    return StoringHandler(section)


@pytest.fixture
def server(handler: StoringHandler) -> Iterator[Server]:
    server = Server(handler, ("127.0.0.1", 0), connections_max=4)
    server.start()
    yield server
    server.close()
    assert server.fault is None


@pytest.fixture
def link(server: Server) -> Iterator[Link]:
    link = Link.connect(server.address, 10, hello=HELLO)
    yield link
    link.close()


def test_a10_what_is_answered_is_stored_under_its_own_id(link: Link, section: Section) -> None:
    link.put_recorded(PRODUCER, events(1, 4), soon())
    link.await_stored(soon())
    found = section.read(1, 10, 1 << 20)
    assert [(one.producer, one.sequence, one.at) for one in found] == [(PRODUCER, n, n) for n in (1, 2, 3)]


def test_a10_what_comes_twice_is_stored_once(link: Link, section: Section) -> None:
    for first, end in ((1, 4), (1, 4), (3, 6), (5, 5), (2, 3)):
        link.put_recorded(PRODUCER, events(first, end), soon())
        link.await_stored(soon())
    assert [one.sequence for one in section.read(1, 10, 1 << 20)] == [1, 2, 3, 4, 5]


def test_a11_events_may_come_in_any_order(link: Link, section: Section) -> None:
    for group in ([7, 3], [9, 8, 3, 7], [1]):
        link.put_recorded(PRODUCER, [events(n, n + 1)[0] for n in group], soon())
        link.await_stored(soon())
    assert [one.sequence for one in section.read(1, 10, 1 << 20)] == [7, 3, 9, 8, 1]


def test_a10_a_group_larger_than_a_frame_goes_in_several(link: Link, section: Section) -> None:
    link.put_recorded(PRODUCER, events(1, 61, size=10_000), soon())
    link.await_stored(soon())
    assert section.next_sequence == 61


def test_a10_events_of_several_epochs_keep_theirs(link: Link, section: Section) -> None:
    link.put_recorded(PRODUCER, events(1, 3, epoch=1) + events(3, 5, epoch=2), soon())
    link.await_stored(soon())
    assert [one.epoch for one in section.read(1, 10, 1 << 20)] == [1, 1, 2, 2]


def test_a10_an_event_larger_than_a_frame_is_refused_here(link: Link) -> None:
    with pytest.raises(MessageTooLarge):
        link.put_recorded(PRODUCER, events(1, 2, size=300_000), soon())


def test_a10_a_full_memory_is_said_and_the_link_goes_on(link: Link, section: Section, handler: StoringHandler) -> None:
    stored = 0
    with pytest.raises(Blocked):
        while True:
            link.put_recorded(PRODUCER, events(stored + 1, stored + 11, size=10_000), soon())
            link.await_stored(soon())
            stored += 10
    assert not link.broken
    link.send(Type.RELEASED, frames.pack_released(PRODUCER, stored + 1), deadline_s=soon())
    until(lambda: bool(handler.told))
    handler.sink.released(*frames.unpack_released(memoryview(handler.told[-1][2])))
    link.put_recorded(PRODUCER, events(stored + 1, stored + 11, size=10_000), soon())
    link.await_stored(soon())
    assert section.first_sequence == stored + 1


def test_a10_a_greeting_says_what_is_held(server: Server, link: Link, handler: StoringHandler) -> None:
    link.put_recorded(PRODUCER, events(1, 4), soon())
    link.await_stored(soon())
    held = link.greet(Hello("client", Role.PARTNER, sections=(Held(PRODUCER, 1, 9), Held(77, 1, 1))), soon())
    assert held == {PRODUCER: Held(PRODUCER, 0, 4), 77: Held(77, 0, 1)}


def test_a10_heartbeats_are_answered(link: Link) -> None:
    kind, payload = link.ask(Type.HEARTBEAT, frames.pack_heartbeat(Heartbeat(41)), soon())
    assert kind == Type.HEARTBEAT
    assert frames.unpack_heartbeat(memoryview(payload)).echo == 41


def test_a11_the_server_speaks_by_itself_too(link: Link, server: Server) -> None:
    heard: list[tuple[int, bytes]] = []
    link.unasked = lambda kind, payload: heard.append((kind, bytes(payload)))
    payload = pack_confirmations([("log", [(PRODUCER, 1, 4)])])
    assert server.post("client", Type.CONFIRMED, payload)
    assert not server.post("nobody", Type.CONFIRMED, payload)
    assert server.post("client", Type.NOTE, b"second")
    found = link.collect(soon())
    assert found is not None
    assert (found.type, bytes(found.payload)) == (Type.CONFIRMED, payload)
    link.collected()
    link.ask(Type.HEARTBEAT, frames.pack_heartbeat(Heartbeat(1)), soon())
    until(lambda: bool(heard) or link.ask(Type.HEARTBEAT, frames.pack_heartbeat(Heartbeat(2)), soon()) is None)
    assert heard == [(Type.NOTE, b"second")]
    assert link.collect(time.monotonic() + 0.02) is None
    assert not link.broken


def test_a10_hostile_bytes_cost_their_sender_its_connection_and_nobody_else(server: Server, link: Link) -> None:
    attacks = (
        b"GET / HTTP/1.1\r\n\r\n" * 3,
        os.urandom(200),
        frames.frame(Type.PUT, bytes(100)),
        frames.frame(Type.HELLO, bytes(100)),
        frames.frame(Type.HELLO, frames.pack_hello(HELLO)) + frames.frame(Type.STORED, bytes(16)),
        frames.frame(Type.HELLO, frames.pack_hello(HELLO)) + frames.frame(Type.PUT, b"\xff" * 100),
        frames.frame(Type.HELLO, frames.pack_hello(HELLO)) + frames.frame(Type.HEARTBEAT, b"short"),
    )
    for attack in attacks:
        with socket.create_connection(server.address, 10) as attacker:
            attacker.sendall(attack)
            while attacker.recv(65_536):
                pass
    assert server.dropped == len(attacks)
    link.put_recorded(PRODUCER, events(1, 3), soon())
    link.await_stored(soon())


def test_a10_connections_are_bounded_and_later_ones_wait(server: Server) -> None:
    links = [Link.connect(server.address, 10, hello=HELLO) for _ in range(4)]
    with pytest.raises(ConnectionFailed):
        Link.connect(server.address, 0.3, hello=HELLO)
    links.pop().close()
    links.append(Link.connect(server.address, 10, hello=HELLO))
    for one in links:
        one.put_recorded(PRODUCER, events(1, 2), soon())
        one.await_stored(soon())
        one.close()


def test_a10_without_memory_a_turn_is_tried_again(
    link: Link, server: Server, handler: StoringHandler, section: Section
) -> None:
    failures = iter([MemoryError, MemoryError, MemoryError])

    def fail() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    handler.before_store = fail
    link.put_recorded(PRODUCER, events(1, 4), soon())
    link.await_stored(soon())
    assert server.starved == 3
    assert section.next_sequence == 4


def test_a10_an_interrupted_store_is_recognised_the_next_time(
    link: Link, handler: StoringHandler, section: Section, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, failing = handler.sink._index, [True, True]

    def fail_once(producer: int, sequence: int, at: int) -> None:
        if sequence == 2 and failing:
            failing.pop()
            raise MemoryError
        index(producer, sequence, at)

    monkeypatch.setattr(handler.sink, "_index", fail_once)
    link.put_recorded(PRODUCER, events(1, 4), soon())
    link.await_stored(soon())
    assert [one.sequence for one in section.read(1, 10, 1 << 20)] == [1, 2, 3]


def test_a03_without_a_descriptor_connections_that_exist_go_on(link: Link, server: Server) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    outsider = socket.socket()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, limits[1]))
        outsider.connect(server.address)  # the kernel takes it, the server cannot
        for number in range(1, 50):
            link.put_recorded(PRODUCER, events(number, number + 1), soon())
            link.await_stored(soon())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        outsider.close()
    Link.connect(server.address, 10, hello=HELLO).close()


def test_a10_a_handler_that_refuses_answers_the_greeting_with_its_error(
    server: Server, handler: StoringHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_peer: object, hello: Hello) -> Hello:
        raise BadArgument(argument="name", detail=hello.name)

    monkeypatch.setattr(handler, "hello", refuse)
    with pytest.raises(BadArgument):
        Link.connect(server.address, 10, hello=HELLO)


def test_a10_a_late_answer_breaks_the_link(link: Link, handler: StoringHandler) -> None:
    go_on = threading.Event()

    def wait() -> None:
        go_on.wait(10)

    handler.before_store = wait
    link.put_recorded(PRODUCER, events(1, 2), soon())
    with pytest.raises(ConnectionLost):
        link.await_stored(time.monotonic() + 0.05)
    assert link.broken
    with pytest.raises(ConnectionLost):
        link.put_recorded(PRODUCER, events(2, 3), soon())
    go_on.set()


def test_a10_a_slow_reader_of_answers_delays_nobody(server: Server, section: Section) -> None:
    slow = socket.create_connection(server.address, 10)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    hello = frames.frame(
        Type.HELLO, frames.pack_hello(Hello("slow", Role.PARTNER, sections=tuple(Held(n, 1, 1) for n in range(1024))))
    )
    slow.setblocking(False)
    try:
        for _ in range(200):
            slow.send(hello)
    except BlockingIOError:
        pass
    link = Link.connect(server.address, 10, hello=HELLO)
    link.put_recorded(PRODUCER, events(1, 3), soon())
    link.await_stored(soon())
    link.close()
    slow.close()


def test_a10_a_server_that_is_killed_has_what_it_answered(tmp_path: Path) -> None:
    program = ServerProgram(tmp_path / "partner.ring")
    answered = sent = 0
    try:
        for _ in range(3):
            program.start()
            link = Link.connect(("127.0.0.1", program.port), 10, hello=HELLO)
            held = link.greet(Hello("client", Role.PARTNER, sections=(Held(PRODUCER, 1, 1),)), soon())[PRODUCER]
            assert answered < held.end <= sent + 1
            killer = threading.Timer(0.15, program.signal, (signal.SIGKILL,))
            killer.start()
            sent = held.end - 1
            with pytest.raises(ConnectionLost):
                while True:
                    sent += 3
                    link.put_recorded(PRODUCER, events(sent - 2, sent + 1), soon())
                    link.await_stored(soon())
                    answered = sent
            killer.join()
            link.close()
            program.kill()
    finally:
        program.kill()
    section = Section.open(tmp_path / "partner.ring", writable=True)
    numbers = [int(text) for text in texts_of(section)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert answered <= len(numbers) <= sent
    section.close()


def test_a10_a_client_that_dies_in_the_middle_of_a_frame_leaves_nothing(server: Server, section: Section) -> None:
    whole = bytearray(100_000)
    view = memoryview(whole)
    at = frames.begin_put(view, frames.pack_producer(PRODUCER))
    event = events(1, 2, size=5_000)[0]
    at = frames.add_record(view, at, frames.pack_producer(PRODUCER), 1, memoryview(frames.rest_of(event)))
    size = frames.end_put(view, at, 1, 1)
    with socket.create_connection(server.address, 10) as dying:
        dying.sendall(frames.frame(Type.HELLO, frames.pack_hello(HELLO)) + bytes(view[: size - 1]))
    link = Link.connect(server.address, 10, hello=HELLO)
    link.ask(Type.HEARTBEAT, frames.pack_heartbeat(Heartbeat(1)), soon())
    assert section.next_sequence == 1
    link.close()


def test_a10_a_sink_lets_go_in_the_order_of_its_section_and_remembers_after_a_restart(tmp_path: Path) -> None:
    section = new_section(tmp_path / "partner.ring", "partner")
    sink = Sink(section)
    one, two = 1 << 64, 2 << 64
    section.put_many(events(1, 4, producer=one))
    section.put_many(events(1, 3, producer=two))
    section.put_many(events(4, 6, producer=one))
    sink = Sink(section)
    assert sink.held(one) == Held(one, 0, 6)
    sink.released(two, 3)
    assert section.first_sequence == 1
    sink.released(one, 3)
    assert section.first_sequence == 3
    sink.released(one, 4)
    assert section.first_sequence == 6
    section.close()
    section = Section.open(tmp_path / "partner.ring", writable=True)
    sink = Sink(section)
    assert sink.producers() == [one]
    assert sink.held(one).end == 6
    sink.forget(one)
    assert section.first_sequence == section.next_sequence == 8
    section.close()
