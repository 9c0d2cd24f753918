"""A process that uses transactions, and can be killed between any two of its steps.

python -m tests.faults.moving_client move URL                    stops at each step until told to go on
python -m tests.faults.moving_client prepare URL LABEL COUNT     prints COUNT handles
"""

from __future__ import annotations

import asyncio
import sys

import clarion
from tests.faults.moving import LEFT, RIGHT, SOURCE

STEPS = ("received", "sent left", "sent both", "stored", "asked", "committed")
WAIT_S = 60.0


def pause(step: str) -> None:
    """Say where we are, and go on when somebody says so."""
    print(step, flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody there")


async def move(url: str) -> None:
    async with (
        clarion.connect(url) as connection,
        connection.session(transacted=True) as session,
        session.receive(SOURCE, prefetch_messages=4) as consumer,
    ):
        while True:
            bodies: list[bytes] = []
            for _ in range(2):
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None
                bodies.append(message.body)
            pause("received")
            for body in bodies:
                session.send_nowait(LEFT, body)
            pause("sent left")
            for body in bodies:
                session.send_nowait(RIGHT, body)
            pause("sent both")
            await session.flush()
            pause("stored")
            committing = asyncio.ensure_future(session.commit())
            for _ in range(3):
                await asyncio.sleep(0)  # so that it leaves
            pause("asked")
            await committing
            pause("committed")


async def prepare(url: str, label: str, count: int) -> None:
    async with clarion.connect(url) as connection, connection.session(transacted=True) as session:
        for number in range(count):
            for target in (LEFT, RIGHT):
                session.send_nowait(target, f"{label}-{number}")
            print(await session.prepare(expires=3_600), flush=True)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    asyncio.run(move(arguments[0]) if verb == "move" else prepare(arguments[0], arguments[1], int(arguments[2])))
