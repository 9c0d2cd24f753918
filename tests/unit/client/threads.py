"""A scripted broker for clients that block: it lives in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tests.unit.client.scripted_broker import Broker

_Broker = TypeVar("_Broker", bound=Broker)


@contextmanager
def served_by(make: Callable[[], _Broker]) -> Iterator[_Broker]:
    """One that is made by `make`, until the end of the block."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    made: list[_Broker] = []

    async def begin() -> None:
        made.append(make())
        await made[0].start()
        ready.set()

    def serve() -> None:
        loop.run_until_complete(begin())
        loop.run_forever()
        loop.run_until_complete(made[0].stop())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
