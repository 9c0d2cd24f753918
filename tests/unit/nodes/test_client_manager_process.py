"""What stands around the client manager: identity, log, congestion, and the processes it lives in."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clarion import ids
from clarion.bus import LoopbackBus
from clarion.errors import AddressInUse, BadSetting, ConfigurationError, InsecureAddress
from clarion.nodes import relay
from clarion.nodes.identity import FILE, Identity
from clarion.nodes.listener import bind
from clarion.nodes.logging import INFO, LINES_WAITING_MAX, Logging, event
from clarion.nodes.node import run_node
from clarion.nodes.single import run as run_server
from clarion.settings import Address, load
from clarion.wire import frames
from clarion.wire.frames import Type

from .test_client_manager_harness import Setup, run

NOW_MS = ids.EPOCH_MS + 1_000_000


# --- identity ---------------------------------------------------------------------------------------


def test_b11_a_restarted_node_never_repeats_an_id_even_if_its_clock_went_back(tmp_path: Path) -> None:
    first = Identity.begin("a", 1, 2, tmp_path / "data", NOW_MS)
    issued = {first.next_id() for _ in range(70_000)}  # more than one start has
    second = Identity.begin("a", 1, 2, tmp_path / "data", NOW_MS - 5_000)
    issued_later = {second.next_id() for _ in range(10)}
    assert len(issued) == 70_000
    assert min(issued_later) > max(issued)


@pytest.mark.parametrize("content", [b"", b"{", b'{"site": 1, "node": 2, "last_start_ms": 1e300}', b"\xff", None])
def test_b11_an_unreadable_identity_file_is_not_fatal(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        (tmp_path / FILE).mkdir()
    else:
        (tmp_path / FILE).write_bytes(content)
    assert Identity.begin("a", 1, 2, tmp_path, NOW_MS).next_id() >> 118 == 1


def test_b11_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="file"):
        Identity.begin("a", 1, 2, tmp_path / "file" / "data", NOW_MS)


# --- the log ----------------------------------------------------------------------------------------


def test_log_lines_are_one_line_each_whatever_is_in_them() -> None:
    stream = io.StringIO()
    log = Logging("text", "info", stream)
    log.start()
    logger = logging.getLogger("clarion.test")
    event(logger, INFO, "connection_ended", peer="127.0.0.1:5", text='say "hi"\nand = more', number=3)
    event(logger, logging.DEBUG, "not_wanted")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("fault")
    log.stop()
    first, second = stream.getvalue().splitlines()
    assert first.split(" ", 1)[1] == (
        'INFO connection_ended peer=127.0.0.1:5 text="say \\"hi\\"\\nand = more" number=3'
    )
    assert first.split(" ")[0].endswith("Z")
    assert "ERROR fault" in second and "ValueError" in second


def test_log_lines_as_json() -> None:
    stream = io.StringIO()
    log = Logging("json", "debug", stream)
    log.start()
    event(logging.getLogger("clarion.test"), INFO, "listening", address=Address("127.0.0.1", 5), nothing=None)
    log.stop()
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"], line["address"], line["nothing"]) == (
        "INFO",
        "listening",
        "127.0.0.1:5",
        None,
    )


def test_log_never_waits_for_its_writer_and_says_what_it_dropped() -> None:
    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            gate.acquire()
            gate.release()
            return super().write(text)

    gate = threading.Lock()
    stream = Stuck()
    log = Logging("text", "info", stream)
    logger = logging.getLogger("clarion.test")
    gate.acquire()
    log.start()
    for number in range(LINES_WAITING_MAX + 500):
        event(logger, INFO, "line", number=number)
    gate.release()
    while "number=9000" not in stream.getvalue():
        pass
    event(logger, INFO, "after")
    log.stop()
    lines = stream.getvalue().splitlines()
    assert "log_lines_dropped count=" in lines[-2]
    assert "after" in lines[-1]


# --- congestion -------------------------------------------------------------------------------------


def test_b13_a_congested_bus_refuses_batches_and_resumes_them() -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        congested = setup.manager.relay._bus
        assert isinstance(congested, LoopbackBus)
        congested.waiting_bytes = relay.BUS_WAITING_BYTES_MAX + 1
        client.publish(producer, 1, b"x")
        client.publish(producer, 2, b"x")
        payload = await client.next(Type.REFUSED)
        assert frames.FLOOR.unpack_from(payload) == (1,)
        congested.waiting_bytes = 0
        payload = await client.next(Type.RESUME)
        assert (frames.FLOOR.unpack_from(payload), bytes(payload[8:])) == ((1,), b"queue:a")
        client.publish(producer, 1, b"x")
        await setup.scripted.next(Type.PUBLISH)
        assert setup.scripted.waiting == 0

    run(scenario)


# --- sockets and processes --------------------------------------------------------------------------


def test_b01_addresses_that_cannot_be_listened_on_are_named() -> None:
    (listening,) = bind(Address("127.0.0.1", 0))
    with pytest.raises(AddressInUse):
        bind(Address("127.0.0.1", listening.getsockname()[1]))
    listening.close()
    with pytest.raises(ConfigurationError):
        bind(Address("192.0.2.1", 0))
    with pytest.raises(ConfigurationError):
        bind(Address("no.such.host.invalid", 0))
    both = bind(Address("localhost", 0))
    assert len({found.getsockname()[1] for found in both}) == 1
    for found in both:
        found.close()


def test_b01_a_server_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InsecureAddress):
        run_server(load(data=str(tmp_path), listen="0.0.0.0:0"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AddressInUse):
            run_server(load(data=str(tmp_path / "a"), listen=f"127.0.0.1:{taken.getsockname()[1]}"))
    assert not (tmp_path / "a").exists()
    environment = {"CLARION_INSTRUMENTS_ARM": "cm.no_such_point=kill", "CLARION_JOURNAL_BYTES_MAX": "32 MiB"}
    with pytest.raises(BadSetting, match="no_such_point"):
        run_server(load(None, environment, data=str(tmp_path / "b"), listen="127.0.0.1:0"))
    with pytest.raises(BadSetting, match="zenoh"):
        run_node("cm", load(data=str(tmp_path)))


SERVER = """
import os, sys
from clarion.nodes.single import run
from clarion.settings import load
def ready(info):
    print(info.port, flush=True)
