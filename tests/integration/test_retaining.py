"""Retention by policy: it holds when the answer is there, for every destination, and ends likewise (B-04, B-20)."""

from __future__ import annotations

import clarion
from tests.integration.helpers import describe, drain, is_idle, numbered, run, send_all, until
from tests.integration.topologies import Topology

TOPICS = 1_200
"""More than are looked at in one turn."""


def test_b04_a_policy_retains_at_once_everywhere_and_lets_go_when_it_is_removed(server: Topology, name: str) -> None:
    async def main() -> None:
        pattern, policy = f"glob:{name}-*", {"retain_ms": 600_000}
        async with clarion.connect(server.url) as connection, connection.session() as session:
            for number in range(TOPICS):
                session.send_nowait(f"topic:{name}-{number}", b"before")
            await session.flush()
            await connection.command("set_policy", {"pattern": pattern, "policy": policy})
            looked_at = (f"{name}-0", f"{name}-{TOPICS - 1}", f"{name}-new")
            await session.send(f"topic:{name}-new", b"first")
            for one in looked_at:
                assert (await describe(connection, one))["retained_from"]
                await send_all(session, f"topic:{one}", numbered(3))
                read = [message.body async for message in session.browse(one)]
                assert read[-3:] == numbered(3)
            await connection.command("remove_policy", {"pattern": pattern})
            for one in looked_at:
                assert not (await describe(connection, one))["retained_from"]
                assert [message async for message in session.browse(one)] == []

    run(main())


def test_b20_what_is_kept_by_size_is_let_go_as_more_comes(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            policy = {"retain_bytes": 4 << 20}
            await connection.command("set_policy", {"pattern": name, "policy": policy})
            for _ in range(20):
                await session.send_many(f"topic:{name}", [bytes(10_000)] * 50)
            seen = (await describe(connection, name))["retained_from"]
            assert seen

            async def moved_on() -> bool:
                return bool((await describe(connection, name))["retained_from"] > seen)

            await until(moved_on, "older ones are let go")
            async with session.receive(f"topic:{name}") as consumer:
                assert await is_idle(consumer)
            assert 0 < len(await drain(session, f"topic:{name}", start=1)) < 1_000

    run(main())
