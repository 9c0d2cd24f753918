"""Two event systems and a witness, each in a network of its own, whose wires can be cut; and what must hold."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from clarion import ids
from tests.faults.events_harness import check_lives, check_not_again, confirmed_ids
from tests.faults.pair_child import Child
from tests.faults.pair_ledger import Own, confirmed_for_partner, own_events
from tests.faults.pair_networks import PORT, WIRES, Networks, WitnessServer
from tests.faults.pair_system import Line, System, lines_of, until

SLACK_NS = 2_000_000_000


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
        return lines_of(self.folder / "printed")

    def emitted_by(self, system: System) -> set[str]:
        return {line.id for line in self.emitted() if line.who == system.child.name}

    def got(self, recipient: str = "raw") -> list[Line]:
        return lines_of(self.folder / recipient)

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

    def _lacking(self) -> dict[str, set[str]]:
        """By recipient: what others got, and it did not yet. Systems that are well still tell their recipients so."""
        got = {recipient: {line.id for line in self.got(recipient)} for recipient in ("raw", "kept")}
        if "clarion" in self.b.child.recipients:
            self._taken += self._take_from_server()
            got["clarion"] = set(self._taken)
        everything = set().union(*got.values())
        return {recipient: everything - its for recipient, its in got.items() if everything - its}

    def check(self, *, strict: bool = False, doubles: bool = False) -> None:
        """Nothing lost; nothing twice for who keeps ids, as a Clarion server does; order; who keeps none gets
        twice what was just on its way.

        `strict`: not even that. `doubles`: whatever it likes.
        """
        emitted = [line.id for line in self.emitted()]
        assert emitted and len(set(emitted)) == len(emitted), "an id was given twice, or nothing was emitted"
        until(lambda: not self._lacking(), lambda: f"who lacks what others got: {self._lacking()}")
        raw = self.got("raw")
        everything = {line.id for line in raw}
        assert not set(emitted) - everything, f"lost: {sorted(set(emitted) - everything)}"
        kept = [line.id for line in self.got("kept")]
        assert len(set(kept)) == len(kept), "who keeps ids has doubles"
        assert len(set(self._taken)) == len(self._taken), "the server has doubles"
        self._check_order(raw)
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


@contextmanager
def world(folder: Path, networks: Networks, **options: Any) -> Iterator[World]:
    """A pair that is well; leaves nothing behind."""
    made = World(folder, networks, **options)
    try:
        made.start()
        yield made
    finally:
        made.end()
