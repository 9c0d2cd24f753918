"""All witnesses, by one suite; and what a file on shared storage does when it is damaged (A-10)."""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.errors import BadArgument, ClarionError, ConnectionFailed, JournalFailed, Timeout
from clarion.events.pair.clarion_witness import ClarionWitness
from clarion.events.pair.witness import FileWitness, Grant, Witness, open_witness
from clarion.events.pair.zookeeper_witness import ZooKeeperWitness
from clarion.testing.server import ServerProcess
from clarion.testing.witness_conformance import WitnessConformance

ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
"""Of Debian's package `zookeeper`."""
NO_ZOOKEEPER = not (shutil.which("java") and ZOOKEEPER_JAR.exists() and importlib.util.find_spec("kazoo"))


@pytest.fixture(scope="module")
def clarion_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("witness") / "data") as server:
        yield server.url


@pytest.fixture(scope="module")
def zookeeper_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data, port = tmp_path_factory.mktemp("zookeeper"), _free_port()
    command = ["java", "-Xmx64m", "-Dzookeeper.admin.enableServer=false", "-cp", str(ZOOKEEPER_JAR)]
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "org.apache.zookeeper.server.ZooKeeperServerMain", str(port), str(data), "100"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _until_listening(port, process, data / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class TestFileWitness(WitnessConformance):
    __test__ = True

    def make(self, directory: Path) -> Witness:
        (directory / "shared").mkdir(exist_ok=True)
        return FileWitness(directory / "shared", skew_ms=50)

    def test_a10_storage_that_is_not_there_gives_nobody_a_right(self, tmp_path: Path) -> None:
        """Nor is it made: a second one, beside the one that is only not mounted, would give both hosts the right."""
        witness = FileWitness(tmp_path / "mounted" / "witness")
        with pytest.raises(FileNotFoundError):
            witness.acquire("a", "a", 1_000)
        assert not any(tmp_path.iterdir())
        (tmp_path / "mounted" / "witness").mkdir(parents=True)
        assert witness.acquire("a", "a", 1_000).granted

    def test_a10_a_torn_copy_leaves_the_one_before_it(self, tmp_path: Path) -> None:
        witness = FileWitness(tmp_path)
        for _ in range(3):
            granted = witness.acquire("a", "a", 60_000)
        (path,) = tmp_path.glob("*.lease")
        for at in (4096 + 20, 20):
            whole = path.read_bytes()
            torn = bytearray(whole)
            torn[at] ^= 0xFF
            path.write_bytes(torn)
            assert not witness.acquire("a", "b", 60_000).granted
            assert witness.acquire("a", "a", 60_000).epoch == granted.epoch
            path.write_bytes(whole)

    def test_a10_when_both_copies_are_damaged_nobody_gets_it(self, tmp_path: Path) -> None:
        witness = FileWitness(tmp_path)
        witness.acquire("a", "a", 1)
        witness.acquire("a", "a", 1)
        (path,) = tmp_path.glob("*.lease")
        path.write_bytes(path.read_bytes().replace(b"CLNEWIT1", b"CLNEWITX"))
        with pytest.raises(JournalFailed):
            witness.acquire("a", "b", 1)

    def test_a10_a_lock_that_somebody_keeps_is_no_answer(self, tmp_path: Path) -> None:
        witness = FileWitness(tmp_path, timeout_s=0.05)
        witness.acquire("a", "a", 1_000)
        (path,) = tmp_path.glob("*.lease")
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(Timeout):
                witness.acquire("a", "a", 1_000)

    def test_a10_impossible_names_and_times_are_refused(self, tmp_path: Path) -> None:
        witness = FileWitness(tmp_path)
        for name, holder, ttl_ms in (("", "a", 1), ("a", "", 1), ("a", "a", 0), ("x" * 300, "a", 1)):
            with pytest.raises(BadArgument):
                witness.acquire(name, holder, ttl_ms)


class _Apart:
    """The leases of one test among those of others at the same server."""

    def __init__(self, witness: Witness, prefix: str) -> None:
        self._witness, self._prefix = witness, prefix

    def acquire(self, name: str, holder: str, ttl_ms: int) -> Grant:
        return self._witness.acquire(f"{self._prefix}.{name.encode().hex()}", holder, ttl_ms)

    def release(self, name: str, holder: str, epoch: int) -> None:
        self._witness.release(f"{self._prefix}.{name.encode().hex()}", holder, epoch)

    def close(self) -> None:
        self._witness.close()


class TestClarionWitness(WitnessConformance):
    __test__ = True
    url = ""

    @pytest.fixture(autouse=True)
    def _server(self, clarion_url: str) -> None:
        self.url = clarion_url

    def make(self, directory: Path) -> Witness:
        return _Apart(ClarionWitness(self.url, timeout_s=5.0), directory.name)

    def test_a10_no_server_is_no_answer(self) -> None:
        witness = ClarionWitness(f"clarion://127.0.0.1:{_free_port()}", timeout_s=0.3)
        with pytest.raises(ClarionError):
            witness.acquire("a", "a", 1_000)
        witness.close()

    def test_a10_a_server_that_does_not_answer_costs_the_time_limit(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            witness = ClarionWitness(f"clarion://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
            before_s = time.monotonic()
            with pytest.raises(ClarionError):
                witness.acquire("a", "a", 1_000)
            assert time.monotonic() - before_s < 5
            witness.close()


@pytest.mark.skipif(NO_ZOOKEEPER, reason="needs Debian's package zookeeper, Java, and kazoo")
class TestZooKeeperWitness(WitnessConformance):
    __test__ = True
    hosts = ""

    @pytest.fixture(autouse=True)
    def _server(self, zookeeper_hosts: str) -> None:
        self.hosts = zookeeper_hosts

    def make(self, directory: Path) -> Witness:
        root = f"/{directory.name}"
        return ZooKeeperWitness(self.hosts, timeout_s=10.0, session_ms=self.short_ms, root=root)

    def acquire_and_die(self, directory: Path, name: str, holder: str, ttl_ms: int) -> Grant:
        script = f"""
import os, signal
from clarion.events.pair.zookeeper_witness import ZooKeeperWitness
witness = ZooKeeperWitness({self.hosts!r}, timeout_s=10.0, session_ms={self.short_ms}, root={f"/{directory.name}"!r})
granted = witness.acquire({name!r}, {holder!r}, {ttl_ms})
print(granted.granted, granted.epoch, granted.expires_in_ms, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
        printed = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False).stdout.split()
        return Grant(printed[0] == b"True", int(printed[1]), int(printed[2]))


def test_a10_no_zookeeper_is_no_answer() -> None:
    pytest.importorskip("kazoo")
    witness = ZooKeeperWitness(f"127.0.0.1:{_free_port()}", timeout_s=0.3)
    with pytest.raises(ConnectionFailed):
        witness.acquire("a", "a", 1_000)
    witness.close()


def test_a10_a_witness_is_chosen_by_its_address(tmp_path: Path) -> None:
    assert isinstance(open_witness(f"file:{tmp_path}", timeout_s=1), FileWitness)
    assert isinstance(open_witness("clarion://localhost:7750", timeout_s=1), ClarionWitness)
    with pytest.raises(BadArgument):
        open_witness("ftp://somewhere", timeout_s=1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())
