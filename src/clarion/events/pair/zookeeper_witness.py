"""A ZooKeeper as the witness: a lease is an ephemeral node, so its time is counted by the servers.

Theory of operation
    ROOT/NAME        data: epoch and last holder. It stays, so that epochs grow.
    ROOT/NAME/lease  ephemeral: it is there while the holder's session lives.

    Both change in one transaction. A renewal is a write too: it goes through the leader, and fails if the lease is
    gone; a read could be old.

Guarantee: every call ends within about `timeout_s`. The time to live is that of the session, which the servers choose
near the `session_ms` that is asked for (between 2 and 20 of their ticks); a grant says which it is.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from clarion.errors import ConnectionFailed, MissingExtra, Timeout

from .witness import Grant

ROOT = "/clarion/leases"


class ZooKeeperWitness:
    """Needs `kazoo`, from the extra `cluster`."""

    def __init__(self, hosts: str, *, timeout_s: float = 1.0, session_ms: int = 3_000, root: str = ROOT) -> None:
        try:
            self._client_module: Any = importlib.import_module("kazoo.client")
            self._exceptions: Any = importlib.import_module("kazoo.exceptions")
            self._timeout_error: Any = importlib.import_module("kazoo.handlers.threading").KazooTimeoutError
        except ImportError:
            raise MissingExtra(extra="cluster") from None
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._session_ms = session_ms
        self._root = root
        self._client: Any = None

    def acquire(self, name: str, holder: str, ttl_ms: int) -> Grant:
        client = self._connected()
        path = f"{self._root}/{name.encode().hex()}"
        lease = f"{path}/lease"
        try:
            for _ in range(3):
                epoch, last, version = self._known(path)
                session_ms = int(client._session_timeout)
                owner = self._owner(lease)
                if owner == client.client_id[0] and last == holder:
                    with suppress(self._exceptions.NoNodeError):  # else it ran out at this moment
                        self._wait(client.set_async(lease, holder.encode()))
                        return Grant(True, epoch, min(ttl_ms, session_ms))
                    continue
                if owner and last != holder:
                    return Grant(False, epoch, session_ms)
                if last != holder:
                    epoch += 1
                change = client.transaction()
                change.set_data(path, f"{epoch} {holder}".encode(), version=version)
                if owner:  # of a session of ours that is dead, or will be
                    change.delete(lease)
                change.create(lease, holder.encode(), ephemeral=True)
                results = self._wait(change.commit_async())
                if not any(isinstance(result, Exception) for result in results):
                    return Grant(True, epoch, min(ttl_ms, session_ms))
            raise Timeout(limit_ms=int(1000 * self._timeout_s), detail=f"the lease on {name} changes all the time")
        except (self._exceptions.KazooException, self._timeout_error) as error:
            self._disconnect()
            raise Timeout(limit_ms=int(1000 * self._timeout_s), detail=f"ZooKeeper: {error!r}") from None

    def release(self, name: str, holder: str, epoch: int) -> None:
        client = self._connected()
        path = f"{self._root}/{name.encode().hex()}"
        try:
            known, last, version = self._known(path)
            if (known, last) != (epoch, holder):
                return
            change = client.transaction()
            change.set_data(path, f"{epoch} ".encode(), version=version)
            if self._owner(f"{path}/lease"):
                change.delete(f"{path}/lease")
            self._wait(change.commit_async())
        except (self._exceptions.KazooException, self._timeout_error) as error:
            self._disconnect()
            raise Timeout(limit_ms=int(1000 * self._timeout_s), detail=f"ZooKeeper: {error!r}") from None

    def close(self) -> None:
        self._disconnect()

    def _connected(self) -> Any:
        if self._client is None:
            client = self._client_module.KazooClient(
                hosts=self._hosts, timeout=self._session_ms / 1000, connection_retry={"max_tries": -1, "delay": 0.05}
            )
            self._client = client
            try:
                client.start(timeout=self._timeout_s)
            except self._timeout_error as error:
                self._disconnect()
                raise ConnectionFailed(url=self._hosts, detail=repr(error)) from None
        return self._client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    def _known(self, path: str) -> tuple[int, str, int]:
        """(epoch, last holder, version) of a lease."""
        self._wait(self._client.ensure_path_async(path))
        self._wait(self._client.sync_async(path))
        data, stat = self._wait(self._client.get_async(path))
        epoch, _, holder = data.decode().partition(" ")
        return int(epoch or 0), holder, stat.version

    def _owner(self, lease: str) -> int:
        """The session that holds the ephemeral node; 0: there is none."""
        stat = self._wait(self._client.exists_async(lease))
        return int(stat.ephemeralOwner) if stat is not None else 0

    def _wait(self, asynchronous: Any) -> Any:
        return asynchronous.get(timeout=self._timeout_s)
