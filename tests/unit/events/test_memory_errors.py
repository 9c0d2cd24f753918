"""Errors for want of memory end where they should, on the whole way of an event (A-03): rules of `memory.writing`."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clarion import ids
from clarion.events import EventSystem, encoding, recorder, small_pieces, steps
from clarion.events.distribution.pipeline import Pipeline
from clarion.events.engine.courier import Courier
from clarion.events.engine.engine import Engine
from clarion.events.engine.host import EngineThread
from clarion.events.link.frames import Incoming
from clarion.events.link.server import Peer, Server
from clarion.events.memory import Section, ballast, committing, mapping, recording, writing
from clarion.events.memory.files import MappedFile
from clarion.events.memory.layout import pack_state, released_check
from clarion.events.multiplex.intake import Intake
from clarion.events.multiplex.origins import Origins
from clarion.events.pair.mirror import Mirror
from clarion.events.recipients import LogFile
from clarion.events.routing import Routes
from clarion.events.shared_routes import SharedRoutes
from clarion.instruments import TestPoint
from clarion.message import check_properties

CACHED_MAX = 256
"""The largest number that the interpreter need not make."""
BEFORE_THE_FIRST_EVENT = ("__init__", "Recorder.close", "Recorder._reopen", "Routes.load")


def all_of(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from all_of(constant)


def way_of_an_event() -> dict[types.CodeType, str]:
    """All code that runs when an event is recorded, by whatever way."""
    owners: list[object] = [
        recorder, recorder.Recorder, recording, recording.Recording, recording._Wait, writing, writing.Writer,
        committing.SyncedWriter, mapping.MappedWriter, encoding, encoding.Encoder, small_pieces.SmallPieces,
        ballast.Ballast, steps.Steps, TestPoint, Routes,
    ]  # fmt: skip
    functions: list[Any] = [
        EventSystem.emit, MappedFile.write, MappedFile.sync, SharedRoutes.current, SharedRoutes._reload,
        SharedRoutes._content, ids.format_id, pack_state, released_check, check_properties,
    ]  # fmt: skip
    for owner in owners:
        functions += functions_of(owner)
    return codes_of(functions)


def ways_through_an_engine() -> dict[types.CodeType, str]:
    """All code that runs where events are delivered, mirrored or taken in, without memory too."""
    owners = (EventSystem, Engine, Courier, EngineThread, Pipeline, LogFile, Server, Peer, Incoming, Intake, Origins)
    functions = [function for owner in owners for function in functions_of(owner)]
    mirror = (Mirror.begin, Mirror._announce, Mirror._take_link, Mirror._send, Mirror._degrade, Mirror.finish)
    return codes_of([*functions, *mirror])


def functions_of(owner: object) -> list[Any]:
    return [each.fget if isinstance(each, property) else each for each in vars(owner).values()]


def codes_of(functions: list[Any]) -> dict[types.CodeType, str]:
    found: dict[types.CodeType, str] = {}
    for function in functions:
        if not isinstance(function, types.FunctionType) or not function.__module__.startswith("clarion."):
            continue
        if not any(name in function.__qualname__ for name in BEFORE_THE_FIRST_EVENT):
            found |= dict.fromkeys(all_of(function.__code__), function.__qualname__)
    return found


def reach(code: types.CodeType) -> int:
    """The last instruction at which an error needs a number of its own: inside of `with`, `finally`, `except`."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return max((entry.end // 2 - 1 for entry in table if entry.lasti), default=0)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="how errors are handled there was not looked at")
def test_a03_no_error_on_the_way_of_an_event_needs_a_number_that_has_to_be_made() -> None:
    found = {name: reach(code) for code, name in way_of_an_event().items()}
    assert {name: last for name, last in found.items() if last > CACHED_MAX} == {}
    for name in ("Recorder.record", "Recording.record", "Recording._write", "Writer.stage", "SyncedWriter.commit"):
        assert found[name] > 0, f"{name} handles no error any more"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="how errors are handled there was not looked at")
def test_a03_nor_where_events_are_delivered_mirrored_and_taken_in() -> None:
    """A thread that tries for ever there keeps the interpreter, so nobody could emit either."""
    found = {name: reach(code) for code, name in ways_through_an_engine().items()}
    assert {name: last for name, last in found.items() if last > CACHED_MAX} == {}
    for name in ("Engine._rest", "Courier._rest", "EventSystem._deliver", "EventSystem._run", "Server._handle"):
        assert found[name] > 0, f"{name} handles no error any more"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="how errors are handled there was not looked at")
