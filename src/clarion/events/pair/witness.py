"""Who grants the right to deliver a system's events: the interface, and a file on storage that both systems see.

A lease on a name is held by one holder for a time. What every witness promises (and
`clarion.testing.witness_conformance` tests):

    1. At no moment do two holders have a lease on one name that has not run out.
    2. The holder renews by asking again; its epoch stays, also when the lease ran out and nobody else had it since.
       Whoever gets it after it was released, or was another's, gets a larger epoch.
    3. `release` ends the lease of that holder and that epoch, and no other.
    4. No answer is an error. It never means "refused", and it may mean "granted".

Holders count the time from before they asked, so theirs ends before the witness's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec
from crc32c import crc32c

from clarion import limits
from clarion.errors import BadArgument, JournalFailed, Timeout


class Grant(msgspec.Struct, frozen=True):
    """An answer: granted or renewed in this epoch and for so long, or refused because somebody else has it."""

    granted: bool
    epoch: int
    expires_in_ms: int


class Witness(Protocol):
    """Blocking; every call ends within the witness's own time limit, by an answer or an exception."""

    def acquire(self, name: str, holder: str, ttl_ms: int) -> Grant:
        """Get or renew the lease on `name`."""
        ...

    def release(self, name: str, holder: str, epoch: int) -> None:
        """End it before its time."""
        ...

    def close(self) -> None:
        """End the connection to the witness; leases run on, or end with it."""
        ...


_MAGIC = b"CLNEWIT1"
# magic, number of the write, epoch, expiry (Unix ms), bytes of the holder's name; the name; then a CRC32C
_COPY = struct.Struct("<8sQQQH")
_CHECKSUM = struct.Struct("<I")
_COPY_BYTES = 4096
_POLL_S = 0.005


class _Lease(msgspec.Struct, frozen=True):
    number: int = 0
    epoch: int = 0
    until_ms: int = 0
    holder: str = ""


class FileWitness:
    """One small file per name in a directory that both systems see.

    Guarantees
        Whoever changes a lease has an exclusive `flock` on its file, and has synced it before it answers. Two copies
        are written in turn, each with a checksum, so a torn write leaves the one before it.

    What it stands on
        `flock` must exclude between hosts: local file systems used by two processes, NFS 4 (and 3 with lockd), GFS2,
        OCFS2 and CephFS do; SMB and FUSE file systems often do not. NFS clients cache: the file is opened anew for each
        call, which makes them look again (close-to-open). Expiry is in Unix time, so the hosts' clocks must agree to
        within `skew_ms`; a lease of another is honoured so much longer. The directory must be there, and none is made:
        where the storage is just not mounted, each host would get a witness of its own, and both the right.
    """

    def __init__(self, directory: Path, *, timeout_s: float = 1.0, skew_ms: int = 500) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._skew_ms = skew_ms

    def acquire(self, name: str, holder: str, ttl_ms: int) -> Grant:
        _check(name, holder, ttl_ms)
        with self._locked(name) as file:
            lease, now_ms = _read(file), _unix_ms()
            if lease.holder and lease.holder != holder and now_ms < lease.until_ms + self._skew_ms:
                return Grant(False, lease.epoch, lease.until_ms + self._skew_ms - now_ms)
            epoch = lease.epoch if lease.holder == holder else lease.epoch + 1
            _write(file, _Lease(lease.number + 1, epoch, now_ms + ttl_ms, holder))
            return Grant(True, epoch, ttl_ms)

    def release(self, name: str, holder: str, epoch: int) -> None:
        with self._locked(name) as file:
            lease = _read(file)
            if lease.holder == holder and lease.epoch == epoch:
                _write(file, _Lease(lease.number + 1, epoch, 0, ""))

    def close(self) -> None:
        """Nothing is kept open."""

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[int]:
        path = self._directory / f"{name.encode().hex()}.lease"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            deadline_s = time.monotonic() + self._timeout_s
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline_s:
                        raise Timeout(limit_ms=int(self._timeout_s * 1000), detail=f"lock on {path}") from None
                    time.sleep(_POLL_S)
            yield file
        finally:
            os.close(file)


def _read(file: int) -> _Lease:
    """The newer copy that checks. Raises `JournalFailed` if there was a lease and no copy of it can be read."""
    data = os.pread(file, 2 * _COPY_BYTES, 0)
    found = [lease for at in (0, _COPY_BYTES) if (lease := _decode(data[at : at + _COPY_BYTES])) is not None]
    if not found and any(data):
        raise JournalFailed(operation="reading a lease", detail="both copies are damaged")
    return max(found, key=lambda lease: lease.number, default=_Lease())


def _decode(data: bytes) -> _Lease | None:
    if len(data) < _COPY.size:
        return None
    magic, number, epoch, until_ms, holder_bytes = _COPY.unpack_from(data)
    end = _COPY.size + holder_bytes
    if magic != _MAGIC or end + _CHECKSUM.size > len(data):
        return None
    if _CHECKSUM.unpack_from(data, end)[0] != crc32c(data[:end]):
        return None
    return _Lease(number, epoch, until_ms, data[_COPY.size : end].decode())


def _write(file: int, lease: _Lease) -> None:
    holder = lease.holder.encode()
    body = _COPY.pack(_MAGIC, lease.number, lease.epoch, lease.until_ms, len(holder)) + holder
    data = body + _CHECKSUM.pack(crc32c(body))
    at = lease.number % 2 * _COPY_BYTES
    if os.pwrite(file, data + bytes(_COPY_BYTES - len(data)), at) != _COPY_BYTES:
        raise JournalFailed(operation="writing a lease", detail="a short write")
    os.fsync(file)


def _check(name: str, holder: str, ttl_ms: int) -> None:
    for argument, value in (("name", name), ("holder", holder)):
        if not 0 < len(value.encode()) <= limits.NAME_BYTES_MAX // 3:
            raise BadArgument(argument=argument, detail=f"{value!r} is empty or too long")
    if ttl_ms <= 0:
        raise BadArgument(argument="ttl_ms", detail=f"{ttl_ms} is not a time")


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


def open_witness(address: str, *, timeout_s: float) -> Witness:
    """`file:PATH`, `clarion://…` or `zookeeper:HOST:PORT,…`."""
    scheme, _, rest = address.partition(":")
    if scheme == "file":
        return FileWitness(Path(rest), timeout_s=timeout_s)
    if scheme.startswith("clarion"):
        from .clarion_witness import ClarionWitness

        return ClarionWitness(address, timeout_s=timeout_s)
    if scheme == "zookeeper":
        from .zookeeper_witness import ZooKeeperWitness

        return ZooKeeperWitness(rest.removeprefix("//"), timeout_s=timeout_s)
    raise BadArgument(argument="witness", detail=f"{address!r} is no file:, clarion: or zookeeper: address")