sys.exit(run(load(None, os.environ, data=sys.argv[1], listen="127.0.0.1:0"), ready=ready))
"""


@contextmanager
def started(path: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path)],
        env={**os.environ, "CLARION_JOURNAL_BYTES_MAX": "32 MiB", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_b01_a_signal_stops_a_server_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"".join(frames.frame(Type.HELLO, 0, [frames.pack({"versions": [1, 1]})])))
            received = client.recv(1 << 16)
            server.send_signal(number)
            while data := client.recv(1 << 16):
                received += data
        welcome, goodbye = frames.FrameReader().feed(received)
        assert (welcome.type, goodbye.type) == (Type.WELCOME, Type.GOODBYE)
        assert frames.unpack(goodbye.payload)["code"] == ""
        _, log = server.communicate(timeout=10)
        assert server.returncode == 0
        assert f"reason={number.name}" in log
        assert "Traceback" not in log


def test_b01_a_journal_that_fails_ends_the_process_with_70(tmp_path: Path) -> None:
    # The first sync is the start of the journal; destinations that always exist are made in one or two more.
    with started(tmp_path, CLARION_ARM="journal.before_sync=fail:EIO@3*always") as server:
        assert server.stdout is not None
        _publish(int(server.stdout.readline()))
        _, log = server.communicate(timeout=10)
        assert server.returncode == 70, log
        assert sum("ERROR failed code=CLN-" in text for text in log.splitlines()) == 1


def _publish(port: int) -> None:
    async def main() -> None:
        from .test_client_manager_harness import RawClient

        client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
        await client.hello()
        session = await client.open()
        for number in range(1, 5):
            client.publish(session, number, b"perhaps never durable")
            if await client.frame() is None:
                break
        else:
            raise AssertionError("four publishes were synced")
        await client.close()

    asyncio.run(main())
