"""Callables as recipients (A-12)."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

from clarion.errors import BadArgument, NotDelivered
from clarion.events.event import Event
from clarion.events.recipients import Function, Partly, as_recipient

from .recipient_events import events


def deliver(recipient: Function, *batches: list[Event]) -> None:
    async def scenario() -> None:
        async with recipient:
            for batch in batches:
                await recipient.deliver(batch)

    asyncio.run(scenario())


def test_a12_a_blocking_callable_gets_each_event_in_its_own_thread() -> None:
    got: list[tuple[int, int]] = []

    def take(event: Event) -> None:
        got.append((event.data["free_bytes"], threading.get_ident()))

    deliver(Function(take), events(1, 2), events(3))
    assert [number for number, _ in got] == [1, 2, 3]
    assert len({thread for _, thread in got} | {threading.get_ident()}) == 2


def test_a12_an_async_callable_runs_in_the_loop() -> None:
    got: list[tuple[str, int]] = []

    async def take(event: Event) -> None:
        await asyncio.sleep(0)
        got.append((event.type, threading.get_ident()))

    deliver(Function(take), events(1))
    assert got == [("disk.full", threading.get_ident())]


@pytest.mark.parametrize("batch", [True, False])
def test_a12_a_batch_comes_as_a_list_if_wanted(batch: bool) -> None:
    got: list[Any] = []
    deliver(Function(got.append, name="list", batch=batch), events(1, 2))
    assert [type(each) for each in got] == ([list] if batch else [Event, Event])


def test_a08_what_raises_is_not_confirmed_and_the_rest_is() -> None:
    def take(event: Event) -> None:
        if event.source == "bad":
            raise ValueError("bad")

    batch = [*events(1), *events(2, 3, source="bad"), *events(4)]
    with pytest.raises(Partly) as caught:
        deliver(Function(take), batch)
    assert caught.value.done == {0, 3} and set(caught.value.failed) == {1}
    with pytest.raises(ValueError):
        deliver(Function(take), events(1, source="bad"))


def test_a08_an_async_failure_is_the_same() -> None:
    async def take(event: Event) -> None:
        if event.source == "bad":
            raise SystemExit(1)

    with pytest.raises(Partly) as caught:
        deliver(Function(take), [*events(1), *events(2, source="bad")])
    assert caught.value.done == {0} and isinstance(caught.value.error, NotDelivered)


@pytest.mark.parametrize("blocking", [True, False])
def test_a07_a_call_that_takes_too_long_fails(blocking: bool) -> None:
    go_on = threading.Event()

    def blocks(event: Event) -> None:
        go_on.wait()

    async def waits(event: Event) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        recipient = Function(blocks if blocking else waits, timeout_s=0.02)
        await recipient.open()
        with pytest.raises(NotDelivered, match=r"within 0\.02 s"):
            await recipient.deliver(events(1))
        go_on.set()
        await recipient.close()

    try:
        asyncio.run(scenario())
    finally:
        go_on.set()


def test_its_own_timeout_is_not_taken_for_ours() -> None:
    async def take(event: Event) -> None:
        raise TimeoutError("of a socket")

    with pytest.raises(NotDelivered, match="of a socket"):
        deliver(Function(take, timeout_s=60), events(1))


def test_a_coroutine_that_nobody_awaits_is_a_failure() -> None:
    async def inner(event: Event) -> None: ...

    with pytest.raises(NotDelivered, match="async def") as caught:
        deliver(Function(lambda event: inner(event)), events(1))
    assert caught.value.facts["permanent"] is True


def test_names_are_those_of_functions() -> None:
    class Taker:
        def __call__(self, event: Event) -> None: ...

    def take(event: Event, more: int = 0) -> None: ...

    assert Function(take).name == "take"
    assert Function(lambda event: None).name == "lambda"
    assert Function(functools.partial(take, more=1)).name == "take"
    assert Function(Taker()).name == "Taker"
    assert Function(take, name="mine").name == "mine"


def test_anything_that_delivers_or_can_be_called_is_a_recipient() -> None:
    recipient = Function(print)
    assert as_recipient(recipient) is recipient
    assert isinstance(as_recipient(print), Function)
    with pytest.raises(BadArgument, match="recipients"):
        as_recipient(7)  # type: ignore[arg-type]
    with pytest.raises(BadArgument):
        Function(7)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="timeout_s"):
        Function(print, timeout_s=0)