def test_a03_what_is_too_far_inside_of_a_function_is_noticed() -> None:
    body = "".join(f"        a = b.c{number}.d()\n" for number in range(20))
    scope: dict[str, Any] = {}
    exec(f"def early(a, b):\n    with a:\n        b()\n{body.replace('        ', '    ')}", scope)
    exec(f"def late(a, b):\n{body.replace('        ', '    ')}    with a:\n        b()\n", scope)
    assert reach(scope["early"].__code__) <= CACHED_MAX < reach(scope["late"].__code__)


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("data", [{"free": 0}, "é" * 400, b"bytes"])
@pytest.mark.parametrize("missing", [False, True])
def test_a03_the_way_of_an_event_is_known_whole(tmp_path: Path, durability: str, data: Any, missing: bool) -> None:
    """What an emit calls is among what the test above looks at."""
    called: set[types.CodeType] = set()

    def note(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("clarion."):
            called.add(frame.f_code)

    with EventSystem.open(
        tmp_path / "events", capacity=10, initialisation_capacity=10, durability=durability
    ) as system:
        system.ready()
        held = system._recorder.ballast
        attributes: Any
        for attributes in (None, {"zone": "é" * 300}):
            held.missing = missing
            sys.setprofile(note)
            try:
                system.emit("disk.full", source="volume/7", severity="error", data=data, attributes=attributes)
            finally:
                sys.setprofile(None)
    known = way_of_an_event()
    plain = {code.co_filename + code.co_qualname for code in known}  # `apart` makes another one of the same function
    assert called and {code.co_qualname for code in called if code.co_filename + code.co_qualname not in plain} == set()


def new(path: Path, durability: Any) -> Section:
    return Section.create(
        path / "own.ring", name="own", kind="normal", producer=1 << 64, bytes_=1 << 20, event_bytes_max=4096,
        durability=durability,
    )  # fmt: skip


def leaving_locked(section: Section, patch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The next call of a method of the writer finds no memory, also not to let go of its locks."""
    writer = section.writer
    work: Callable[..., Any] = getattr(writer, name)
    calls: list[int] = []

    def once(*arguments: Any) -> Any:
        calls.append(1)
        patch.setattr(writer, name, work)
        writer._lock.acquire()
        if name != "_stage":
            writer._committing.acquire()
        raise MemoryError

    patch.setattr(writer, name, once)
    return calls


@pytest.mark.parametrize(
    ("durability", "name"), [("power", "_stage"), ("power", "_lead"), ("process", "_stage"), ("process", "_give")]
)
@pytest.mark.parametrize("many", [False, True])
def test_a03_a_lock_that_could_not_be_let_go_for_want_of_memory_is_let_go(
    tmp_path: Path, durability: Any, name: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = new(tmp_path, durability)
    writer = section.writer
    if name == "_give":
        section.mirror = Nobody()
    calls = leaving_locked(section, monkeypatch, name)
    if many:
        event = section.encoder.encode("disk.full", "volume/7", 40, 1, None)
        assert section.append_many([event, event], 1, 1) == range(1, 3)
    else:
        assert section.record("disk.full", "volume/7", 40, 1, None, bits=1) == 1
    assert calls == [1]
    assert not writer.held_here()
    section.record("disk.full", "volume/7", 40, 1, None, bits=1)
    assert section.next_sequence == (4 if many else 3)
    section.close()


class Nobody:
    """A partner that takes everything."""

    def begin(self, group: memoryview, first: int, end: int) -> None:
        pass

    def finish(self) -> None:
        pass


class LeavesOnce:
    """A lock that finds no memory to be left, once, though all went well inside."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.failures = 1

    def __enter__(self) -> bool:
        entered: bool = self._lock.__enter__()
        return entered

    def __exit__(self, *error: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        self._lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


@pytest.mark.parametrize(
    ("durability", "lock"), [("power", "_lock"), ("power", "_committing"), ("power", "_gates"), ("process", "_lock")]
)
def test_a03_what_is_staged_is_not_staged_again_because_its_lock_could_not_be_left(
    tmp_path: Path, durability: Any, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = new(tmp_path, durability)
    writer: Any = section.writer
    if lock == "_gates":
        writer._gates[:] = [LeavesOnce(gate) for gate in writer._gates]
    else:
        monkeypatch.setattr(writer, lock, LeavesOnce(getattr(writer, lock)))
    for number in range(1, 6):
        assert section.record("disk.full", "volume/7", 40, number, None, bits=1) == number
        assert not writer.held_here()
    assert [event.time_ns for event in section.read(1, 10, 1 << 20)] == [1, 2, 3, 4, 5]
    section.close()
