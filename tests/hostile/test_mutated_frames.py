"""Mutated frames by the ten thousand: no crash, no hang, no growth, and nobody else notices (B-01, B-21)."""

from __future__ import annotations

import resource
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import pytest

from clarion import sync
from clarion.client.connection import ConnectionState
from clarion.limits import MIB
from tests.hostile.mutator import Mutator
from tests.integration.topologies import TOPOLOGIES, Topology

CONNECTIONS_AT_ONCE = 6
ANSWER_S = 20.0
"""How long a server may take to end a connection whose client has said all: beyond, it hangs."""
ROUND_FRAMES = 10_000
GROWTH_BYTES_MAX = 48 * MIB
KEPT = 2_000
ENVIRONMENT = {
    "CLARION_MESSAGE_MANAGER_READ_CACHE_BYTES": str(2 * MIB),  # else the cache's growth hides any other
    "CLARION_JOURNAL_BYTES_MAX": str(256 * MIB),
}


def attack(port: int, mutator: Mutator, frames_wanted: int) -> int:
    """Connection after connection; how many mutated frames were sent."""
    sent = 0
    while sent < frames_wanted:
        frames, mutated = mutator.connection()
        with socket.socket() as attacker:
            # Closing resets: a hundred thousand sockets in TIME_WAIT would run out of ports.
            attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            attacker.settimeout(ANSWER_S)
            attacker.connect(("127.0.0.1", port))
            try:
                attacker.sendall(b"".join(frames))
                if mutator.random.random() < 0.95:  # the others vanish without a word
                    attacker.shutdown(socket.SHUT_WR)
                    while attacker.recv(1 << 18):
                        pass
            except (ConnectionError, BrokenPipeError):
                pass
        sent += mutated
    return sent


class Witness(threading.Thread):
    """A well-behaved client beside the attack: sends, receives and confirms, and must not notice anything."""

    def __init__(self, url: str) -> None:
        super().__init__(name="witness")
        self._url = url
        self._stopping = threading.Event()
        self.states: list[ConnectionState] = []
        self.messages = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with (
                sync.connect(self._url, on_state=self.states.append) as connection,
                connection.session() as session,
                session.receive("queue:witness") as consumer,
            ):
                while not self._stopping.is_set():
                    body = f"witness {self.messages}".encode()
                    session.send("queue:witness", body)
                    message = consumer.receive(timeout=ANSWER_S)
                    assert message is not None, f"{body!r} did not come"
                    assert (message.body, message.redelivered) == (body, False)
                    message.confirm()
                    self.messages += 1
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._stopping.set()
        self.join(2 * ANSWER_S)
        assert not self.is_alive(), "the witness hangs"
        if self.error is not None:
            raise self.error
        assert self.states == [ConnectionState.CONNECTED, ConnectionState.CLOSED]
        assert self.messages > 10


def clean_up(url: str) -> None:
    """Remove what the attack has created: state that was asked for is no leak."""
    with sync.connect(url) as connection:
        while True:
            found = [known["name"] for known in connection.command("destinations")]
            strange = [name for name in found if name not in ("witness", "kept")]
            if not strange:
                return
            for name in strange:
                connection.command("drop", {"destination": name})


def resident_bytes(server: Topology) -> int:
    pages = [int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) for process in server.processes]
    return sum(pages) * resource.getpagesize()


@contextmanager
def kept_queue(url: str) -> Iterator[None]:
    """A queue that is filled before and must be the same after."""
    contents = [f"kept {number}".encode() * (number % 20) for number in range(KEPT)]
    with sync.connect(url) as connection, connection.session() as session:
        for body in contents:
            session.send_nowait("queue:kept", body)
    yield
    with sync.connect(url) as connection, connection.session() as session:
        received: list[bytes] = []
        for batch in session.receive_batches("queue:kept", timeout=ANSWER_S):
            assert not batch.redelivered
            received += batch.bodies()
            if len(received) >= KEPT:
                break
        assert received == contents


def hold_out(server: Topology, frames_wanted: int, seed: int) -> None:
    """Attack in rounds; check after each."""
    with kept_queue(server.url):
        witness = Witness(server.url)
        witness.start()
        sizes: list[int] = []
        sent = 0
        try:
            with ThreadPoolExecutor(CONNECTIONS_AT_ONCE) as pool:
                mutators = [Mutator(seed + number) for number in range(CONNECTIONS_AT_ONCE)]
                while sent < frames_wanted:
                    share = min(ROUND_FRAMES, frames_wanted - sent) // CONNECTIONS_AT_ONCE + 1
                    sent += sum(pool.map(attack, repeat(server.port), mutators, repeat(share)))
                    server.check_alive()
                    clean_up(server.url)
                    sizes.append(resident_bytes(server))
        finally:
            witness.finish()
        warm = max(1, len(sizes) // 5)
        growth = max(sizes[warm:], default=sizes[-1]) - max(sizes[:warm])
        print(f"{sent} frames, {witness.messages} beside; resident MiB {[size // MIB for size in sizes]}")
        assert growth < GROWTH_BYTES_MAX, f"grew by {growth // MIB} MiB: {[size // MIB for size in sizes]}"
    server.check_alive()


@pytest.mark.parametrize(("topology", "frames_wanted"), [("single", 50_000), ("split", 10_000)])
def test_b01_mutated_frames_cost_their_connections_and_nothing_else(
    tmp_path: Path, topology: str, frames_wanted: int
) -> None:
    server = TOPOLOGIES[topology](tmp_path, ENVIRONMENT)
    try:
        server.start()
        hold_out(server, frames_wanted, seed=1)
        server.stop()
    finally:
        server.kill()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_b01_a_million_mutated_frames(tmp_path: Path) -> None:
    server = TOPOLOGIES["single"](tmp_path, ENVIRONMENT)
    try:
        server.start()
        hold_out(server, 1_000_000, seed=1_000)
        server.stop()
    finally:
        server.kill()
