"""Make the golden event system with the code of now: `python -m tests.golden.make_events`.

Only for a new version of a format: the files of an old version are never made again.

    events-v1.tar.xz   the directory of an event system as killed processes left it: rings in several laps and with
                       both durabilities, a ledger with a checkpoint and entries after it
    events-v1.json     what is in it, and who is owed what
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clarion.events import Event, EventSystem, RetryPolicy
from clarion.events.control import ask
from clarion.events.ledger import host as ledger_host
from clarion.events.look import status
from clarion.events.routing import Routes
from clarion.events.shell import emit as emit_from_shell
from tests.golden.make import FOLDER, _keep, _write

ARCHIVE = "events-v1.tar.xz"
CONTENT = "events-v1.json"
OPTIONS: dict[str, Any] = {
    "name": "golden",
    "capacity": 20,
    "initialisation_capacity": 10,
    "event_bytes": 256,
    "event_bytes_max": 2048,
    "durability": "process",
}
PAGER_FILTERS = "severity_level >= 40", "severity_level >= 50"
"""Of the first life and of the later ones: a new epoch."""
FIRST_OF_SECOND_LIFE = 81
REFUSED_FROM = 86
WAIT_S = 30.0


class Taker:
    """A recipient that remembers what it took, and refuses what it is told to."""

    def __init__(self, name: str, filter: str = "", refuses: Callable[[Event], bool] = lambda _event: False) -> None:
        self.name = name
        self.filter = filter
        self.batch_events_max = 1
        self.events: list[Event] = []
        self._refuses = refuses

    async def deliver(self, events: Sequence[Event]) -> None:
        if any(map(self._refuses, events)):
            raise RuntimeError(f"{self.name} refuses")
        self.events += events

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events]


def number_of(event: Event) -> int:
    return int(event.data["n"])


def described(number: int) -> dict[str, Any]:
    """What is emitted under a number."""
    severity = "critical" if number % 10 == 0 else "error" if number % 5 == 0 else "info"
    return {
        "type": f"golden.{number % 4}",
        "source": f"volume/{number % 3}",
        "severity": severity,
        "data": {"n": number, "text": "grüße " * (1 + number % 7)},
        "attributes": {"n": number, "half": number / 2, "even": number % 2 == 0, "raw": bytes([number])},
    }


def listed(event: Event) -> dict[str, Any]:
    """An event of the directory, for the list."""
    attributes = {name: value.hex() if isinstance(value, bytes) else value for name, value in event.attributes.items()}
    return {
        "id": event.id,
        "time_ns": event.time_ns,
        "type": event.type,
        "source": event.source,
        "severity": event.severity.text,
        "data": event.data,
        "attributes": attributes,
    }


def _until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(what)
        time.sleep(0.01)


def _end(result: Path, content: dict[str, Any]) -> None:
    """As processes end that nobody asked."""
    result.write_text(json.dumps(content), "utf-8")
    os.kill(os.getpid(), signal.SIGKILL)


# --- lives, each a process ----------------------------------------------------------------------------


def first_life(path: Path, result: Path) -> None:
    """What a checkpoint of the ledger holds: confirmations, a dead event, a recipient that was removed."""
    ledger_host._CHECKPOINT_ENTRIES = 8
    pager = Taker("pager", PAGER_FILTERS[0], lambda event: event.type == "golden.refused")
    takers = [Taker("log"), pager, Taker("gone")]
    retry = {"pager": RetryPolicy(first_ms=5, max_ms=20, give_up_attempts=2)}
    system = EventSystem.open(path, takers, retry=retry, **OPTIONS)
    for number in range(1, 4):
        system.emit(**described(number))
    system.ready()
    dead = system.emit("golden.refused", source="volume/9", severity="alert", data={"n": 0})
    for number in range(4, FIRST_OF_SECOND_LIFE):
        system.emit(**described(number))
        if number % 8 == 0:
            assert system.wait_until_delivered(WAIT_S)
        if number == 40:
            ask(path, "remove_recipient", {"name": "gone", "force": True})
    assert system.wait_until_delivered(WAIT_S)
    found = ask(path, "dead")
    assert [one["id"] for one in found] == [dead]
    _end(result, {"dead": found})


def second_life(path: Path, result: Path) -> None:
    """What the log after it holds, what nobody has confirmed, and what was recorded while paused."""
    log = Taker("log", "", lambda event: number_of(event) >= REFUSED_FROM and event.source == "volume/1")
    pager = Taker("pager", PAGER_FILTERS[1], lambda event: number_of(event) >= REFUSED_FROM)
    policy = RetryPolicy(first_ms=5, max_ms=20)
    system = EventSystem.open(path, [log, pager], retry=policy, **OPTIONS)
    system.ready()
    _until(lambda: system.is_delivering and not ask(path, "waiting")["count"], "the second life delivers")
    emitted = {number: system.emit(**described(number)) for number in range(FIRST_OF_SECOND_LIFE, 96)}
    refused = [number for number in range(REFUSED_FROM, 96) if number % 3 == 1]
    paged = [number for number in range(REFUSED_FROM, 96) if number % 10 == 0]

    def settled() -> bool:
        owed = {one["name"]: one["owed"] for one in status(path)["recipients"]}
        return owed == {"log": len(refused), "pager": len(paged)} and len(log.events) == 15 - len(refused)

    _until(settled, "what is owed in the second life")
    system.pause()
    emitted |= {number: system.emit(**described(number)) for number in range(96, 100)}
    shell = emit_from_shell(
        path, "golden.shell", source="shell/1", severity="alert", data={"n": 200}, attributes={"by": "shell"}
    )
    owed_log = [emitted[number] for number in (*refused, *range(96, 100))]
    owed_pager = [emitted[number] for number in paged]
    _end(result, {"log": [*owed_log, shell], "pager": [*owed_pager, shell]})


def third_life(path: Path, result: Path) -> None:
    """A process without recipients, for which nobody could decide whom its event is for."""
    system = EventSystem.open(path, **OPTIONS)
    system.ready()
    system._recorder.routes = Routes
    undecided = system.emit(**described(100))
    _end(result, {"log": [undecided], "pager": [undecided]})


# --- all of it ----------------------------------------------------------------------------------------

_LIVES = {"first": first_life, "second": second_life, "third": third_life}


def _live(name: str, path: Path, folder: Path) -> dict[str, Any]:
    result = folder / f"{name}.json"
    done = subprocess.run([sys.executable, "-m", "tests.golden.make_events", name, path, result], check=False)
    assert done.returncode == -signal.SIGKILL, done.returncode
    lived: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return lived


def main() -> None:
    if len(sys.argv) > 1:
        _LIVES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "events"
        first, second, third = (_live(life, path, folder) for life in _LIVES)
        assert _checkpoints(path) and _laps(path / "sections/0-normal.ring") > 1
        _keep(path, FOLDER / ARCHIVE)
        seen = status(path)
        sections = {one["name"]: {"kind": one["kind"], "recorded": one["recorded"]} for one in seen["sections"]}
        events = _events(path)
        owed = {recipient: second[recipient] + third[recipient] for recipient in ("log", "pager")}
        assert set(owed["log"]) | set(owed["pager"]) <= {event["id"] for event in events}
        _write(CONTENT, {"sections": sections, "owed": owed, "dead": first["dead"], "events": events})


def _checkpoints(path: Path) -> set[bytes]:
    """Begins of checkpoints that hints of the ledger's segments name; docs/formats/journal.md has the offsets."""
    found = set()
    for segment in path.glob("ledger/*.segment"):
        content = segment.read_bytes()[:2048]
        found |= {content[at + 32 : at + 40] for at in (512, 1024) if content[at : at + 8] == b"CLNJHNT1"}
    return found - {bytes(8)}


def _laps(path: Path) -> int:
    """The lap in which the released head of a ring is; docs/formats/events.md has the offsets."""
    content = path.read_bytes()
    states = [content[at : at + 512] for at in (4096, 4608) if content[at : at + 8] == b"CLNESTA1"]
    return max(int.from_bytes(state[24:32], "little") for state in states) // (len(content) - 8192)


def _events(path: Path) -> list[dict[str, Any]]:
    """Everything that the sections hold."""
    from clarion.events.memory.directory import Directory

    directory = Directory.open(path)
    found = []
    for name in directory.names():
        section = directory.look(name)
        records = section.read(section.first_sequence, 1_000, 1 << 20)
        found += [{"section": name, **listed(Event.from_recorded(record))} for record in records]
        section.close()
    return found


if __name__ == "__main__":
    main()
