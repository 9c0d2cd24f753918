"""Prepared transactions: committed together by anybody, resolved by hand, safe over a lost connection."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable

import pytest

from clarion import client
from clarion.client.transaction import PreparedHandle
from clarion.errors import NoSuchHandle
from tests.unit.client.scripted_broker import run
from tests.unit.client.scripted_semantics import full_broker
from tests.unit.client.traffic import filled_by_another, take


def test_b14_prepared_transactions_are_committed_together_by_anybody() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 2)
            handles: list[str] = []
            for number in range(2):
                async with connection.session(transacted=True) as session:
                    await take(session.receive("in"), 1)
                    session.send_nowait("out", b"%d" % number)
                    handle = await session.prepare(expires=60)
                    assert isinstance(handle, PreparedHandle)
                    assert pickle.loads(pickle.dumps(handle)) == handle
                    assert type(pickle.loads(pickle.dumps(handle))) is PreparedHandle
                    handles.append(handle)
            assert [arguments["expires_ms"] for arguments in there.verbs("prepare")] == [60_000, 60_000]
            assert not there.bodies("out")
            listed = await connection.prepared()
            assert [(one.handle, one.destinations, one.messages) for one in listed] == [
                (handle, ["out"], 1) for handle in handles
            ]
            async with connection.session() as session:
                assert await session.commit(handles, key="k", version=7) is True
                assert sorted(there.bodies("out")) == [b"0", b"1"]
                assert await session.commit(handles, key="k", version=7) is False
                with pytest.raises(NoSuchHandle):
                    await session.commit(handles[0])
                assert there.confirmed["in"] == {0, 1}
            assert await connection.commit(handles, key="k", version=6) is False

    run(main())


def test_b14_a_prepared_transaction_can_be_resolved_by_hand() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in")
                for committed in (False, True):
                    await take(consumer, 1)
                    session.send_nowait("out", b"%d" % committed)
                    handle = await session.prepare()
                    await session.resolve(handle, commit=committed)
                    with pytest.raises(NoSuchHandle):
                        await connection.resolve(handle, commit=True)
                assert await session.prepared() == []
            assert there.bodies("out") == [b"1"]
            assert there.confirmed["in"] == {0}

    run(main())


def test_b14_prepare_and_conditional_commit_are_safe_over_a_lost_connection() -> None:
    async def main() -> None:
        async with (
            full_broker() as there,
            client.connect(there.url) as connection,
            connection.session(transacted=True) as session,
        ):

            def asked(verb: str, times: int) -> Callable[[], bool]:
                return lambda: len(there.verbs(verb)) == times

            for number in range(2):
                session.send_nowait("out", b"%d" % number)
                there.deciding = False
                preparing = asyncio.create_task(session.prepare())
                await there.until(asked("prepare", 2 * number + 1))
                there.deciding = True
                there._do_prepare((there.end, session._channel), there.verbs("prepare")[-1])
                there.end.cut()
                handle = await preparing
                there.deciding = False
                committing = asyncio.create_task(session.commit([handle], key="k", version=number))
                await there.until(asked("commit_prepared", 2 * number + 1))
                there.deciding = True
                there.end.cut()
                assert await committing is True  # it was we
            assert there.bodies("out") == [b"0", b"1"]
            session.send_nowait("out", b"2")
            handle = await session.prepare()
            assert await session.commit([handle], key="k", version=1) is False
            assert await session.commit([handle], key="k", version=2) is True

    run(main())
