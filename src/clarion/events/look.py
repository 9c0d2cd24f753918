"""What an operator sees of an event system, and what he may order: the verbs of the control socket.

`status` asks the process that delivers; where there is none it shows what the files say: recorded events wait there
whether somebody delivers or not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clarion.errors import BadArgument, ClarionError, EngineAbsent
from clarion.events.control import REMEDY, Handler, ask
from clarion.events.event import TYPE_UNREADABLE, event_id
from clarion.events.memory import Section
from clarion.events.memory.directory import Directory
from clarion.message import decode_headers

if TYPE_CHECKING:
    from clarion.events.engine.engine import Engine
    from clarion.events.engine.feed import Feed
    from clarion.events.system import EventSystem


def status(path: Path) -> dict[str, Any]:
    """Of the system in this directory."""
    try:
        found: dict[str, Any] = ask(path, "status")
    except EngineAbsent:
        return absent(path)
    return found


def waiting(path: Path) -> int:
    """Events that somebody has not confirmed. Raises `EngineAbsent`."""
    result: int = ask(path, "waiting")["count"]
    return result


def absent(path: Path) -> dict[str, Any]:
    """What can be seen while nobody delivers. Raises `BadArgument` if this is no event system."""
    if not (path / "sections").is_dir():
        raise BadArgument(argument="directory", detail=f"{path} is no event system")
    directory = Directory.open(path)
    sections = []
    problems = [f"nobody delivers: {REMEDY}"]
    for name in directory.names():
        try:
            section = directory.look(name)
        except (OSError, ClarionError) as error:
            problems.append(f"section {name}: {error}")
            continue
        sections.append(_section(section, "" if directory.is_alive(name) else " (gone)"))
        section.close()
    return {
        "name": path.name,
        "state": "not delivering",
        "pid": None,
        "durability": "-",
        "sections": sections,
        "recipients": [],
        "problems": problems,
    }


def _section(section: Section, owner: str) -> dict[str, Any]:
    waiting_events = section.next_sequence - section.first_sequence
    used, total = section.used_bytes(), section.ring_bytes
    return {
        "name": section.name,
        "kind": section.kind,
        "system": event_id(section.producer, 0),
        "waiting": waiting_events,
        "recorded": section.next_sequence - 1,
        "used_percent": round(100 * used / total),
        "bytes": total,
        "refused": section.refused,
        "lost": sum(end - first for first, end in section.lost),
        "owner": f"{section.owner[0]}{owner}",
    }


def handlers(system: EventSystem, engine: Engine) -> dict[str, Handler]:
    """The verbs of a system that delivers."""

    async def show(_: dict[str, Any]) -> object:
        return _status(system, engine)

    async def count(_: dict[str, Any]) -> object:
        if not engine.is_running:
            raise EngineAbsent(path=str(system.path), detail="it is just starting")
        engine.adopting.look()
        behind = sum(feed.section.next_sequence - feed.queue.first for feed in engine.feeds.values())
        return {"count": behind}

    async def report(_: dict[str, Any]) -> object:
        return engine.report.dump()

    async def remove(arguments: dict[str, Any]) -> object:
        name = _text(arguments, "name")
        owed = await engine.remove_recipient(name, bool(arguments.get("force", False)))
        system.forget_recipient(name)
        return {"owed": owed}

    async def pause(_: dict[str, Any]) -> object:
        system.pause()
        return {"state": system.state}

    async def ready(_: dict[str, Any]) -> object:
        system.ready()
        return {"state": system.state}

    async def takeover(_: dict[str, Any]) -> object:
        system.take_over()
        return {"state": system.state}

    async def dead(_: dict[str, Any]) -> object:
        return [_dead(engine, number.number) for number in engine.ledger.dead_events()]

    async def resend(arguments: dict[str, Any]) -> object:
        return {"count": await engine.resend_dead(_numbers(arguments))}

    async def purge(arguments: dict[str, Any]) -> object:
        numbers = _numbers(arguments)
        if numbers is None:
            numbers = [event.number for event in engine.ledger.dead_events(count_max=1 << 30)]
        await engine.ledger.purge_dead(numbers)
        return {"count": len(numbers)}

    return {
        "status": show,
        "waiting": count,
        "replay_report": report,
        "remove_recipient": remove,
        "pause": pause,
        "ready": ready,
        "takeover": takeover,
        "dead": dead,
        "dead_resend": resend,
        "dead_purge": purge,
    }


def _status(system: EventSystem, engine: Engine) -> dict[str, Any]:
    rows = engine.ledger.recipients()
    dead: dict[int, int] = {}
    for event in engine.ledger.dead_events(count_max=1 << 30):
        dead[event.slot] = dead.get(event.slot, 0) + 1
    recipients: list[dict[str, Any]] = []
    for row in rows:
        courier, pipeline = engine.couriers.get(row.slot), engine.pipelines.get(row.slot)
        recipients.append(
            {
                "name": row.name,
                "state": courier.state if courier is not None else "absent",
                "owed": engine.owed(row.slot),
                "in_flight": pipeline.in_flight if pipeline is not None else 0,
                "confirmed": courier.confirmed if courier is not None else 0,
                "failures": pipeline.failures if pipeline is not None else 0,
                "held_sources": pipeline.held_sources if pipeline is not None else 0,
                "dead": dead.get(row.slot, 0),
                "filter": row.filter,
                "error": pipeline.last_error if pipeline is not None else "",
            }
        )
        forwarded = getattr(courier.recipient, "confirmations_by_recipient", None) if courier is not None else None
        if forwarded is not None:
            recipients[-1]["confirmations_by_recipient"] = dict(forwarded)
    return {
        "name": system.settings.name,
        "state": system.state,
        "pid": os.getpid(),
        "durability": system.settings.durability,
        "pair": system.pair_status(),
        "multiplex": system.multiplex_status(),
        "sections": [_section(feed.section, _gone(system, feed)) for feed in engine.feeds.values()],
        "recipients": recipients,
        "problems": [
            *(f"section {name}: {problem}" for name, problem in system.memory.unreadable.items()),
            *(
                f"section {feed.section.name}: {feed.section.failed}"
                for feed in engine.feeds.values()
                if feed.section.failed
            ),
        ],
    }


def _gone(system: EventSystem, feed: Feed) -> str:
    return " (gone)" if not feed.is_own and not system.memory.is_alive(feed.section) else ""


def _dead(engine: Engine, number: int) -> dict[str, Any]:
    event = engine.ledger.dead_event(number)
    try:
        type_ = decode_headers(engine.ledger.read_dead(number).headers).type or TYPE_UNREADABLE
    except ClarionError:
        type_ = TYPE_UNREADABLE
    return {
        "number": number,
        "id": event_id(event.producer, event.sequence),
        "type": type_,
        "recipient": event.recipient,
        "attempts": event.attempts,
        "reason": event.reason,
        "time_ms": event.time_ms,
        "resent": bool(event.resent_at),
    }


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise BadArgument(argument=name, detail="a text is needed")
    return value


def _numbers(arguments: dict[str, Any]) -> list[int] | None:
    numbers = arguments.get("numbers")
    if numbers is None:
        return None
    if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
        raise BadArgument(argument="numbers", detail="a list of numbers is needed")
    return numbers
