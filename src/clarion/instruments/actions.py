"""What an armed test point does when it is passed: die, stop, wait, fail, call, or leave a line (C-01).

Guarantees
    1. Every action but `Call` has a text form that `arming.parse` reads back to an equal action (unless its
       path or reason itself ends like `@3` or `*3`).
    2. `Kill` and `Stop` act on the whole process, by signals that no code in it can catch: what they leave
       behind is what a real kill or a real pause leaves.
    3. `Delay` blocks the thread that passes, also an event loop: that is its purpose.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from clarion.errors import InternalFault


class Action(Protocol):
    """`run` is called by the thread that passes; what it returns, the passing returns."""

    def run(self, name: str, passing: int) -> object: ...


@dataclass(frozen=True, slots=True)
class Kill:
    def run(self, name: str, passing: int) -> object:
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    def __str__(self) -> str:
        return "kill"


@dataclass(frozen=True, slots=True)
class Stop:
    """Returns when somebody else sends SIGCONT."""

    def run(self, name: str, passing: int) -> object:
        # raise(), not kill(): to this thread, so that it does not run on while another takes the signal.
        signal.raise_signal(signal.SIGSTOP)
        return None

    def __str__(self) -> str:
        return "stop"


@dataclass(frozen=True, slots=True)
class Delay:
    seconds: float

    def run(self, name: str, passing: int) -> object:
        time.sleep(self.seconds)
        return None

    def __str__(self) -> str:
        return f"delay:{self.seconds}"


@dataclass(frozen=True, slots=True)
class Fail:
    """Raises `OSError` if `reason` is the name of an errno, else `InternalFault`."""

    reason: str = "EIO"

    def run(self, name: str, passing: int) -> object:
        number = getattr(errno, self.reason, None)
        if isinstance(number, int):
            raise OSError(number, f"{os.strerror(number)} (test point {name}, passing {passing})")
        raise InternalFault(detail=f"{self.reason} (test point {name}, passing {passing})")

    def __str__(self) -> str:
        return f"fail:{self.reason}"


@dataclass(frozen=True, slots=True)
class Call:
    """For tests in the same process."""

    procedure: Callable[[], object]

    def run(self, name: str, passing: int) -> object:
        return self.procedure()

    def __str__(self) -> str:
        return "call"


@dataclass(frozen=True, slots=True)
class Log:
    """Appends `NAME PASSING PID` as one line, by one write, so that another process can wait for it."""

    path: str

    def run(self, name: str, passing: int) -> object:
        line = f"{name} {passing} {os.getpid()}\n".encode()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:  # must not look like the failure of what the point stands in
            raise InternalFault(detail=f"test point {name} cannot log to {self.path}: {error}") from error
        return None

    def __str__(self) -> str:
        return f"log:{self.path}"
