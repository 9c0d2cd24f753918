"""Several processes with one directory: one delivers, others record; any of them dies (A-02, A-05, A-08, A-09)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from clarion import ids
from clarion.errors import EngineAbsent
from clarion.events.control import ask
from tests.faults.events_child import Life
from tests.faults.events_harness import Nursery, World, log_ids, until

KEEPING = ("one", "log")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world", KEEPING)


class People:
    """Processes of one test, ended with it."""

    def __init__(self, nursery: Nursery, world: World) -> None:
        self._nursery = nursery
        self.world = world
        self.alive: dict[str, int] = {}

    def start(self, label: str, **options: object) -> int:
        life: Life = self.world.life(label=label, **options)
        self.alive[label] = self._nursery.start(life)
        return self.alive[label]

    def kill(self, label: str) -> None:
        self._nursery.kill(self.alive.pop(label))

    def end(self) -> None:
        for label in list(self.alive):
            self.kill(label)


@pytest.fixture
def people(nursery: Nursery, world: World) -> Iterator[People]:
    people = People(nursery, world)
    try:
        yield people
    finally:
        people.end()


def ids_of(world: World, recipient: str = "one") -> set[str]:
    return {one.id for one in world.got(recipient)}


def everything_arrives(world: World) -> None:
    """What `emit` returned for is at every recipient that keeps it, in the order of its source, once."""
    until(lambda: {one.id for one in world.emitted()} <= ids_of(world), f"all arrive: {world.notes()}")
    until(lambda: ids_of(world) == set(log_ids(world.out / "log")), "the log has them too")
    world.starts = {name: [] for name in world.keeping}  # who is new and who is old is not told apart by several
    world.check()


def delivering_pid(world: World) -> int | None:
    try:
        pid: int = ask(world.path, "status")["pid"]
    except EngineAbsent:
        return None
    return pid


def rings(world: World) -> set[str]:
    return {path.name for path in (world.path / "sections").glob("*.ring")}


def test_a02_a_process_that_only_records_beside_the_one_that_delivers(people: People) -> None:
    world = people.world
    people.start("a", events=0, initialising=0, end="stays")
    people.start("b", recipients=(), events=100, end="stays")
    people.start("c", recipients=(), events=100, initialising=20, end="stays")
    until(lambda: world.notes().count("-emitted") == 3, "they are done")
    everything_arrives(world)
    assert len(world.emitted()) == 223 and len(ids_of(world)) == 223


def test_a05_the_section_of_a_dead_process_is_delivered_and_then_removed(people: People) -> None:
    world = people.world
    people.start("a", events=0, initialising=0, end="stays")
    until(lambda: delivering_pid(world) == people.alive["a"], "it delivers")
    own = rings(world)
    people.start("b", recipients=(), events=-1, end="stays")
    until(lambda: len(world.emitted()) > 100, "it emits")
    assert len(rings(world)) == len(own) + 5
    people.kill("b")
    everything_arrives(world)
    until(lambda: rings(world) == own, "its files are removed")
    people.start("c", recipients=(), events=20, end="stays")
    until(lambda: world.notes().count("-emitted") == 2, "the next one")
    everything_arrives(world)


def test_a05_a_process_that_is_started_again_goes_on_in_its_sections(people: People) -> None:
    world = people.world
    for label in ("a", "b", "c"):
        people.start(label, recipients=(), events=120, end="stays")  # nobody delivers: more of them have no room
        count = len(world.emitted()) + 50
        until(lambda count=count: len(world.emitted()) > count, "it emits")  # type: ignore[misc]
        people.kill(label)
    numbers = {ids.parse_id(one.id) for one in world.emitted() if one.kind == "normal"}
    assert len({ids.producer_of(number) for number in numbers}) == 1, "it took other sections"
    done = world.notes().count("-emitted")
    people.start("d", recipients=KEEPING, events=5, end="stays")
    until(lambda: world.notes().count("-emitted") > done, "done")
    everything_arrives(world)
    last = [ids.sequence_of(ids.parse_id(one.id)) for one in world.emitted() if one.kind == "normal"]
    assert last == sorted(last)


def test_a08_another_process_with_recipients_takes_over(people: People) -> None:
    world = people.world
    people.start("a", events=-1, pause_s=0.001, end="stays")
    until(lambda: delivering_pid(world) == people.alive["a"], "it delivers")
    people.start("b", events=-1, pause_s=0.001, end="stays")
    people.start("c", recipients=(), events=-1, pause_s=0.001, end="stays")
    until(lambda: len(world.got("one")) > 50, "events arrive")
    assert delivering_pid(world) == people.alive["a"]
    people.kill("a")
    until(lambda: delivering_pid(world) == people.alive["b"], "the other one delivers")
    count = len(world.got("one"))
    until(lambda: len(world.got("one")) > count + 100, "events arrive again")
    people.kill("c")
    people.kill("b")
    world.note_end()
    people.start("d", events=10, end="stays")
    until(lambda: "-emitted" in world.notes(), "done")
    everything_arrives(world)


def test_a02_ten_processes_that_start_at_the_same_moment(people: People) -> None:
    world = people.world
    for number in range(10):
        people.start(f"p{number}", recipients=KEEPING if number < 3 else (), events=10, initialising=1, end="stays")
    until(lambda: world.notes().count("-emitted") == 10, f"all of them: {world.notes()}")
    everything_arrives(world)
    assert len({one.id[:20] for one in world.emitted() if one.kind == "normal"}) == 10


def mixed_kills(people: People, seed: int, kills: int) -> None:
    """Processes come and are killed at moments of chance; whoever is left delivers."""
    world, rng = people.world, Random(seed)
    number = 0
    for _ in range(kills):
        while len(people.alive) < 4:
            number += 1
            recipients = KEEPING if number % 2 else ()
            people.start(f"p{number}", recipients=recipients, events=-1, initialising=2, pause_s=0.001, end="stays")
        count = len(world.emitted()) + rng.choice((1, 20, 100))
        until(lambda count=count: len(world.emitted()) > count, "events are emitted")  # type: ignore[misc]
        people.kill(rng.choice(list(people.alive)))
    people.end()
    world.note_end()
    people.start("last", events=10, end="stays")
    until(lambda: "-emitted" in world.notes(), "done")
    everything_arrives(world)


def test_a05_a08_processes_come_and_are_killed(people: People) -> None:
    mixed_kills(people, 1, 8)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 12))
def test_a05_a08_many_processes_come_and_are_killed(people: People, seed: int) -> None:
    mixed_kills(people, seed, 40)
