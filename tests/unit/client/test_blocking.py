"""The blocking twin: the same answers without `await`, threads that share, and a clean end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from clarion import client, sync
from clarion.errors import Blocked, ConnectionFailed, ConnectionLost, Timeout, WrongKind
from tests.unit.client.scripted_broker import Broker
from tests.unit.client.threads import served_by


def test_b01_the_twin_sends_receives_and_confirms(begun: Callable[[str], list[str]]) -> None:
    with served_by(Broker) as there, sync.connect(there.url, name="twin") as connection:
        with connection.session() as session:
            identity = session.send("q", b"0", properties={"n": 1})
            tickets = [session.send_nowait("q", b"%d" % number) for number in range(1, 10)]
            session.flush()
            assert all(ticket.done for ticket in tickets)
            assert tickets[0].result() > identity
            seen = []
            for message in session.receive("q"):
                seen.append(message.body)
                if len(seen) == 1:
                    assert message.properties == {"n": 1}
                    message.confirm()
                else:
                    message.confirm_nowait()
                if len(seen) == 10:
                    break
            session.flush()
            assert seen == [b"%d" % number for number in range(10)]
            assert there.confirmed["q"] == set(range(10))
        assert session.closed
        assert connection.state is sync.ConnectionState.CONNECTED
    assert connection.closed
    assert not begun("clarion")


def test_b01_the_twins_break_returns_what_was_prefetched() -> None:
    with served_by(Broker) as there, sync.connect(there.url) as connection, connection.session() as session:
        for number in range(10):
            session.send_nowait("q", b"%d" % number)
        session.flush()
        for message in session.receive("q"):
            if message.sequence == 2:
                break
        gc.collect()
        assert there.unsubscribed[0]["unseen"] == [[3, 10]]
        with connection.session() as other, other.receive("q") as consumer:
            rest = [consumer.receive(5) for _ in range(7)]
            assert [one.sequence for one in rest if one is not None] == list(range(3, 10))
            other.confirm(*[one for one in rest if one is not None])
        message.reject()
        assert there.confirmed["q"] == set(range(3, 10))


def test_b01_the_twin_has_batches_idle_time_and_requests() -> None:
    with served_by(Broker) as there, sync.connect(there.url) as connection, connection.session() as session:
        there.requests = lambda verb, arguments: {"slices": [], "next": None} if verb == "browse" else verb
        assert connection.command("status") == "status"
        assert session.command("status") == "status"
        assert list(session.browse("q")) == []
        for _ in range(500):
            session.send_nowait("q", b"x")
        session.flush()
        total = 0
        for batch in session.receive_batches("q", prefetch_messages=50, timeout=0.05):
            total += len(batch)
            assert [message.body for message in batch] == batch.bodies() == [b"x"] * len(batch)
            batch.confirm_nowait()
        session.flush()
        assert total == 500
        assert there.confirmed["q"] == set(range(500))
        assert sum(messages for _, messages, _ in there.credits) >= 450
        assert session.receive("q").receive(0.01) is None


def test_b01_four_threads_share_a_session_and_a_consumer() -> None:
    each = 2_000
    with served_by(Broker) as there, sync.connect(there.url) as connection, connection.session() as session:

        def produce(who: int) -> None:
            for number in range(each):
                session.send_nowait(f"q{number % 2}", b"%d.%d" % (who, number))
            session.flush()

        threads = [threading.Thread(target=produce, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = there.bodies("q0") + there.bodies("q1")
        assert len(stored) == len(set(stored)) == 4 * each
        for who in range(4):  # in the order in which each thread sent
            mine = [body for body in there.bodies("q0") if body.startswith(b"%d." % who)]
            assert mine == sorted(mine, key=lambda body: int(body.partition(b".")[2]))
        assert len(there.published) < each  # batches, not messages

        seen: list[bytes] = []
        with session.receive("q0", prefetch_messages=100) as consumer:

            def consume() -> None:
                while (message := consumer.receive(0.2)) is not None:
                    seen.append(message.body)
                    message.confirm_nowait()

            threads = [threading.Thread(target=consume) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            session.flush()
        assert sorted(seen) == sorted(there.bodies("q0"))
        assert there.confirmed["q0"] == set(range(2 * each))


def test_b02_the_twin_survives_a_lost_connection() -> None:
    with served_by(Broker) as there, sync.connect(there.url) as connection, connection.session() as session:
        consumer = session.receive("q")
        for number in range(20):
            session.send("q", b"%d" % number)
            message = consumer.receive()
            assert message is not None
            if number % 5 == 0:
                there.loop.call_soon_threadsafe(there.end.cut)
            message.confirm()
        assert there.bodies("q") == [b"%d" % number for number in range(20)]
        assert there.confirmed["q"] == set(range(20))


def test_b01_the_twin_raises_what_the_client_raises(begun: Callable[[str], list[str]]) -> None:
    with served_by(Broker) as there:
        with sync.connect(there.url, buffer_bytes=300_000) as connection, connection.session() as session:
            there.failing["topic:t"] = WrongKind(destination="t", kind="queue", wanted="topic")
            with pytest.raises(WrongKind):
                session.send("topic:t", b"")
            session.send_nowait("topic:t", b"")
            with pytest.raises(WrongKind):
                session.flush()
            there.answering = False
            with pytest.raises(Blocked):
                for _ in range(100):
                    session.send_nowait("q", bytes(20_000))
            ticket = session.send_nowait("other", b"") if session.buffered_bytes < 300_000 else None
            assert ticket is None
            late = Timeout(limit_ms=10, detail="").code
            with pytest.raises(Timeout, match=late):
                connection._runner.call(asyncio.sleep(10), 0.01)
            with pytest.raises(ZeroDivisionError), connection.session():
                raise ZeroDivisionError
            connection.close()
        with pytest.raises(ConnectionLost):
            session.flush()
        url = there.url
    with pytest.raises(ConnectionFailed):
        sync.connect(url, connect_timeout=0.1)
    assert not begun("clarion")


def test_b01_a_callback_cannot_block_its_own_loop() -> None:
    with served_by(Broker) as there:
        told: list[Any] = []

        def on_state(state: sync.ConnectionState) -> None:
            try:
                connection.command("status")
            except (ConnectionLost, NameError) as error:
                told.append(error)

        with sync.connect(there.url, on_state=on_state) as connection:
            pass
        assert isinstance(told[-1], ConnectionLost)


def test_b01_a_dropped_connection_ends_its_thread(begun: Callable[[str], list[str]]) -> None:
    with served_by(Broker) as there:
        session = sync.connect(there.url).session()
        session.send("q", b"the session keeps it open")
        del session
        gc.collect()
        assert not begun("clarion")


def test_b01_a_close_that_is_interrupted_ends_its_thread(
    begun: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = client.Connection.close

    async def interrupted(connection: client.Connection) -> None:
        await closed(connection)
        raise KeyboardInterrupt

    with served_by(Broker) as there:
        connection = sync.connect(there.url)
        assert begun("clarion")
        monkeypatch.setattr(client.Connection, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.close()
        assert not begun("clarion")


def test_b01_a_program_that_closes_nothing_ends_cleanly() -> None:
    with served_by(Broker) as there:
        program = (
            "import atexit, clarion.sync\n"
            f"connection = clarion.sync.connect({there.url!r})\n"
            "session = connection.session()\n"
            "session.send('q', b'1')\n"
            "consumer = session.receive('q')\n"
            "print(consumer.receive().body)\n"
            "atexit.register(lambda: session.send('q', b'at exit'))\n"
        )
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-W", "error", "-X", "dev", "-c", program], capture_output=True, text=True, timeout=20
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "b'1'\n", "")
        assert time.monotonic() - began < 10
        assert there.bodies("q") == [b"1", b"at exit"]
