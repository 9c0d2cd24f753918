"""How threads share the cores: who is waited for comes soon, who carries something large makes way.

Theory of operation
    Where more threads want to run than there are cores, one that wakes waits until the one on its core has had its
    turn: up to a tick of the kernel, 4 ms, however little it has to do itself. Two things make that rarer. Linux (6.12
    and later) lets a thread say that its turns are short: its share stays the same, but it comes sooner. And a thread
    that is nicer than others gives its core up to most of those that wake there; with nobody else there it has all of
    it.

Rules
    1. Only the calling thread is changed, and what it starts later.
    2. What the system does not know or allow is left as it is, and so are the turns of a thread for which somebody has
       chosen another kind of scheduling.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading

PROMPT_NS = 200_000
"""Turns of a thread that others wait for: as long as it needs for a lone message."""
USUAL_NS = 0
PATIENT_NICE = 10
"""A tenth of a usual thread's share, if both want the same core all the time."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of this system call, for which there is no function before glibc 2.41."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def set_turns(nanoseconds: int) -> None:
    """Turns of this length for the calling thread; `USUAL_NS` for what the system thinks best."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or not hasattr(os, "sched_getscheduler"):
        return
    try:
        policy = os.sched_getscheduler(0)
        if policy == os.SCHED_OTHER:
            nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            said = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, nanoseconds, 0, 0)
            ctypes.CDLL(None).syscall(number, 0, said, 0)
    except (OSError, AttributeError):
        pass


def be_patient() -> None:
    """The calling thread makes way for others from now on; for good, for that is how the system is."""
    try:
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < PATIENT_NICE:
            os.setpriority(os.PRIO_PROCESS, thread, PATIENT_NICE)
    except (OSError, AttributeError):
        pass
