"""Web hooks against a real HTTP server (A-12)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from clarion.errors import BadArgument, NotDelivered
from clarion.events import cloudevents
from clarion.events.event import Event
from clarion.events.recipients import Partly, Webhook
from tests.integration.events.http_server import Answer, HttpServer, Request
from tests.unit.events.recipient_events import event, events


def deliver(recipient: Webhook, *batches: list[Event]) -> None:
    async def scenario() -> None:
        async with recipient:
            for batch in batches:
                await recipient.deliver(batch)

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_a12_each_event_is_a_request_with_its_id(mode: Any) -> None:
    batch = [event(1), event(2, source="ü €", data="text\n", attributes={"rack": 4})]
    with HttpServer() as server:
        deliver(Webhook(server.url + "?key=1", mode=mode, headers={"X-Own": "yes"}), batch)
    assert [cloudevents.from_http(one.headers, one.body) for one in server.requests] == batch
    assert [one.headers["idempotency-key"] for one in server.requests] == [one.id for one in batch]
    assert {one.path for one in server.requests} == {"/events?key=1"}
    assert {one.headers["x-own"] for one in server.requests} == {"yes"}
    assert len({one.connection for one in server.requests}) == 1  # kept open


@pytest.mark.parametrize(
    ("status", "permanent"),
    [
        *((status, True) for status in (400, 401, 404, 410, 422)),
        *((status, False) for status in (301, 304, 408, 425, 429, 500, 503)),
    ],
)
def test_a12_what_is_not_2xx_is_not_confirmed(status: int, permanent: bool) -> None:
    with HttpServer(lambda request: (status, {"Retry-After": "7", "Location": "/x"}, b"no\nroom")) as server:
        with pytest.raises(NotDelivered, match=str(status)) as caught:
            deliver(Webhook(server.url), events(1))
        assert len(server.requests) == 1  # neither followed nor tried again
    assert caught.value.facts["permanent"] is permanent and caught.value.facts["status"] == status
    assert caught.value.facts["retry_after_s"] == 7
    if status != 304:
        assert str(caught.value).endswith(": no room")


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a12_any_2xx_confirms(status: int) -> None:
    with HttpServer(lambda request: (status, {}, b"")) as server:
        deliver(Webhook(server.url), events(1, 2))
    assert len(server.requests) == 2


def test_a08_one_that_is_refused_does_not_hold_up_others() -> None:
    def answer(request: Request) -> Answer:
        return (422 if b"bad" in request.body else 200), {}, b""

    with HttpServer(answer) as server, pytest.raises(Partly) as caught:
        deliver(Webhook(server.url), [*events(1), *events(2, 3, source="bad"), *events(4)])
    assert caught.value.done == {0, 3} and set(caught.value.failed) == {1}
    error = caught.value.error
    assert isinstance(error, NotDelivered) and error.facts["permanent"] is True


def test_a12_a_kept_connection_that_was_closed_is_replaced() -> None:
    with HttpServer() as server:
        recipient = Webhook(server.url)

        async def scenario() -> None:
            async with recipient:
                await recipient.deliver(events(1))
                assert recipient._connection is not None and recipient._connection.sock is not None
                recipient._connection.sock.shutdown(socket.SHUT_RDWR)
                await recipient.deliver(events(2))
                server.answer = lambda request: None  # it closes without an answer, also the new connection
                with pytest.raises(NotDelivered):
                    await recipient.deliver(events(3))

        asyncio.run(scenario())
    assert [one.headers["idempotency-key"] for one in server.requests] == [event(n).id for n in (1, 2, 3, 3)]


def test_a12_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(NotDelivered, match="refused") as caught:
            deliver(Webhook(f"http://u:secret@127.0.0.1:{taken.getsockname()[1]}/x?token=secret"), events(1))
    assert "secret" not in str(caught.value) and caught.value.facts["permanent"] is False


def _dripping(listening: socket.socket, stop: threading.Event) -> None:
    """An answer that never ends, a byte at a time."""
    connected, _ = listening.accept()
    with connected:
        connected.recv(65_536)
        try:
            connected.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not stop.wait(0.02):
                connected.sendall(b"x")
        except OSError:
            pass


def test_a07_an_answer_that_never_ends_ends() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_dripping, args=(listening, stop))
        thread.start()
        started = time.monotonic()
        try:
            with pytest.raises(NotDelivered, match=r"no answer within 0\.3 s"):
                deliver(Webhook(f"http://127.0.0.1:{listening.getsockname()[1]}/", timeout_s=0.3), events(1))
        finally:
            stop.set()
            thread.join()
        assert time.monotonic() - started < 20


def test_a07_closing_ends_what_waits() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def answer(request: Request) -> Answer:
        asked.set()
        go_on.wait()
        return 200, {}, b""

    async def scenario(url: str) -> None:
        recipient = Webhook(url, timeout_s=600)
        await recipient.open()
        delivering = asyncio.create_task(recipient.deliver(events(1)))
        await asyncio.to_thread(asked.wait)
        await recipient.close()
        with pytest.raises(NotDelivered):
            await delivering

    with HttpServer(answer) as server:
        try:
            asyncio.run(asyncio.wait_for(scenario(server.url), 30))
        finally:
            go_on.set()


def test_a12_a_long_answer_costs_its_connection_only() -> None:
    with HttpServer(lambda request: (200, {}, b"x" * 1_000_000)) as server:
        deliver(Webhook(server.url), events(1, 2))
    assert len({one.connection for one in server.requests}) == 2


def test_a12_with_certificates(tmp_path: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key", "-out", tmp_path / "certificate"),
        ],
        check=True,
        capture_output=True,
    )
    with HttpServer() as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        url = f"https://user:p%40ss@localhost:{server.port}/"
        deliver(Webhook(url, certificates=str(tmp_path / "certificate")), events(1))
        with pytest.raises(NotDelivered, match="certificate"):
            deliver(Webhook(url), events(2))
    assert len(server.requests) == 1
    assert server.requests[0].headers["authorization"] == "Basic dXNlcjpwQHNz"


def test_wrong_arguments_are_refused() -> None:
    for argument, wrong in (
        ("url", {"url": "ftp://example.com"}),
        ("url", {"url": "http://example.com:99999"}),
        ("url", {"url": "http://"}),
        ("mode", {"mode": "xml"}),
        ("timeout_s", {"timeout_s": -1}),
        ("headers", {"headers": {"a b": "c"}}),
        ("headers", {"headers": {"Content-Type": "c"}}),
        ("headers", {"headers": {"a": "c\r\nd: e"}}),
        ("certificates", {"url": "https://example.com", "certificates": "/no/such/file"}),
    ):
        with pytest.raises(BadArgument, match=argument):
            Webhook(**{"url": "http://example.com", **wrong})  # type: ignore[arg-type]
