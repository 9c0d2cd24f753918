"""The blocking twin of transactions, acknowledgement modes, patterns, requests: threads and all."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import pytest

from clarion import sync
from clarion.client.blocking_consumer import Handing
from clarion.client.inbox import Credit, Inbox, Owner, Part
from clarion.errors import BadArgument, NoReply, NoSuchHandle, TransactionRolledBack
from clarion.wire.batch import encode
from clarion.wire.frames import Slice
from tests.unit.client.scripted_semantics import FullBroker
from tests.unit.client.threads import served_by


def cut(there: FullBroker) -> None:
    there.loop.call_soon_threadsafe(there.end.cut)


def filled(connection: sync.Connection, name: str, count: int) -> None:
    with connection.session() as session:
        session.send_many(name, [b"%d" % number for number in range(count)])


def take(consumer: sync.Consumer, count: int) -> list[sync.ReceivedMessage]:
    messages = [consumer.receive(5) for _ in range(count)]
    return [message for message in messages if message is not None]


def leave(how: str, consumer: sync.Consumer) -> None:
    for message in consumer:
        if message.sequence == 2:
            if how == "break":
                break
            if how == "return":
                return
            raise ZeroDivisionError


@pytest.mark.parametrize("ack", ["auto", "dups_ok"])
@pytest.mark.parametrize("how", ["break", "return", "raise"])
def test_b04_the_twin_confirms_what_the_application_came_back_from(how: str, ack: Any) -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection, connection.session() as session:
        filled(connection, "q", 5)
        with suppress(ZeroDivisionError):
            leave(how, session.receive("q", ack=ack))
        gc.collect()
        session.flush()
        assert there.confirmed["q"] == ({0, 1} if how == "raise" else {0, 1, 2})
        rest = take(session.receive("q"), 3 if how == "raise" else 2)
        assert sorted(m.sequence for m in rest) == ([2, 3, 4] if how == "raise" else [3, 4])


def test_b04_the_twin_waits_in_auto_and_not_in_dups_ok() -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection, connection.session() as session:
        filled(connection, "q", 3)
        for message in session.receive("q", ack="auto", timeout=0.05):
            assert there.confirmed.get("q", set()) == set(range(message.sequence))
        assert there.confirmed["q"] == {0, 1, 2}
        filled(connection, "lazy", 3_000)
        seen = 0
        with session.receive("lazy", ack="dups_ok") as consumer:
            for _ in consumer:
                seen += 1
                if seen == 3_000:
                    break
        session.flush()
        assert there.confirmed["lazy"] == set(range(3_000))
        filled(connection, "batches", 10)
        for batch in session.receive_batches("batches", ack="auto", prefetch_messages=4, timeout=0.05):
            assert there.confirmed.get("batches", set()) == set(range(batch.first_sequence))
        assert there.confirmed["batches"] == set(range(10))


@pytest.mark.parametrize("fails", [False, True])
def test_b04_the_twins_block_decides_on_the_last_message(fails: bool) -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection, connection.session() as session:
        filled(connection, "q", 3)
        with suppress(ZeroDivisionError), session.receive("q", ack="auto") as consumer:
            take(consumer, 2)
            if fails:
                raise ZeroDivisionError
        session.flush()
        assert there.confirmed["q"] == ({0} if fails else {0, 1})


def test_b21_each_thread_comes_back_for_itself() -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection, connection.session() as session:
        filled(connection, "q", 200)
        consumer = session.receive("q", ack="auto", prefetch_messages=20)
        held = consumer.receive()  # this thread works on it for long
        assert held is not None

        def work(_: int) -> list[int]:
            seen = []
            while (message := consumer.receive(0.3)) is not None:
                seen.append(message.sequence)
            return seen

        with ThreadPoolExecutor(4) as pool:
            seen = [sequence for done in pool.map(work, range(4)) for sequence in done]
        assert sorted([held.sequence, *seen]) == list(range(200))
        assert there.confirmed["q"] == set(range(200)) - {held.sequence}
        consumer.close()
        session.flush()
        assert there.confirmed["q"] == set(range(200))


def test_b04_the_twin_confirms_for_the_session_and_recovers() -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection, connection.session() as session:
        filled(connection, "a", 5)
        filled(connection, "b", 5)
        a, b = session.receive("a", ack="client"), session.receive("b", ack="client")
        take(a, 2)
        take(b, 1)[0].confirm()
        assert there.confirmed == {"a": {0, 1}, "b": {0}}
        (message,) = take(a, 1)
        message.confirm_nowait()
        take(a, 1)  # came after the confirmation: not in it
        session.flush()
        assert there.confirmed["a"] == {0, 1, 2}
        take(b, 2)
        session.recover()
        assert sorted(m.sequence for m in take(a, 2)) == [3, 4]
        again = take(b, 4)
        assert sorted(m.sequence for m in again) == [1, 2, 3, 4]
        again[0].reject("why", delay=0.5)
        assert there.reasons == [([[again[0].sequence, again[0].sequence + 1]], "why", 500)]


def test_b14_the_twin_commits_rolls_back_and_prepares() -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection:
        filled(connection, "in", 10)
        with connection.session(transacted=True) as session:
            assert session.transacted
            consumer = session.receive("in", prefetch_messages=10)
            for message in take(consumer, 3):
                session.send_nowait("out", message.body)
            assert session.commit() is True
            assert there.confirmed["in"] == {0, 1, 2}  # of ten that are here, those that were handed out
            messages = take(consumer, 2)
            for refused in (messages[0].confirm, messages[0].confirm_nowait, messages[0].reject, session.recover):
                with pytest.raises(BadArgument):
                    refused()
            session.send("out", b"never")
            session.rollback()
            assert len(take(consumer, 7)) == 7
            session.send_many_nowait("out", [b"x", b"y"])
            handle = session.prepare(expires=5)
        assert [one.handle for one in connection.prepared()] == [handle]
        assert connection.commit(handle, key="k", version=1) is True
        assert there.bodies("out") == [b"0", b"1", b"2", b"x", b"y"]
        with connection.session() as session:
            assert session.commit([handle], key="k", version=1) is False
            assert session.prepared() == []
            with pytest.raises(NoSuchHandle):
                session.resolve(handle, commit=False)
            with pytest.raises(NoSuchHandle):
                connection.resolve(handle, commit=False)
            with pytest.raises(BadArgument):
                session.rollback()


@pytest.mark.parametrize("how", ["send_nowait", "try_send", "send_many_nowait", "send", "commit"])
def test_b14_the_twin_is_told_once_and_begins_anew(how: str) -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection:
        filled(connection, "in", 6)
        with connection.session(transacted=True) as session:
            consumer = session.receive("in", prefetch_messages=6)
            take(consumer, 2)
            cut(there)
            since: list[int] = []
            while 0 not in since:  # what was here is not handed out any more once the loss is known
                since += [message.sequence for message in take(consumer, 1)]
            with pytest.raises(TransactionRolledBack):
                match how:
                    case "send_nowait":
                        session.send_nowait("out", b"refused")
                    case "try_send":
                        session.try_send("out", b"refused")
                    case "send_many_nowait":
                        session.send_many_nowait("out", [b"refused"])
                    case "send":
                        session.send("out", b"refused")
                    case _:
                        session.commit()
            session.send_nowait("out", b"kept")
            assert not session.is_blocked("out")
            assert sorted(message.sequence for message in take(consumer, 6)) == [0, 1, 2, 3, 4, 5]
            session.commit()
        assert there.bodies("out") == [b"kept"]
        assert there.confirmed["in"] == {0, 1, 2, 3, 4, 5}


def test_b04_the_twin_asks_and_answers() -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection, connection.session() as session:

        def serve() -> None:
            with connection.session() as server:
                for message in server.receive("service", ack="auto", timeout=0.3):
                    server.reply(message, message.body.upper())

        serving = threading.Thread(target=serve)
        serving.start()
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda n: session.request("service", f"body {n}").body, range(20)))
        serving.join()
        assert replies == [f"BODY {number}".encode() for number in range(20)]
        with pytest.raises(NoReply):
            session.request("nobody", b"", timeout=0.01)
        queue, topic = session.temporary_queue(), session.temporary_topic()
        assert queue.startswith("queue:_temp.")
        assert topic.startswith("topic:_temp.")
        session.send(queue, b"x")
        assert [message.body for message in take(session.receive(queue), 1)] == [b"x"]


def test_b21_a_part_that_was_cut_is_handed_out_no_further() -> None:
    inbox = Inbox(cast(Owner, None), 1, "q")
    batch = memoryview(bytes(encode(b"q", 1, [b"x"] * 3)))
    part, handing = Part(inbox, Slice(0, 1, False, batch), Credit(10, 10)), Handing()
    handing.put(part)
    assert handing.next(whole=False) == (part, 0)
    assert (handing.taken(part), handing.cut(part)) == (1, 1)
    assert handing.next(whole=False) is None  # also before the loop has made it shorter
    assert (handing.taken(part), handing.cut(part)) == (3, 3)  # another one by now
    handing.put(part)
    assert handing.next(whole=True) == (part, 0)
    assert handing.next(whole=True) is part


def test_b15_the_twin_consumes_patterns() -> None:
    with served_by(FullBroker) as there, sync.connect(there.url) as connection, connection.session() as session:
        for number in range(3):
            filled(connection, f"topic:a.{number}", 4)
        with session.receive("glob:a.*") as consumer:
            messages = take(consumer, 12)
            assert {(m.destination, m.sequence) for m in messages} == {
                (f"topic:a.{topic}", sequence) for topic in range(3) for sequence in range(4)
            }
            for message in messages:
                message.confirm_nowait()
            session.flush()
            with pytest.raises(BadArgument):
                consumer.confirm(0, 1)
        assert all(there.confirmed[f"topic:a.{topic}"] == {0, 1, 2, 3} for topic in range(3))
