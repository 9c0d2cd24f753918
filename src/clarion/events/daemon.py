"""`clarion events serve`: the process that delivers for a host.

Processes of the host record in sections of their own (`EventSystem.open(directory)` without recipients, or
`clarion events emit`); the daemon has the recipients, and adopts what any of them recorded, living or dead.

Guarantees
    1. `ready` is printed when it delivers, or when another process does and this one stands by to take over.
    2. SIGTERM and Ctrl-C end it cleanly: what is not delivered stays recorded. SIGHUP reads the settings again, and
       recipients that are new join. Nobody is removed that way: that is an explicit act (`clarion events recipients
       remove`).
    3. Want of memory ends it no more than anything else: it delivers when there is some.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from clarion.errors import BadSetting, ClarionError
from clarion.events.distribution import RetryPolicy
from clarion.events.recipients.settings import from_table
from clarion.events.settings import EventsSettings, MultiplexSettings, load
from clarion.events.system import EventSystem, name_of
from clarion.threads import NO_MEMORY

_logger = logging.getLogger("clarion.events")

RETRY_KEY = "retry"
LOOK_S = 0.2
"""How often it is seen what signals ask for."""


def run(
    directory: Path, config: Path | None, *, ready: Callable[[str], None], multiplex_listen: str | None = None
) -> int:
    """Deliver until told to end; the exit status."""
    _log_to_stderr()
    settings = load(config) if config is not None else EventsSettings(directory=str(directory))
    if multiplex_listen is not None:
        settings = _with_listen(settings, multiplex_listen)
    file = str(config) if config is not None else "defaults"
    recipients, policies = recipients_of(settings, file)
    if not recipients:
        raise BadSetting(file=file, detail="there are no recipients: name some by [[events.recipients]] and --config")
    wanted = _on_signals()
    path = directory if config is None or str(directory) != "clarion-events" else Path(settings.directory)
    with make(path, settings, recipients, policies) as system:
        system.ready()
        ready(_ready_line(system, recipients))
        while not wanted.stop:
            try:
                time.sleep(LOOK_S)
                if wanted.again:
                    wanted.again = False
                    _reload(system, config)
            except NO_MEMORY:  # others record, and this one delivers when there is some
                time.sleep(LOOK_S)
    return 0


def make(path: Path, settings: EventsSettings, recipients: list[Any], policies: dict[str, RetryPolicy]) -> EventSystem:
    """The event system that the settings describe."""
    if settings.multiplex is not None:
        from clarion.events.multiplexer import Multiplexer

        return Multiplexer(path, settings, recipients, policies)
    if settings.pair is not None:
        from clarion.events.paired import PairedSystem

        return PairedSystem(path, settings, recipients, policies)
    return EventSystem(path, settings, recipients, policies)


def recipients_of(settings: EventsSettings, file: str) -> tuple[list[Any], dict[str, RetryPolicy]]:
    """The recipients of [[events.recipients]], each with its `retry`. Raises `BadSetting`."""
    recipients: list[Any] = []
    policies: dict[str, RetryPolicy] = {}
    for number, table in enumerate(settings.recipients, 1):
        place = f"[[events.recipients]] {number}"
        plain = {key: value for key, value in table.items() if key != RETRY_KEY}
        recipient = from_table(plain, file, place)
        recipients.append(recipient)
        if RETRY_KEY in table:
            policies[name_of(recipient)] = _policy(table[RETRY_KEY], file, place)
    return recipients, policies


def _policy(table: object, file: str, place: str) -> RetryPolicy:
    from clarion.units import parse_unit

    try:
        if not isinstance(table, dict):
            raise ValueError("a table is needed")
        return msgspec.convert({key: parse_unit(key, value) for key, value in table.items()}, RetryPolicy)
    except (ValueError, msgspec.ValidationError, ClarionError) as error:
        raise BadSetting(file=file, detail=f"{place} {RETRY_KEY}: {error}") from None


def _with_listen(settings: EventsSettings, listen: str) -> EventsSettings:
    known = settings.multiplex
    multiplex = MultiplexSettings(listen) if known is None else msgspec.structs.replace(known, listen=listen)
    return msgspec.structs.replace(settings, multiplex=multiplex)


def _reload(system: EventSystem, config: Path | None) -> None:
    """Recipients that are new join; a file that cannot be understood changes nothing."""
    if config is None:
        return
    try:
        recipients, _ = recipients_of(load(config), str(config))
        added = system.add_recipients(recipients)
    except ClarionError as error:
        _logger.error("settings not read again: %s", error)
    else:
        _logger.info("settings read again: %s", f"new: {', '.join(added)}" if added else "no new recipients")


def _ready_line(system: EventSystem, recipients: list[Any]) -> str:
    facts = [f"pid={os.getpid()}", f"directory={system.path}", f"recipients={len(recipients)}"]
    facts += [f"{name}={value}" for name, value in system.addresses().items()]
    return " ".join(["ready", *facts])


class _Wanted:
    """What signals ask for. To note it needs no memory."""

    stop = again = False


def _on_signals() -> _Wanted:
    wanted = _Wanted()

    def end(_number: int, _frame: FrameType | None) -> None:
        wanted.stop = True

    def reload(_number: int, _frame: FrameType | None) -> None:
        wanted.again = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, reload)
    return wanted


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
