"""Two event systems and a witness, each in a network of its own, whose wires can be cut; and what must hold."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
import pytest

from clarion import ids
from clarion.testing.server import ServerProcess
from tests.faults.events_harness import check_lives, check_not_again, confirmed_ids
from tests.faults.pair_child import Child
from tests.faults.pair_ledger import Own, confirmed_for_partner, own_events
from tests.faults.pair_processes import WAIT_S, Forked, Nursery

PORT = 7_000
"""In a network of its own, where nobody else has any."""
SLACK_NS = 2_000_000_000
NEEDS = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip"),
]
WIRES = {"ab": ("a", "b", 1), "aw": ("a", "w", 2), "bw": ("b", "w", 3)}


def until(condition: Callable[[], object], what: str | Callable[[], object], seconds: float = WAIT_S) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


class Networks:
    """Three of them, a, b and w, each connected with each other by a wire."""

    def __init__(self) -> None:
        self._names = {one: f"clarion-{os.getpid()}-{one}" for one in "abw"}
        self._made: list[str] = []
        self._nurseries: dict[str, Nursery] = {}

    def __enter__(self) -> Networks:
        try:
            for name in self._names.values():
                _ip("netns", "add", name)
                self._made.append(name)
                _ip("-n", name, "link", "set", "lo", "up")
            for wire, (one, other, number) in WIRES.items():
                ends = self._names[one], self._names[other]
                _ip("-n", ends[0], "link", "add", wire, "type", "veth", "peer", "name", wire, "netns", ends[1])
                for end, name in enumerate(ends, 1):
                    _ip("-n", name, "address", "add", f"10.77.{number}.{end}/24", "dev", wire)
                    _ip("-n", name, "link", "set", wire, "up")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for nursery in self._nurseries.values():
            nursery.close()
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=30)

    def within(self, network: str) -> list[str]:
        """A command in front, to run something there."""
        return ["ip", "netns", "exec", self._names[network]]

    def nursery(self, network: str) -> Nursery:
        """Whose processes live there."""
        if network not in self._nurseries:
            self._nurseries[network] = Nursery(self.within(network))
        return self._nurseries[network]

    def cut(self, wire: str) -> None:
        self._set(wire, "down")

    def heal(self, wire: str) -> None:
        self._set(wire, "up")

    def _set(self, wire: str, state: str) -> None:
        _ip("-n", self._names[WIRES[wire][0]], "link", "set", wire, state)


class WitnessServer(ServerProcess):
    """A Clarion server in the network w; also a recipient."""

    def __init__(self, data: Path, networks: Networks) -> None:
        super().__init__(data, environment={"CLARION_JOURNAL_SEGMENT_BYTES": str(8 << 20)})
        self._within = networks.within("w")

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "clarion", "serve", "--data", str(self.data)]
        return [*self._within, *serve, "--listen", f"0.0.0.0:{PORT}", "--insecure"]  # nobody else is in there

    def url_for(self, system: str) -> str:
        """As `a` or `b` reaches it."""
        return f"clarion://10.77.{WIRES[f'{system}w'][2]}.2:{PORT}"

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Line(NamedTuple):
    """What `emit` returned for, or what a recipient got."""

    id: str
    who: str
    time_ns: int
    kind: str
    source: str
    number: int


class System:
    """One of the two, as a process that can be killed, paused and started again."""

    def __init__(self, side: str, child: Child, nursery: Nursery) -> None:
        self.side = side
        self.child = child
        self._nursery = nursery
        self._process: Forked | None = None
        self._pending = b""
        self.is_paused = False
        self.log = Path(child.folder) / f"log-{child.name}"

    @property
    def runs(self) -> bool:
        return self._process is not None and not self.is_paused

    def begin(self, *, arm: str = "", initialising: int = 0) -> None:
        """Start, without waiting until it is ready."""
        assert self._process is None
        child = msgspec.structs.replace(self.child, arm=arm, initialising=initialising)
        with self.log.open("ab") as log:
            self._process = self._nursery.start(child, log.fileno())
        self._pending = b""

    def begun(self) -> None:
        assert self._line() == "ready", self.said()

    def start(self, *, arm: str = "", initialising: int = 0) -> None:
        self.begin(arm=arm, initialising=initialising)
        self.begun()

    def _line(self) -> str:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + WAIT_S
        while b"\n" not in self._pending:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{self.child.name} does not answer: {self.said()}"
            if select.select([process.stdout], [], [], left_s)[0]:
                data = os.read(process.stdout.fileno(), 1 << 16)
                assert data, f"{self.child.name} ended: {self.said()}"
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def ask(self, *words: str) -> Any:
        process = self._process
        assert process is not None and not self.is_paused
        process.stdin.write(" ".join(words).encode() + b"\n")
        process.stdin.flush()
        return json.loads(self._line())

    def emit(self, count: int, kind: str = "normal") -> None:
        self.ask("emit", str(count), kind)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status")
        return found

    @property
    def acts(self) -> bool:
        return bool(self.status()["may_act"])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap()

    def killed(self) -> bool:
        """By itself, at an armed test point."""
        assert self._process is not None
        if self._process.poll() is None:
            return False
        assert self._process.returncode == -signal.SIGKILL, self.said()
        self._reap()
        return True

    def close(self) -> None:
        """End cleanly."""
        process = self._process
        assert process is not None
        process.stdin.write(b"close\n")
        process.stdin.flush()
        assert self._line() == "closed"
        assert process.wait(WAIT_S) == 0
        self._reap()

    def _reap(self) -> None:
        process, self._process, self.is_paused = self._process, None, False
        assert process is not None
        process.wait(WAIT_S)
        process.stdout.close()
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")[-3000:] if self.log.exists() else ""


class Lives(NamedTuple):
    """Of a system, one after the other."""

    starts: list[int]
    """How many lines it had brought to `raw` at the start of each."""
    held: list[Own]
    """What it held of its own at the start of each."""

    def ranks(self, life: Sequence[Line], number: int) -> list[int]:
        """Its own events: those of an initialisation, what was there at the start, new ones. It acts for its partner in
        between, whenever that dies: those have the rank of whatever comes before them."""
        initial, old, producers = self.held[number]
        ranks: list[int] = []
        for line in life:
            producer = ids.producer_of(ids.parse_id(line.id))
            if producer not in producers:
                ranks.append(ranks[-1] if ranks else 0)
            else:
                ranks.append(0 if producer in initial else 1 if line.id in old else 2)
        return ranks


class World:
    """A pair, its witness, and everything that both systems and their recipients wrote."""

    def __init__(
        self,
        folder: Path,
        networks: Networks,
        *,
        server: WitnessServer | None = None,
        witness: str = "none",
        options: Mapping[str, Any] | None = None,
        only_a: Mapping[str, Any] | None = None,
    ) -> None:
        """`witness`: none, file or clarion."""
        self.folder = folder
        self.networks = networks
        self._witness = witness
        self._server = server
        self.faults: list[int] = []
        self.pauses = 0
        self._taken: list[str] = []
        """What a consumer of the Clarion server got."""
        self._confirmed: dict[str, dict[str, int]] = {}
        """By system: what it knew as confirmed by `raw` when it died, or its partner when it came back, and how many
        lines it had brought there then."""
        self._lives: dict[str, Lives] = {}
        unique = folder.name[-24:] + format(time.time_ns(), "x")[-8:]
        (folder / "witness").mkdir()
        self.systems: dict[str, System] = {}
        for side, other in (("a", "b"), ("b", "a")):
            (folder / f"witness-{side}").symlink_to("witness")
            address = {"a": "10.77.1.1", "b": "10.77.1.2"}
            chosen = {"file": f"file:{folder}/witness-{side}", "none": None, "clarion": ""}[witness]
            url = server.url_for(side) if server is not None else ""
            child = Child(
                f"{side}-{unique}",
                f"{other}-{unique}",
                str(folder),
                f"{address[side]}:{PORT}",
                f"{address[other]}:{PORT}",
                witness=url if chosen == "" else chosen,
                url=url,
                queue=f"queue:events-{unique}",
                **{**(options or {}), **((only_a or {}) if side == "a" else {})},
            )
            self.systems[side] = System(side, child, networks.nursery(side))
        self.a, self.b = self.systems["a"], self.systems["b"]

    # --- what is done ---------------------------------------------------------------------------------

    def start(self) -> None:
        for system in (self.a, self.b):
            system.begin()
        for system in (self.a, self.b):
            system.begun()
        self.until_well()

    def end(self) -> None:
        for system in self.systems.values():
            system.kill()
        for wire in WIRES:
            self.networks.heal(wire)

    def fault(self) -> None:
        """Something is about to be broken, or was just mended."""
        self.faults.append(time.time_ns())

    def begin(self, system: System, *, arm: str = "", initialising: int = 0) -> None:
        """The next life of a system. What it holds of its own is noted, for it goes first; and what its partner has
        delivered for it, for that is given back before it delivers anything."""
        (other,) = (one for one in self.systems.values() if one is not system)
        self._note_confirmed(system, confirmed_for_partner(other.child, "raw"))
        lives = self._lives.setdefault(system.child.name, Lives([], []))
        lives.starts.append(len(self._brought_by(system.child.name)))
        lives.held.append(own_events(system.child))
        self.fault()
        system.begin(arm=arm, initialising=initialising)

    def died(self, system: System) -> None:
        """It was just killed: what it knows as confirmed it must not deliver again."""
        self.fault()
        self._note_confirmed(system, confirmed_ids(system.child.path).get("raw", set()))
        self._note_confirmed(system, confirmed_for_partner(system.child, "raw"))

    def _note_confirmed(self, system: System, confirmed: Iterable[str]) -> None:
        """From now on it must not bring these."""
        count = len(self._brought_by(system.child.name))
        known = self._confirmed.setdefault(system.child.name, {})
        for identity in confirmed:
            known.setdefault(identity, count)

    def _brought_by(self, name: str) -> list[Line]:
        return [line for line in self.got("raw") if line.who == name]

    def cut(self, wire: str) -> None:
        """Also the way to the file that is the witness."""
        self.fault()
        self.networks.cut(wire)
        if self._witness == "file" and wire[1] == "w":
            (self.folder / f"witness-{wire[0]}").unlink()

    def heal(self, wire: str) -> None:
        self.fault()
        self.networks.heal(wire)
        link = self.folder / f"witness-{wire[0]}"
        if self._witness == "file" and wire[1] == "w" and not link.is_symlink():
            link.symlink_to("witness")

    def close_gate(self, which: str = "") -> None:
        """Recipients confirm nothing: all, those of a system, or one of them."""
        (self.folder / f"closed{which}").touch()

    def open_gate(self, which: str = "") -> None:
        (self.folder / f"closed{which}").unlink(missing_ok=True)

    # --- what is seen ---------------------------------------------------------------------------------

    def statuses(self) -> dict[str, Any]:
        return {side: system.status() for side, system in self.systems.items() if system.runs}

    def is_well(self) -> bool:
        """Both deliver their own events, are paired, and hold nothing."""
        seen = self.statuses()
        return len(seen) == 2 and all(
            one["bond"] == "paired"
            and one["right"] == "holding"
            and one["duty"] == "idle"
            and not one["owes"]
            and one["delivering"]
            and not one["held_for_partner"]
            and not any(one["waiting"].values())
            for one in seen.values()
        )

    def until_well(self) -> None:
        until(self.is_well, lambda: f"both are well: {self.seen()}")

    def seen(self) -> str:
        """For whoever asks why."""
        return f"{json.dumps(self.statuses(), indent=1)}\n{self.a.said()}\n{self.b.said()}"

    def emitted(self) -> list[Line]:
        return _lines(self.folder / "printed")

    def emitted_by(self, system: System) -> set[str]:
        return {line.id for line in self.emitted() if line.who == system.child.name}

    def got(self, recipient: str = "raw") -> list[Line]:
        return _lines(self.folder / recipient)

    def _take_from_server(self) -> list[str]:
        """Ids of everything that came to the Clarion server since the last time."""
        assert self._server is not None
        command = [sys.executable, "-m", "tests.faults.pair_drain", self._server.url_for("b"), self.b.child.queue]
        drained = subprocess.run(
            [*self.networks.within("b"), *command], capture_output=True, text=True, check=False, timeout=60
        )
        assert drained.returncode == 0, drained.stderr
        return drained.stdout.split()

    def until_got(self, wanted: set[str], recipient: str = "raw") -> None:
        until(
            lambda: wanted <= {line.id for line in self.got(recipient)},
            lambda: f"{recipient} lacks {wanted - {line.id for line in self.got(recipient)}} {self.statuses()}",
        )

    # --- what must hold -------------------------------------------------------------------------------

    def check(self, *, strict: bool = False, doubles: bool = False) -> None:
        """Nothing lost; nothing twice for who keeps ids, as a Clarion server does; order; who keeps none gets
        twice what was just on its way.

        `strict`: not even that. `doubles`: whatever it likes.
        """
        emitted = [line.id for line in self.emitted()]
        assert emitted and len(set(emitted)) == len(emitted), "an id was given twice, or nothing was emitted"
        raw = self.got("raw")
        everything = {line.id for line in raw}
        assert not set(emitted) - everything, f"lost: {sorted(set(emitted) - everything)}"
        kept = [line.id for line in self.got("kept")]
        assert len(set(kept)) == len(kept), "who keeps ids has doubles"
        assert set(kept) == everything
        self._check_order(raw)
        if "clarion" in self.b.child.recipients:
            self._taken += self._take_from_server()
            assert len(set(self._taken)) == len(self._taken), "the server has doubles"
            assert set(self._taken) == everything
        for name, confirmed in self._confirmed.items():
            check_not_again(name, self._brought_by(name), confirmed)
        for name, lives in self._lives.items():
            check_lives(name, self._brought_by(name), lives.starts, lives.ranks)
        if not doubles:
            self._check_doubles(raw, strict)

    def _check_order(self, raw: list[Line]) -> None:
        seen: dict[tuple[int, str], int] = {}
        known: set[str] = set()
        for line in raw:
            if line.id not in known:
                known.add(line.id)
                number = ids.parse_id(line.id)
                place = ids.producer_of(number), line.source
                assert ids.sequence_of(number) > seen.get(place, 0), f"{line} is out of order"
                seen[place] = ids.sequence_of(number)

    def _check_doubles(self, raw: list[Line], strict: bool) -> None:
        times: dict[str, list[Line]] = {}
        for line in raw:
            times.setdefault(line.id, []).append(line)
        unexplained = [
            lines
            for lines in times.values()
            if len(lines) > 1 and (strict or not any(abs(lines[0].time_ns - one) < SLACK_NS for one in self.faults))
        ]
        # Whoever is paused in the middle of a delivery goes on with that when it wakes, before anything else.
        assert len(unexplained) <= (0 if strict else self.pauses), f"handled twice: {unexplained}"

    def doubles(self) -> int:
        return sum(count > 1 for count in Counter(line.id for line in self.got("raw")).values())


def _lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    found = []
    for text in path.read_text().splitlines(keepends=True):
        if text.endswith("\n"):
            identity, who, time_ns, kind, source, number = text.split()
            found.append(Line(identity, who, int(time_ns), kind, source, int(number)))
    return found


@contextmanager
def world(folder: Path, networks: Networks, **options: Any) -> Iterator[World]:
    """A pair that is well; leaves nothing behind."""
    made = World(folder, networks, **options)
    try:
        made.start()
        yield made
    finally:
        made.end()
