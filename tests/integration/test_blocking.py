"""The blocking twin against real servers: threads share what they like."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from clarion import sync
from clarion.errors import SessionClosed, WrongKind
from tests.integration.helpers import numbered
from tests.integration.topologies import Topology


def test_b04_send_receive_confirm_and_browse_without_await(server: Topology, name: str) -> None:
    with sync.connect(server.url) as connection:
        with connection.session() as session:
            tickets = [session.send_nowait(f"queue:{name}", body) for body in numbered(100)]
            session.flush()
            assert all(ticket.done for ticket in tickets) and len({ticket.result() for ticket in tickets}) == 100
            assert [message.body for message in session.browse(f"queue:{name}")] == numbered(100)
            received = []
            with session.receive(f"queue:{name}", timeout=10) as consumer:
                for message in consumer:
                    received.append(message.body)
                    message.confirm()
                    if len(received) == 60:
                        break
            for batch in session.receive_batches(f"queue:{name}", timeout=10):
                received += batch.bodies()
                batch.confirm()
                if len(received) == 100:
                    break
            assert received == numbered(100)
            with pytest.raises(WrongKind):
                session.send(f"topic:{name}", b"x")
        with pytest.raises(SessionClosed):
            session.send(f"queue:{name}", b"x")


def test_b21_threads_share_a_connection_and_a_session(server: Topology, name: str) -> None:
    threads, each = 8, 200
    received: list[bytes] = []
    lock = threading.Lock()
    with sync.connect(server.url) as connection, connection.session() as shared:

        def produce(number: int) -> None:
            for body in numbered(each, f"{number}-"):
                shared.send_nowait(f"queue:{name}", body)
            shared.flush()

        def consume(_number: int) -> None:
            with connection.session() as session, session.receive(f"queue:{name}", prefetch_messages=20) as consumer:
                while True:
                    message = consumer.receive(timeout=1)
                    with lock:
                        if message is not None:
                            received.append(message.body)
                        if len(received) == threads * each:
                            if message is not None:
                                message.confirm()
                            return
                    if message is not None:
                        message.confirm_nowait()

        with ThreadPoolExecutor(threads + 4) as pool:
            work = [pool.submit(produce, number) for number in range(threads)]
            work += [pool.submit(consume, number) for number in range(4)]
            for future in work:
                future.result(60)
    assert sorted(received) == sorted(body for number in range(threads) for body in numbered(each, f"{number}-"))
