"""Listening sockets: bound before anything else starts, so that an address in use is found at once."""

from __future__ import annotations

import errno
import socket

from clarion.errors import AddressInUse, ConfigurationError, NoPermission
from clarion.settings import Address

BACKLOG = 4_096


def bind(address: Address) -> list[socket.socket]:
    """Sockets listening on `address`: one for each of its IP addresses, all on the same port.

    Raises `AddressInUse`, `NoPermission`, or `ConfigurationError` for a host that is not ours.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except OSError as error:
        raise ConfigurationError(detail=f"cannot listen on {address}: {error.strerror or error}") from None
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _name, where in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((where[0], port, *where[2:]))
            port = int(listening.getsockname()[1])
            listening.listen(BACKLOG)
            listening.setblocking(False)
    except OSError as error:
        for listening in sockets:
            listening.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(address=str(address)) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise NoPermission(path=str(address)) from None
        raise ConfigurationError(detail=f"cannot listen on {address}: {error.strerror}") from None
    return sockets
