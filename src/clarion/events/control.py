"""The control socket of an event system: what an operator asks of the process that delivers.

    answer = ask(directory, "status")                     # blocking, for the command line
    server = ControlServer(directory, {"status": …}); await server.open()

A line of JSON each way: `{"verb": …, "arguments": {…}}`, then `{"result": …}` or `{"error": {"code", "facts"}}`.

Guarantees
    1. Only who may write to the directory can connect: a Unix socket with mode 0600.
    2. A request that is wrong, too long or never ends costs its own connection and nothing else.
    3. Paths of any length work: the socket is bound and reached through a descriptor of its directory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from clarion import limits
from clarion.errors import BadArgument, ClarionError, EngineAbsent, from_code

NAME = "control"
REMEDY = "start `clarion events serve`, or the program that has the recipients"
"""What to do where nobody delivers."""
Handler = Callable[[dict[str, Any]], Awaitable[object]]


@contextmanager
def _reachable(directory: Path) -> Iterator[str]:
    """A name of the socket that is short enough for the kernel (108 bytes), whatever the path is."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


class ControlServer:
    """Answers on the loop of the process that holds the engine lock, so nobody else binds the name."""

    def __init__(self, directory: Path, handlers: Mapping[str, Handler]) -> None:
        self._directory = directory
        self._handlers = handlers
        self._listening: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Bind and listen; what a dead predecessor left is replaced."""
        (self._directory / NAME).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _reachable(self._directory) as name:
                listening.bind(name)
            (self._directory / NAME).chmod(0o600)
            await asyncio.start_unix_server(self._accepted, sock=listening, limit=limits.EVENT_CONTROL_BYTES_MAX)
            self._listening = listening
        except BaseException:
            listening.close()
            raise

    async def close(self) -> None:
        """Stop; whoever waits for an answer sees the end."""
        if self._listening is not None:
            # Not `Server.close`: a connection that is just being accepted would be dropped half made, and not closed.
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None
            (self._directory / NAME).unlink(missing_ok=True)
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listening is None:  # closed meanwhile
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._serving.discard(task)
            writer.close()  # also of one that was cancelled before it began

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
                await writer.drain()
        except (OSError, ValueError):  # gone, or a line without end
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, line: bytes) -> dict[str, object]:
        try:
            request = msgspec.json.decode(line)
            if not isinstance(request, dict) or not isinstance(request.get("arguments", {}), dict):
                raise BadArgument(argument="request", detail="an object with verb and arguments is needed")
            handler = self._handlers.get(str(request.get("verb")))
            if handler is None:
                raise BadArgument(argument="verb", detail=f"there are {', '.join(sorted(self._handlers))}")
            return {"result": await handler(request.get("arguments", {}))}
        except msgspec.DecodeError as error:
            return _error(BadArgument(argument="request", detail=str(error)))
        except ClarionError as error:
            return _error(error)


def _error(error: ClarionError) -> dict[str, object]:
    return {"error": {"code": error.code, "facts": error.facts}}


def ask(directory: Path, verb: str, arguments: Mapping[str, object] | None = None, timeout_s: float = 10.0) -> Any:
    """Ask the process that delivers for this directory. Raises `EngineAbsent` if there is none, or its error."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connected:
        connected.settimeout(timeout_s)
        try:
            with _reachable(directory) as name:
                connected.connect(name)
            connected.sendall(msgspec.json.encode({"verb": verb, "arguments": arguments or {}}) + b"\n")
            answer = _line(connected)
        except (FileNotFoundError, ConnectionRefusedError):
            raise EngineAbsent(path=str(directory), detail=REMEDY) from None
        except (OSError, EOFError) as error:
            raise EngineAbsent(path=str(directory), detail=str(error) or type(error).__name__) from None
    if "error" in answer:
        raise from_code(answer["error"]["code"], answer["error"]["facts"])
    return answer["result"]


def _line(connected: socket.socket) -> dict[str, Any]:
    received = bytearray()
    while not received.endswith(b"\n"):
        more = connected.recv(1 << 16)
        if not more:
            raise EOFError("the connection ended without an answer")
        received += more
    decoded: dict[str, Any] = msgspec.json.decode(received)
    return decoded
