"""A thread that carries something large makes way for others where they share a core.

Theory of operation
    Where more threads want to run than there are cores, one that wakes waits until the one on its core has had its
    turn: up to a tick of the kernel, 4 ms, however little it has to do itself. A thread that is nicer than others gives
    its core up to most of those that wake there. Nobody else there: it has all of the core.

Rules
    1. Only the calling thread is changed, and what it starts later; for good, for that is how the system is.
    2. What the system does not know or allow is left as it is.
"""

from __future__ import annotations

import os
import threading

PATIENT_NICE = 10
"""A tenth of a usual thread's share, if both want the same core all the time."""


def be_patient() -> None:
    """The calling thread makes way for others from now on."""
    try:
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < PATIENT_NICE:
            os.setpriority(os.PRIO_PROCESS, thread, PATIENT_NICE)
    except (OSError, AttributeError):
        pass
