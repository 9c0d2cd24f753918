"""`python -m tests.faults.pair_drain URL QUEUE`: print the ids of everything in a queue, and take it."""

from __future__ import annotations

import asyncio
import sys

import clarion
from tests.integration.helpers import drain


async def main(url: str, queue: str) -> None:
    async with clarion.connect(url) as connection, connection.session() as session:
        for message in await drain(session, queue):
            print(message.id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
