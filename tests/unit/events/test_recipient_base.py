"""What all recipients have in common: own threads, progress of a delivery, remembered ids (A-07, A-12)."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import BadArgument, BadSelector, NotDelivered, SessionClosed
from clarion.events.event import Event
from clarion.events.recipients import Blocking, OwnThread, Partly, Recipient
from clarion.events.recipients.base import FAILURES_MAX, Named, Progress
from clarion.events.recipients.recent import RecentIds

from .recipient_events import event, events


class Gathering(Blocking):
    def __init__(self) -> None:
        super().__init__("gathering")
        self.steps: list[str] = []
        self.threads: set[int] = set()

    def start(self) -> None:
        self._note("start")

    def process(self, events: Sequence[Event]) -> None:
        self._note(f"process {len(events)}")

    def stop(self) -> None:
        self._note("stop")

    def _note(self, step: str) -> None:
        self.steps.append(step)
        self.threads.add(threading.get_ident())


def test_a12_one_method_makes_a_recipient() -> None:
    class Own:
        async def deliver(self, events: Sequence[Event]) -> None: ...

    assert isinstance(Own(), Recipient)
    assert not isinstance(object(), Recipient)


def test_a12_blocking_work_runs_in_one_thread_that_ends() -> None:
    async def scenario() -> Gathering:
        async with Gathering() as recipient:
            await recipient.deliver(events(1, 2))
            await recipient.deliver(events(3))
        with pytest.raises(SessionClosed):
            await recipient.deliver(events(4))
        return recipient

    before = threading.active_count()
    recipient = asyncio.run(scenario())
    assert recipient.steps == ["start", "process 2", "process 1", "stop"]
    assert len(recipient.threads) == 1 and threading.get_ident() not in recipient.threads
    assert threading.active_count() == before


def test_a12_it_can_be_opened_again() -> None:
    async def scenario() -> list[str]:
        recipient = Gathering()
        for _ in range(2):
            async with recipient:
                await recipient.deliver(events(1))
        return recipient.steps

    assert asyncio.run(scenario()) == ["start", "process 1", "stop"] * 2


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), SystemExit(3), KeyboardInterrupt()])
def test_a12_whatever_is_raised_reaches_the_engine_and_ends_nothing(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def scenario() -> None:
        thread = OwnThread("t")
        thread.start()
        with pytest.raises(type(error) if isinstance(error, ValueError) else NotDelivered):
            await thread.run(fail)
        assert await thread.run(lambda: 7) == 7
        assert await thread.close()

    asyncio.run(scenario())


def test_a07_a_thread_that_hangs_does_not_hold_up_closing() -> None:
    go_on = threading.Event()

    async def scenario() -> bool:
        thread = OwnThread("t")
        thread.start()
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hang() -> None:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait()

        hanging = asyncio.create_task(thread.run(hang))
        await begun.wait()
        ended = await thread.close(wait_s=0.01)
        hanging.cancel()
        return ended

    try:
        assert asyncio.run(scenario()) is False
    finally:
        go_on.set()


def test_a12_cancelled_work_that_has_not_begun_is_dropped() -> None:
    async def scenario() -> list[str]:
        thread = OwnThread("t")
        thread.start()
        go_on = threading.Event()
        did: list[str] = []
        first = asyncio.create_task(thread.run(go_on.wait))
        second = asyncio.create_task(thread.run(lambda: did.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go_on.set()
        await first
        await thread.run(lambda: did.append("third"))
        await thread.close()
        return did

    assert asyncio.run(scenario()) == ["third"]


# --- progress ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=40))
def test_a07_after_a_failure_its_source_waits_and_others_go_on(plan: list[tuple[str, bool]]) -> None:
    batch = [event(number, source=source) for number, (source, _) in enumerate(plan, 1)]
    progress = Progress(batch)
    tried = []
    for index, (_, works) in enumerate(plan):
        if progress.due(index):
            tried.append(index)
            if works:
                progress.done(index)
            else:
                progress.failed(index, ValueError(index))
    # The naive model: everything of a source up to its first failure, that one included.
    failed: dict[str, int] = {}
    for index, (source, works) in enumerate(plan):
        if not works:
            failed.setdefault(source, index)
    assert tried == [index for index, (source, _) in enumerate(plan) if index <= failed.get(source, len(plan))]
    if not failed:
        progress.finish()
    elif len(plan) == 1:
        with pytest.raises(ValueError):
            progress.finish()
    else:
        with pytest.raises(Partly) as caught:
            progress.finish()
        assert caught.value.done == set(tried) - set(failed.values())
        assert set(caught.value.failed) == set(failed.values())
        assert caught.value.error is caught.value.failed[min(failed.values())]


def test_a07_whoever_is_down_is_not_asked_for_every_event() -> None:
    batch = [event(number, source=f"s{number}") for number in range(1, 50)]
    progress = Progress(batch)
    tried = 0
    for index in range(len(batch)):
        if progress.due(index):
            tried += 1
            progress.failed(index, ValueError())
    assert tried == FAILURES_MAX


def test_partly_says_which() -> None:
    assert Partly(3).done == {0, 1, 2}
    assert Partly([4, 2]).done == {2, 4}
    assert Partly(0).error is None
    again = pickle.loads(pickle.dumps(Partly([1], failed={2: NotDelivered(reason="x", permanent=True)})))
    assert again.done == {1} and again.failed[2].facts["permanent"] is True
    assert "x" in str(again)


# --- names and ids ------------------------------------------------------------------------------------


def test_names_filters_and_sizes_are_checked() -> None:
    assert repr(Named("n", "type = 'a'")) == "<Named n>"
    with pytest.raises(BadArgument, match="name"):
        Named("a b")
    with pytest.raises(BadSelector):
        Named("n", "type =")
    with pytest.raises(BadArgument, match="batch_events_max"):
        Named("n", batch_events_max=0)


@given(st.lists(st.integers(0, 12)), st.integers(1, 6))
def test_a08_remembered_ids_are_the_last_ones(added: list[int], maximum: int) -> None:
    recent = RecentIds(maximum=maximum)
    model: list[str] = []
    for number in added:
        identity = str(number)
        assert recent.add(identity) == (identity not in model)
        if identity not in model:
            model = [*model, identity][-maximum:]
        assert list(recent) == model and len(recent) == len(model)
        assert all((str(each) in recent) == (str(each) in model) for each in range(13))
