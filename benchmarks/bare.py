"""The bare batch path: what is left of a broker when all meaning is taken away. It is the ceiling, not a product.

Theory of operation
    A producer process sends batches of about 128 KiB, each a length, a count and the messages. The server process
    (uvloop) receives them into large buffers and cuts them without copying. One writer thread takes every batch that
    waits, writes them with one `pwritev` into a pre-written file, syncs once, and hands them back to the loop (group
    commit). The loop then confirms to the producer and forwards the same bytes to the consumer process.

What it has not: an index, sequences, checksums, acknowledgements, recovery, flow control per consumer, more than one
queue. The first contestant sends one prepared batch again and again and its consumer looks only at batch headers; the
second joins every batch from one Python object per message and cuts one object per message out of it at the other
end: the difference between them is what any Python client must pay for handing over messages at all.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestant import BenchmarkError, Latency, Peer, Result, latency_from, latency_of
from benchmarks.environment import version_line
from benchmarks.processes import HOST, Server, free_ports, run_pair, run_workers
from benchmarks.worker import Gate

BATCH_SIZE = 128 << 10
WINDOW = 16
"""Batches that may be unconfirmed: 2 MiB, enough to keep disk, server and producer busy at once."""

CEILING = "bare batch path"
"""The contestant that ratios to the ceiling refer to."""

HEADER = struct.Struct("!II")
"""Bytes that follow, messages among them."""
CONFIRM = struct.Struct("!Q")
"""Messages made durable on this connection so far."""
PRODUCER, CONSUMER = b"P", b"C"


@dataclass
class BarePath:
    """The path as a contestant, so that it is measured in the same rounds as the others."""

    name: str
    by_message: bool
    durability: str = "fdatasync before confirm (group commit)"
    _server: Server | None = None
    _port: int = 0
    _directory: Path = Path()

    def version(self) -> str:
        return version_line([sys.executable, "--version"])

    def available(self) -> str | None:
        return None

    def start(self, directory: Path) -> None:
        self._directory, self._port = directory, free_ports(1)[0]
        command = [sys.executable, "-m", "benchmarks.bare_server", str(self._port), str(directory / "journal")]
        self._server = Server(command, directory / "bare.log")
        self._server.wait_for_port(self._port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def throughput(self, count: int, size: int) -> Result:
        arguments = {"port": self._port, "count": count, "size": size, "by_message": self.by_message}
        consumer, producer = ("benchmarks.bare:consume", arguments), ("benchmarks.bare:produce", arguments)
        return run_pair(consumer, producer, self._directory, size)

    def latency(self, count: int, size: int) -> Latency:
        arguments = {"port": self._port, "count": count, "size": size}
        return latency_from(run_workers([("benchmarks.bare:measure_latency", arguments)], self._directory)[0])


def _connect(port: int, role: bytes) -> socket.socket:
    link = socket.create_connection((HOST, port), timeout=60.0)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(role)
    return link


class _Confirmations:
    """Reads what the server has confirmed; waits only when asked to."""

    def __init__(self, link: socket.socket) -> None:
        self._link, self._pending = link, b""
        self.messages = 0

    def wait_until(self, messages: int) -> None:
        while self.messages < messages:
            data = self._link.recv(65536)
            if not data:
                raise BenchmarkError("the server closed the connection before the last confirmation")
            self._pending += data
            whole = len(self._pending) // CONFIRM.size * CONFIRM.size
            if whole:  # confirmations are cumulative: the last one says all
                (self.messages,) = CONFIRM.unpack_from(self._pending, whole - CONFIRM.size)
                self._pending = self._pending[whole:]


def _send(link: socket.socket, body: bytes, count: int) -> None:
    """Header and body in one call without joining them; the rest of a short write follows."""
    header = HEADER.pack(len(body), count)
    written = link.sendmsg([header, body])
    if written < len(header) + len(body):
        link.sendall(memoryview(body)[written - len(header) :])


def produce(gate: Gate, *, port: int, count: int, size: int, by_message: bool) -> dict[str, Any]:
    link = _connect(port, PRODUCER)
    confirmations = _Confirmations(link)
    full = max(1, BATCH_SIZE // size)
    messages = [bytes([index % 256]) * size for index in range(full)]
    prepared = b"".join(messages)
    gate.wait()
    for sent in range(0, count, full):
        batch = min(full, count - sent)
        if by_message:
            gathered: list[bytes] = []
            for index in range(batch):
                gathered.append(messages[index])  # noqa: PERF401  stands for the body of a send() per message
            body = b"".join(gathered)
        else:
            body = prepared if batch == full else prepared[: batch * size]
        _send(link, body, batch)
        confirmations.wait_until(sent + batch - WINDOW * full)
    confirmations.wait_until(count)
    times = gate.times(confirmations.messages)
    link.close()
    return times


def consume(gate: Gate, *, port: int, count: int, size: int, by_message: bool) -> dict[str, Any]:
    link = _connect(port, CONSUMER)
    stream = link.makefile("rb", buffering=1 << 20)
    gate.wait()
    got = 0
    while got < count:
        length, batch = HEADER.unpack(stream.read(HEADER.size))
        body = stream.read(length)
        if len(body) != length or length != batch * size:
            raise BenchmarkError("a batch arrived incomplete")
        if by_message:
            batch = len([body[at : at + size] for at in range(0, length, size)])
        got += batch
    times = gate.times(got)
    link.close()
    return times


def measure_latency(gate: Gate, *, port: int, count: int, size: int) -> dict[str, float]:
    link = _connect(port, PRODUCER)
    confirmations = _Confirmations(link)
    body = bytes(size)
    gate.wait()
    samples = []
    for index in range(count):
        before = time.perf_counter_ns()
        _send(link, body, 1)
        confirmations.wait_until(index + 1)
        samples.append(time.perf_counter_ns() - before)
    link.close()
    return latency_of(samples, size)


def contestants() -> list[Peer]:
    return [
        BarePath(CEILING, by_message=False),
        BarePath("bare batch path, message by message", by_message=True),
    ]
