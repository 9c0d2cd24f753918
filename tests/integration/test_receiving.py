"""Acknowledgement modes, transactions, patterns, requests: the client against real servers, also when links break."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

import clarion
from clarion import sync
from clarion.cli.main import main as command
from clarion.errors import BadSelector, NoReply, NoSuchHandle, TransactionRolledBack
from tests.integration.helpers import IDLE_S, WAIT_S, bodies, drain, is_idle, numbered, run, take
from tests.integration.topologies import Topology


def break_link(connection: clarion.Connection) -> None:
    """As a network would."""
    link = connection._link
    if link is not None and link._transport is not None:
        link._transport.abort()


def sequences(messages: list[clarion.ReceivedMessage]) -> list[int]:
    return sorted(message.sequence for message in messages)


# --- acknowledgement ----------------------------------------------------------------------------------------


def test_b04_auto_confirms_behind_the_application_and_an_exception_gives_back(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many(name, numbered(10))
            async for message in session.receive(name, ack="auto"):
                if message.body == b"m3":
                    break
            with suppress(ZeroDivisionError):
                async for message in session.receive(name, ack="auto"):
                    if message.body == b"m5":
                        raise ZeroDivisionError
            await session.flush()
            rest = await drain(session, name)
            assert sorted(bodies(rest)) == [b"m5", b"m6", b"m7", b"m8", b"m9"]
            assert [(m.body, m.delivery_count) for m in rest if m.redelivered and m.delivery_count > 1] == [(b"m5", 2)]

    run(main())


def test_b04_client_and_lazy_confirmations_and_recover(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many(f"{name}-a", numbered(6))
            await session.send_many(f"{name}-b", numbered(3_000))
            consumer = session.receive(f"{name}-a", ack="client")
            first = await take(consumer, 2)
            await first[1].confirm()
            await take(consumer, 4)
            await session.recover()
            again = await take(consumer, 4)
            assert bodies(again) == [b"m2", b"m3", b"m4", b"m5"]
            assert all(message.redelivered for message in again)
            await again[0].confirm()
            assert await is_idle(consumer)
            count = 0
            async for _ in session.receive(f"{name}-b", ack="dups_ok"):
                count += 1
                if count == 3_000:
                    break
            await session.flush()
            assert not await drain(session, f"{name}-b")

    run(main())


def test_b04_a_rejection_comes_again_after_its_delay(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send(name, b"x")
            consumer = session.receive(name)
            (message,) = await take(consumer, 1)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await message.reject("not yet", delay=0.3)
            (again,) = await take(consumer, 1)
            assert loop.time() - began > 0.29
            assert again.delivery_count == 2
            await again.reject(delay=0)
            (last,) = await take(consumer, 1)
            await last.confirm()

    run(main())


def test_b04_selectors_visibility_start_and_no_local(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            for number in range(6):
                session.send_nowait(name, b"%d" % number, properties={"n": number})
            await session.flush()
            assert bodies(await drain(session, name, selector="n >= 4")) == [b"4", b"5"]
            assert [m.body async for m in session.browse(name, selector="n < 2")] == [b"0", b"1"]
            with pytest.raises(BadSelector):
                await session.receive(name, selector="n >=").receive()
            async with session.receive(name, visibility=0.1) as slow, session.receive(name) as other:
                (held,) = await take(slow, 1)
                got: list[clarion.ReceivedMessage] = []
                while held.sequence not in sequences(got):
                    got += await take(other, 1)
            async with session.receive(f"topic:{name}-t", no_local=True) as deaf:
                await session.send(f"topic:{name}-t", b"own")
                assert await is_idle(deaf)

    run(main())


# --- transactions -------------------------------------------------------------------------------------------


def test_b14_a_transaction_is_seen_as_a_whole_or_not_at_all(server: Topology, name: str) -> None:
    async def main() -> None:
        source, target = f"{name}-in", f"{name}-out"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many(source, numbered(100))
            async with connection.session(transacted=True) as transacted:
                consumer = transacted.receive(source, prefetch_messages=10)
                for message in await take(consumer, 60):  # more than the prefetch
                    transacted.send_nowait(target, message.body)
                await transacted.flush()
                assert not await drain(session, target)
                await transacted.commit()
                assert bodies(await drain(session, target)) == numbered(100)[:60]
                await take(consumer, 40)
                await transacted.send(target, b"never")
                await transacted.rollback()
                again = await take(consumer, 40)
                assert sorted(bodies(again)) == sorted(numbered(100)[60:])
                assert all(message.redelivered for message in again)
                await transacted.send(target, b"not committed")
            assert not await drain(session, target)
            assert len(await drain(session, source)) == 40

    run(main())


def test_b14_prepared_transactions_wait_for_whoever_decides(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection:
            handles = []
            for number in range(3):
                async with connection.session(transacted=True) as session:
                    session.send_nowait(name, b"%d" % number)
                    handles.append(await session.prepare(expires=60))
            listed = {one.handle: one for one in await connection.prepared()}
            assert all(listed[handle].messages == 1 for handle in handles)
            await connection.resolve(handles.pop(), commit=False)
            async with connection.session() as session:
                assert not await drain(session, name)
                assert await session.commit(handles, key=name, version=5)
                assert not await session.commit(handles, key=name, version=5)
                with pytest.raises(NoSuchHandle):
                    await session.resolve(handles[0], commit=True)
                assert sorted(bodies(await drain(session, name))) == [b"0", b"1"]

    run(main())


async def copy(
    connection: clarion.Connection, source: str, target: str, total: int, every: int, harm: asyncio.Event
) -> int:
    """Copy all messages, three in each transaction, with harm at every so many steps; how often it began anew."""
    copied = steps = anew = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps % every == 0:
            harm.set()

    async with connection.session(transacted=True) as session:
        consumer = session.receive(source, prefetch_messages=5)
        while copied < total:
            mine = 0
            try:
                for _ in range(3):
                    step()
                    message = await consumer.receive(timeout=WAIT_S if not mine else IDLE_S)
                    if message is None:
                        break
                    step()
                    session.send_nowait(target, message.body)
                    mine += 1
                step()
                await session.commit()
                copied += mine
            except TransactionRolledBack:
                anew += 1
    return anew


@pytest.mark.parametrize("every", [8, 9, 11, 13])
def test_b14_broken_links_neither_lose_nor_double_what_is_copied(server: Topology, name: str, every: int) -> None:
    async def main() -> None:
        source, target, total = f"{name}-in", f"{name}-out", 40
        async with (
            clarion.connect(server.url) as connection,
            clarion.connect(server.url) as other,
            other.session() as session,
        ):
            await session.send_many(source, numbered(total))
            harm = asyncio.Event()

            async def break_links() -> None:
                while True:
                    await harm.wait()
                    harm.clear()
                    break_link(connection)

            breaking = asyncio.create_task(break_links())
            anew = await copy(connection, source, target, total, every, harm)
            breaking.cancel()
            assert sorted(bodies(await drain(session, target))) == sorted(numbered(total))
            assert not await drain(session, source)
            assert anew > 0

    run(main())


def test_b14_a_killed_server_neither_loses_nor_doubles_what_is_copied(own_server: Topology, name: str) -> None:
    async def main() -> None:
        source, target, total = f"{name}-in", f"{name}-out", 60
        async with clarion.connect(own_server.url) as connection, connection.session() as session:
            await session.send_many(source, numbered(total))
            harm = asyncio.Event()

            async def kill() -> None:
                await harm.wait()
                await asyncio.to_thread(own_server.kill)
                await asyncio.to_thread(own_server.start)

            killing = asyncio.create_task(kill())
            await copy(connection, source, target, total, 50, harm)
            await killing
            assert sorted(bodies(await drain(session, target))) == sorted(numbered(total))
            assert not await drain(session, source)

    run(main())


# --- patterns -----------------------------------------------------------------------------------------------


def test_b15_a_pattern_gets_present_and_future_topics_over_a_broken_link(server: Topology, name: str) -> None:
    async def main() -> None:
        async with (
            clarion.connect(server.url) as connection,
            clarion.connect(server.url) as other,
            other.session() as producer,
            connection.session() as session,
        ):
            await producer.send(f"topic:{name}.0", b"before anybody listens")
            async with session.receive(f"glob:{name}.*", durable=f"{name}-d", prefetch_messages=20) as consumer:
                for topic in range(4):
                    await producer.send_many(f"topic:{name}.{topic}", numbered(10, f"{topic}-"))
                messages = await take(consumer, 40)
                for topic in range(4):
                    of_one = [m for m in messages if m.destination == f"topic:{name}.{topic}"]
                    assert bodies(of_one) == numbered(10, f"{topic}-")
                await session.confirm(messages[::2])
                break_link(connection)
                await producer.send(f"topic:{name}.new", b"while we were away")
                (new,) = await take(consumer, 1)
                assert new.body == b"while we were away"
                await session.confirm(messages[1::2], new)
                assert await is_idle(consumer)
            async with session.receive(f"glob:{name}.*", durable=f"{name}-d") as consumer:
                assert await is_idle(consumer)
                await consumer.close(delete=True)

    run(main())


# --- requests and replies -----------------------------------------------------------------------------------


def test_b04_requests_are_answered_also_over_a_broken_link(server: Topology, name: str) -> None:
    async def main() -> None:
        async with (
            clarion.connect(server.url) as connection,
            clarion.connect(server.url) as other,
            other.session() as responder,
            connection.session() as session,
        ):

            async def respond() -> None:
                async for message in responder.receive(name, ack="auto"):
                    await responder.reply(message, message.body.upper())

            responding = asyncio.create_task(respond())
            replies = await asyncio.gather(*(session.request(name, f"q{n}") for n in range(50)))
            assert [reply.body for reply in replies] == [b"Q%d" % n for n in range(50)]
            break_link(connection)
            assert (await session.request(name, b"after all", timeout=WAIT_S)).body == b"AFTER ALL"
            with pytest.raises(NoReply):
                await session.request(f"{name}-nobody", b"", timeout=0.05)
            queue = await session.temporary_queue()
            await responder.send(queue, b"for you")
            assert bodies(await take(session.receive(queue), 1)) == [b"for you"]
            responding.cancel()
            await asyncio.gather(responding, return_exceptions=True)

    run(main())


# --- the twin and the command line ----------------------------------------------------------------------------


def test_b21_the_twin_does_the_same_without_await(server: Topology, name: str) -> None:
    with sync.connect(server.url) as connection, connection.session() as session:
        session.send_many(name, numbered(20))
        with connection.session(transacted=True) as transacted:
            for message in transacted.receive(name, prefetch_messages=20):
                transacted.send_nowait(f"{name}-out", message.body)
                if message.body == b"m4":
                    break
            transacted.commit()
        assert [m.body for m in session.receive(f"{name}-out", ack="auto", timeout=IDLE_S)] == numbered(5)
        assert [m.body for m in session.receive(name, ack="dups_ok", timeout=IDLE_S)] == numbered(20)[5:]

        def respond() -> None:
            with connection.session() as responder:
                for message in responder.receive(f"{name}-ask", ack="auto"):
                    responder.reply(message, message.body * 2)
                    break

        responding = threading.Thread(target=respond)
        responding.start()
        assert session.request(f"{name}-ask", b"ab").body == b"abab"
        responding.join()


def test_b04_the_command_line_selects_and_confirms(
    server: Topology, name: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def clarion_command(*arguments: str, status: int = 0) -> list[bytes]:
        with pytest.raises(SystemExit) as ended:
            command(["--url", server.url, *arguments])
        said = capfdbinary.readouterr()
        assert ended.value.code == status, said
        return said.out.splitlines()

    idle = ("--timeout", "0.1")
    with sync.connect(server.url) as connection, connection.session() as session:
        for number in range(9):
            session.send_nowait(name, b"%d" % number, properties={"n": number})
        session.flush()
        assert clarion_command("browse", name, "--selector", "n > 7", "--json")[0].count(b'"body":"8"') == 1
        assert clarion_command("receive", name, "--selector", "n < 2", *idle) == [b"0", b"1"]
        for number, ack in enumerate(("individual", "auto", "client", "dups_ok")):
            expected = [b"%d" % (2 + number)]
            assert clarion_command("receive", name, "--count", "1", "--ack", ack, *idle) == expected
        assert clarion_command("receive", name, *idle) == [b"6", b"7", b"8"]
        assert clarion_command("receive", name, *idle) == []
        assert clarion_command("receive", name, "--selector", "n <", *idle, status=1) == []
        clarion_command("receive", f"glob:{name}.*", "--durable", name, "--timeout", "0")
        for topic in ("a", "b"):
            session.send(f"topic:{name}.{topic}", topic)
        assert sorted(clarion_command("receive", f"glob:{name}.*", "--durable", name, *idle)) == [b"a", b"b"]
