"""How a command ends: exit statuses, and the one line that says why.

    0    done                                2    wrong usage: arguments, addresses, names
    1    anything else                       69   no connection to a server
    70   a fault of ours, or of a disk       75   not now: blocked, full, not ready, too late
    130  interrupted (Ctrl-C)                141  nobody reads the output any more

Guarantee: whatever goes wrong is one line on stderr, `error: CLN-203 …` where it has a code. Never a traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from clarion import errors

OK = 0
OTHER = 1
USAGE = 2
NO_CONNECTION = 69
FAULT = 70
NOT_NOW = 75
INTERRUPTED = 130
NO_READER = 141

_BY_KIND: tuple[tuple[type[errors.ClarionError], int], ...] = (
    (errors.BadName, USAGE),
    (errors.BadUrl, USAGE),
    (errors.ConnectionFailed, NO_CONNECTION),
    (errors.ConnectionLost, NO_CONNECTION),
    (errors.HeartbeatMissed, NO_CONNECTION),
    (errors.InternalFault, FAULT),
    (errors.JournalFailed, FAULT),
    (errors.RecordDamaged, FAULT),
    (errors.MetadataDamaged, FAULT),
    (errors.Blocked, NOT_NOW),
    (errors.JournalFull, NOT_NOW),
    (errors.NoSpace, NOT_NOW),
    (errors.NotReady, NOT_NOW),
    (errors.Timeout, NOT_NOW),
    (errors.TooManyConnections, NOT_NOW),
)


def status_of(error: errors.ClarionError) -> int:
    """The exit status that an error has."""
    return next((status for kind, status in _BY_KIND if isinstance(error, kind)), OTHER)


def say(text: str) -> None:
    """One line on stderr, whatever is in the text."""
    line = "".join(character if character.isprintable() else " " for character in text)
    try:
        sys.stderr.write(f"error: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody listens there either
        pass


def fail(error: BaseException) -> int:
    """Say what went wrong and return the exit status."""
    while isinstance(error, BaseExceptionGroup):  # tasks that failed together: the first one tells why
        error = error.exceptions[0]
    match error:
        case errors.ClarionError():
            say(str(error))
            return status_of(error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            close_output()
            return NO_READER
        case OSError() if error.strerror:
            say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
            return OTHER
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({place[0].filename}:{place[0].lineno})" if place else ""
    say(str(errors.InternalFault(detail=f"{type(error).__name__}: {error}{where}")))
    return FAULT


def close_output() -> None:
    """Let nothing more be written to stdout: the interpreter would complain when it flushes at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(nowhere)


def leave(status: int) -> NoReturn:
    """End with `status`; output that can no longer be written changes it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        close_output()
        status = status or NO_READER
    except (OSError, ValueError) as error:
        close_output()
        say(f"output: {error}")
        status = status or OTHER
    sys.exit(status)
