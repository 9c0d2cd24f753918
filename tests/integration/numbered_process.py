"""A process that sends under ids of its own until it is killed.

python -m tests.integration.numbered_process URL PRODUCER DESTINATION COUNT SIZE
"""

from __future__ import annotations

import asyncio
import sys

import clarion


def body_of(sequence: int) -> bytes:
    return f"{sequence}".encode()


async def send(url: str, producer: int, destination: str, count: int, size: int) -> None:
    """Messages 1 to `count`, `size` at a time; say when the first ones are durable, then go on."""
    async with clarion.connect(url) as connection, connection.numbered(producer) as sender:
        for first in range(1, count + 1, size):
            sequences = range(first, min(first + size, count + 1))
            await sender.send(destination, first, [*map(body_of, sequences)], [b""] * len(sequences))
            print(sequences[-1], flush=True)


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
