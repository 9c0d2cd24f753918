"""Threads that make way, and threads that come soon: only themselves, and only where the system lets them."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from clarion import scheduling

SCHED_GETATTR = 315
T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> T:
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def turns() -> tuple[int, int, int]:
    """Policy, niceness and length of turns of this thread."""
    found = ctypes.create_string_buffer(scheduling._ATTRIBUTES.size)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR, 0, found, len(found), 0) == 0
    _size, policy, _flags, nice, _priority, runtime, _deadline, _period = scheduling._ATTRIBUTES.unpack(found.raw)
    return policy, nice, runtime


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_b13_a_patient_thread_is_nicer_than_others_and_nobody_else_is() -> None:
    before = niceness()

    def patient() -> list[int]:
        seen = []
        for _ in range(2):
            scheduling.be_patient()
            seen.append(niceness())
        return seen

    assert in_thread(patient) == [max(before, scheduling.PATIENT_NICE)] * 2
    assert niceness() == before


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the call that asks is of this machine")
def test_b13_turns_are_shortened_and_nothing_else_is_changed() -> None:
    def shortened() -> list[tuple[int, int, int]]:
        seen = [turns()]
        for wanted in (scheduling.PROMPT_NS, scheduling.USUAL_NS):
            scheduling.set_turns(wanted)
            seen.append(turns())
        return seen

    before, prompt, after = in_thread(shortened)
    assert after == before and prompt[:2] == before[:2]
    assert prompt[2] in (before[2], scheduling.PROMPT_NS), "as it was where the system knows nothing of it"


def test_b13_who_has_chosen_another_scheduling_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def batch() -> int:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        scheduling.set_turns(scheduling.PROMPT_NS)
        return os.sched_getscheduler(0)

    assert in_thread(batch) == os.SCHED_BATCH
    monkeypatch.setattr(platform, "machine", lambda: "another")
    scheduling.set_turns(scheduling.PROMPT_NS)  # nothing happens


def test_b13_a_system_that_refuses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    for name in ("setpriority", "sched_getscheduler"):
        monkeypatch.setattr(os, name, refused)
    scheduling.be_patient()
    scheduling.set_turns(scheduling.PROMPT_NS)
