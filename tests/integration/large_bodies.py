"""A body of thirteen fragments, how it is read, and what the journal holds of it."""

from __future__ import annotations

import clarion
from tests.integration.helpers import describe, until
from tests.integration.large_process import MIB, blocks

BODY = b"".join(blocks(3 * MIB + 12_345))
"""Thirteen fragments, the last one shorter."""


async def body_of(message: clarion.ReceivedMessage) -> bytes:
    return await message.stream().read()


async def held_bytes(connection: clarion.Connection, name: str) -> int:
    held: int = (await describe(connection, name))["bytes"]
    return held


async def is_free(connection: clarion.Connection, *names: str) -> None:
    """Nothing of the journal is held for these destinations."""

    async def free() -> bool:
        found = {known["name"]: known for known in await connection.command("destinations", {"system": True})}
        return not any(found[name]["bytes"] or found[name]["streams"] for name in names)

    await until(free, f"{names} hold nothing")
