"""Never mute: what a process can still say when its disk, its memory and its descriptors are used up.

    python -m benchmarks.never_mute                     # 10,000 events each, some 30 minutes; needs root (to mount)
    python -m benchmarks.never_mute --events 1000
    python -m benchmarks.never_mute --only clarion redis

A process on a file system with 0 bytes free reaches RLIMIT_AS while another of its threads allocates everything that
is freed, and has no descriptor left. It was connected before that, and sends `--events` events of 1,000 bytes, each
once, by its client library: in one run its broker is there, in the other it has just gone, which is when one needs to
record locally. In a third run the broker has gone and nothing is used up. Counted, at the broker, after it is back:

    told        events of which the caller was told, under pressure, that they are stored
    after kill  events that exist after the process was killed (SIGKILL) under pressure
    after ease  events that exist when the pressure ends instead, and the client has had 20 s to deliver what it holds

What each client offers is used: publisher confirms (RabbitMQ), the reply after the fsync (Redis), acknowledgements and
the client's buffer in memory while it reconnects (NATS). None of them promises to keep an event without its broker:
they tell the caller, whose own code then has to keep it, under the same pressure. That is what Clarion's `emit` is for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.table import Table

from benchmarks import starving
from benchmarks.contestant import BenchmarkError
from benchmarks.environment import Unavailable, peers_python, reason_of
from benchmarks.peers.nats_jetstream import NatsJetStream
from benchmarks.peers.rabbitmq import RabbitMQ
from benchmarks.peers.redis_streams import RedisStreams
from benchmarks.processes import HOST, Server, Worker, lasting_ports, run_workers, work_directory
from benchmarks.small_disk import fill, mounted

EVENTS = 10_000
RUN_S_MAX = 300
"""A process that has not come through its events by then hangs."""
QUEUE = "muted"


class Broker(Protocol):
    """A server that can go away and come back with what it had, on the same port."""

    name: str

    def start(self, directory: Path) -> None: ...
    def stop(self) -> None: ...
    def available(self) -> str | None: ...
    @property
    def port(self) -> int: ...


class ClarionBroker:
    name = "Clarion"

    def __init__(self) -> None:
        self.port = lasting_ports(1)[0]
        self._server: Server | None = None

    def available(self) -> str | None:
        return None

    def start(self, directory: Path) -> None:
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "clarion",
            "serve",
            "--data",
            directory / "data",
            "--listen",
            f"{HOST}:{self.port}",
        ]
        self._server = Server(command, directory / "clarion.log")
        self._server.wait_for_port(self.port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


class PeerBroker:
    """One of the peers of the other benchmarks."""

    def __init__(self, name: str, peer: RabbitMQ | RedisStreams | NatsJetStream) -> None:
        self.name = name
        self._peer = peer
        peer.keeps_ports = True

    @property
    def port(self) -> int:
        return int(self._peer.client["port"])

    def available(self) -> str | None:
        return reason_of(self._peer.prepare)

    def start(self, directory: Path) -> None:
        self._peer.start(directory)

    def stop(self) -> None:
        self._peer.stop()


@dataclass
class Contestant:
    name: str
    worker: str
    """The function in `starving` that is put under pressure; with `_stored` it reads what the broker has."""
    broker: Broker
    python: Path
    offers: str


@dataclass
class Run:
    """One process under pressure."""

    told: int
    stored: int
    """Different events of it that the broker has at the end."""
    doubles: int
    untold: int
    """Told to be stored, and not there: lost."""
    errors: dict[str, int] = field(default_factory=dict)
    ended: str = ""
    """How the process ended if not as it should."""


# --- one run ----------------------------------------------------------------------------------------------------


def run(contestant: Contestant, count: int, *, away: bool, killed: bool, pressed: bool = True) -> Run:
    """A process that sends `count` events under pressure, and what its broker has of them in the end."""
    broker = contestant.broker
    with work_directory() as directory, mounted(directory, (32 << 20) + 4 * starving.BODY_BYTES * count) as disk:
        outcomes = directory / "outcomes"
        outcomes.write_bytes(bytes(count))
        told: dict[str, Any] = {}
        ended = ""
        broker.start(directory)
        try:
            arguments = {"directory": str(disk), "port": broker.port, "queue": QUEUE}
            job = {**arguments, "count": count, "outcomes": str(outcomes), "pressed": pressed}
            target = f"benchmarks.starving:{contestant.worker}"
            worker = Worker(contestant.python, target, job, directory / "worker.log", RUN_S_MAX)
            try:
                worker.until_ready()
                if away:
                    broker.stop()
                if pressed:
                    fill(disk)
                worker.go()
                worker.until("pressed")
                if killed:
                    worker.kill()
                else:
                    worker.go()
                    worker.until_ready()
                    if away:
                        broker.start(directory)
                    worker.go()
                    told = worker.answer()
            except BenchmarkError as error:
                ended = str(error)
            finally:
                worker.stop()
            (disk / "foreign").unlink(missing_ok=True)
            broker.stop()
            broker.start(directory)
            if contestant.worker == "clarion" and (killed or ended):
                again = {"directory": str(disk), "port": broker.port, "count": count}
                run_workers([("benchmarks.starving:clarion_again", again)], directory, contestant.python)
            reader = (f"benchmarks.starving:{contestant.worker}_stored", {"port": broker.port, "queue": QUEUE})
            numbers = run_workers([reader], directory, contestant.python)[0]["numbers"]
        finally:
            broker.stop()
        flags = outcomes.read_bytes()
    found = set(numbers) - {starving.WARM}
    accepted = {number for number, flag in enumerate(flags) if flag == starving.ACCEPTED}
    if not found <= set(range(count)) or starving.WARM not in numbers:
        raise BenchmarkError(f"{contestant.name}: the broker has what nobody sent, or not what was sent before")
    doubles = len(numbers) - len(set(numbers))
    return Run(len(accepted), len(found), doubles, len(accepted - found), told.get("errors", {}), ended)


# --- the table --------------------------------------------------------------------------------------------------


def clarion_contestant() -> Contestant:
    return Contestant(
        "Clarion, EventSystem.emit", "clarion", ClarionBroker(), Path(sys.executable), "persistent memory"
    )


def contestants() -> list[Contestant]:
    peers: list[tuple[str, str, RabbitMQ | RedisStreams | NatsJetStream, str]] = [
        ("RabbitMQ (pika)", "rabbitmq", RabbitMQ("RabbitMQ", "confirms"), "publisher confirms"),
        ("Redis Streams (redis-py)", "redis", RedisStreams("Redis", "fsync"), "reply after fsync"),
        ("NATS JetStream (nats-py)", "nats", NatsJetStream("NATS", "sync always"), "acknowledgement; buffer in memory"),
    ]
    found = [clarion_contestant()]
    for name, worker, peer, offers in peers:
        broker = PeerBroker(name, peer)
        python = peers_python() if broker.available() is None else Path(sys.executable)
        found.append(Contestant(name, worker, broker, python, offers))
    return found


class Place(NamedTuple):
    """Where a process finds itself."""

    text: str
    away: bool
    pressed: bool


PLACES = (
    Place("nothing left, broker away", away=True, pressed=True),
    Place("nothing left, broker there", away=False, pressed=True),
    Place("all there but the broker", away=True, pressed=False),
)

Outcome = dict[tuple[str, bool], Run] | str
"""By place and whether the process was killed; or why it cannot be had."""


def measure(
    chosen: list[Contestant], count: int, places: Sequence[Place] = PLACES, say: Console | None = None
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for contestant in chosen:
        reason = contestant.broker.available()
        if reason is not None:
            outcomes[contestant.name] = reason
            continue
        runs = {}
        for place in places:
            for killed in (True, False):
                one = run(contestant, count, away=place.away, killed=killed, pressed=place.pressed)
                runs[place.text, killed] = one
                if say is not None:
                    say.print(f"{contestant.name}, {place.text}, killed={killed}: {one}", markup=False)
        outcomes[contestant.name] = runs
    return outcomes


def table(outcomes: dict[str, Outcome], offers: dict[str, str], count: int) -> Table:
    shown = Table(title=f"{count:,} events with no disk, no memory and no descriptor left")
    for title in ("", "offers", "place", "told", "after kill", "after ease", "errors"):
        shown.add_column(title, justify="right" if title in ("told", "after kill", "after ease") else "left")
    for name, outcome in outcomes.items():
        if isinstance(outcome, str):
            shown.add_row(name, offers[name], outcome)
            continue
        for place in [one for one in PLACES if (one.text, True) in outcome]:
            killed, eased = outcome[place.text, True], outcome[place.text, False]
            errors = ", ".join(f"{number:,} {error}" for error, number in eased.errors.items())
            shown.add_row(
                name,
                offers[name],
                place.text,
                f"{eased.told:,}",
                f"{killed.stored:,}",
                f"{eased.stored:,}",
                errors or eased.ended[:60],
            )
    return shown


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.never_mute", description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="contestants whose name contains NAME")
    parser.add_argument("--place", default="", metavar="WORD", help="only places whose name contains WORD")
    arguments = parser.parse_args(given)
    places = [place for place in PLACES if arguments.place in place.text]
    console = Console(width=None if sys.stdout.isatty() else 160)
    words = [word.lower() for word in arguments.only]
    try:
        chosen = [one for one in contestants() if not words or any(word in one.name.lower() for word in words)]
        outcomes = measure(chosen, arguments.events, places, console)
    except Unavailable as reason:
        console.print(f"cannot be measured here: {reason}", markup=False)
        return 2
    console.print(table(outcomes, {one.name: one.offers for one in chosen}, arguments.events))
    lost = [name for name, runs in outcomes.items() if not isinstance(runs, str) for one in runs.values() if one.untold]
    console.print(json.dumps({"told and not there": lost}), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
