"""A real HTTP server in a thread, on a free port, that answers as it is told and remembers what it was sent."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """The port of the other side: requests of one connection have the same."""


Answer = tuple[int, dict[str, str], bytes]


class HttpServer:
    """`with HttpServer() as server: … server.url … server.requests`."""

    def __init__(self, answer: Callable[[Request], Answer | None] | None = None) -> None:
        self.requests: list[Request] = []
        self.answer = answer or (lambda request: (200, {}, b""))
        """None instead of an answer closes the connection."""
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, body, self.client_address[1])
                owner.requests.append(request)
                answer = owner.answer(request)
                if answer is None:
                    self.close_connection = True
                    return
                status, more, said = answer
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on the terminal."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Whoever went away while it was answered is part of the tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
