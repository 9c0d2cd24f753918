"""A thread that makes way for others: only itself, and only where the system lets it."""

from __future__ import annotations

import os
import threading

import pytest

from clarion import scheduling


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_b13_a_patient_thread_is_nicer_than_others_and_nobody_else_is() -> None:
    before, seen = niceness(), []

    def patient() -> None:
        for _ in range(2):
            scheduling.be_patient()
            seen.append(niceness())

    thread = threading.Thread(target=patient)
    thread.start()
    thread.join()
    assert seen == [max(before, scheduling.PATIENT_NICE)] * 2
    assert niceness() == before


def test_b13_a_system_that_refuses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    scheduling.be_patient()
