"""A server that cannot start says why in one line with a code, and damages nothing (A-05).

Each case runs the real command line: exit status not 0, one line `error: CLN-…` on stderr, no traceback.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c

from clarion import sync
from clarion.testing.server import ServerProcess

WAIT_S = 60.0
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def serve(*arguments: str, wrap: tuple[str, ...] = (), listen: str = "127.0.0.1:0") -> subprocess.CompletedProcess[str]:
    """`clarion serve` that is expected to end by itself."""
    command = [*wrap, sys.executable, "-m", "clarion", "serve", "--listen", listen, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment)


def assert_refused(ended: subprocess.CompletedProcess[str], code: str, *facts: str) -> None:
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert ended.returncode not in (0, -9), ended.stderr
    assert len(errors) == 1, ended.stderr
    assert re.match(rf"error: {code} \S", errors[0]), errors
    assert all(fact in errors[0] for fact in facts), errors
    assert "Traceback" not in ended.stderr
    assert "ready" not in ended.stdout


def fingerprint(directory: Path) -> dict[str, str]:
    """Every file and what is in it, but for the id generator's start, which every run moves."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "node.json"
    }


def exchange(url: str, body: bytes) -> None:
    """Send, receive and confirm one message."""
    with sync.connect(url) as connection, connection.session() as session:
        session.send("queue:orders", body)
        with session.receive("queue:orders") as consumer:
            message = consumer.receive(timeout=WAIT_S)
            assert message is not None
            assert message.body == body
            message.confirm()


def finished_directory(tmp_path: Path) -> Path:
    """A data directory with one unconfirmed message in it."""
    with ServerProcess(tmp_path / "data") as server:
        with sync.connect(server.url) as connection, connection.session() as session:
            session.send("queue:orders", b"kept")
        assert server.stop() == 0
    return tmp_path / "data"


def assert_message_kept(data: Path) -> None:
    with (
        ServerProcess(data) as server,
        sync.connect(server.url) as connection,
        connection.session() as session,
        session.receive("queue:orders") as consumer,
    ):
        message = consumer.receive(timeout=WAIT_S)
        assert message is not None
        assert message.body == b"kept"


def test_a05_two_servers_on_one_data_directory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as first:
        exchange(first.url, b"before")
        assert_refused(serve("--data", str(tmp_path / "data")), "CLN-303", str(tmp_path / "data"))
        exchange(first.url, b"after")
        assert first.stop() == 0


def test_a05_a_data_directory_of_a_newer_format(tmp_path: Path) -> None:
    data = finished_directory(tmp_path)
    format_file = data / "journal" / "format"
    original = format_file.read_bytes()
    lines = original.decode().splitlines()[:3]
    lines[1] = "version 2"
    lines.append(f"crc32c {crc32c(chr(10).join(lines).encode()):08x}")
    format_file.write_text("\n".join(lines) + "\n")
    before = fingerprint(data)
    assert_refused(serve("--data", str(data)), "CLN-304", "version 2")
    assert fingerprint(data) == before
    format_file.write_bytes(original)
    assert_message_kept(data)


def test_a05_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert_refused(serve("--data", str(tmp_path / "data"), listen=address), "CLN-402", address)
    assert not (tmp_path / "data").exists()


def test_a05_a_port_in_use_by_another_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as first:
        address = f"127.0.0.1:{first.port}"
        assert_refused(serve("--data", str(tmp_path / "other"), listen=address), "CLN-402", address)
        exchange(first.url, b"still there")


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a05_no_permission_for_the_data_directory(tmp_path: Path, mode: int) -> None:
    """Not even to look into it, and to look but not to write."""
    data = finished_directory(tmp_path)
    before = fingerprint(data)
    for parent in [data, *data.parents]:
        if parent.is_relative_to(tmp_path.parent.parent) and parent != data:
            parent.chmod(parent.stat().st_mode | 0o055)
    data.chmod(mode)
    assert_refused(serve("--data", str(data), wrap=NOBODY), "CLN-403", str(data))
    assert fingerprint(data) == before
    assert_message_kept(data)


@pytest.mark.root
def test_a05_no_permission_to_make_the_data_directory(tmp_path: Path) -> None:
    for parent in [tmp_path, tmp_path.parent, tmp_path.parent.parent]:
        parent.chmod(parent.stat().st_mode | 0o055)
    assert_refused(serve("--data", str(tmp_path / "new"), wrap=NOBODY), "CLN-403", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.root
def test_a05_no_permission_for_one_segment(tmp_path: Path) -> None:
    """A file that another user owns, in a directory that is ours."""
    data = finished_directory(tmp_path)
    for parent in [tmp_path, tmp_path.parent, tmp_path.parent.parent]:
        parent.chmod(parent.stat().st_mode | 0o055)
    files = [data, *data.rglob("*")]
    for file in files:
        os.chown(file, 65534, 65534)
    segment = min((data / "journal").glob("*.segment"))
    os.chown(segment, 0, 0)
    before = fingerprint(data)
    assert_refused(serve("--data", str(data), wrap=NOBODY), "CLN-403")
    assert fingerprint(data) == before
    assert_message_kept(data)


@pytest.mark.parametrize("depth", ["", "below"])
def test_a05_a_data_path_that_is_a_file(tmp_path: Path, depth: str) -> None:
    path = tmp_path / "data"
    path.write_text("something else")
    assert_refused(serve("--data", str(path / depth)), "CLN-4..", str(path))
    assert path.read_text() == "something else"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[journal\n", "line 1"),
        ("[journal]\nbytes_max = 'plenty'\n", "bytes_max"),
        ("[journal]\nbyte_max = 1\n", "byte_max"),
        ("[journal]\ndurability = 'hope'\n", "durability"),
        ("[journl]\n", "journl"),
        ("[client_manager]\nlisten = 'nowhere'\n", "listen"),
        ("[instruments]\narm = ['journal.befor_sync=kill']\n", "journal.befor_sync"),
        ("[instruments]\narm = ['journal.before_sync=explode']\n", "explode"),
    ],
)
def test_a05_a_bad_settings_file(tmp_path: Path, text: str, fact: str) -> None:
    settings = tmp_path / "clarion.toml"
    settings.write_text(text)
    arguments = ["--data", str(tmp_path / "data"), "--config", str(settings)]
    command = [sys.executable, "-m", "clarion", "serve", *arguments]
    if "listen" not in text:
        command += ["--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert_refused(ended, "CLN-401", str(settings), fact)


def test_a05_a_settings_file_that_is_missing(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    assert_refused(serve("--data", str(tmp_path / "data"), "--config", missing), "CLN-401", missing)


def test_a05_a_disk_too_small_for_any_journal(tmp_path: Path) -> None:
    """The smallest journal has eight segments; a bound below that is refused with the settings."""
    settings = tmp_path / "clarion.toml"
    settings.write_text("[journal]\nbytes_max = '1MiB'\n")
    assert_refused(serve("--data", str(tmp_path / "data"), "--config", str(settings)), "CLN-401", "bytes_max")
