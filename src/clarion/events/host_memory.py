"""The sections of a host: which ones a process records in, and which ones an engine reads.

Theory of operation
    A process takes a set of sections, `N-normal`, `N-initialisation` and `N-nested-K`, with the lowest N that is free:
    new, or left by a process that is gone. So a service that is started again goes on in the sections it had, under
    the same producer ids, and ten processes have ten sets. `shell` belongs to whoever emits from the command line.

Guarantees
    1. Every section of the directory is found, whoever wrote it; those of dead processes are recovered first.
    2. A section disappears only when it is empty and nobody writes it.
    3. Producer ids never come twice: the directory has an identity of its own, and remembers the last start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from clarion import ids, limits
from clarion.errors import ClarionError, LimitReached, SectionDamaged, SectionInUse
from clarion.events.memory import Section, ring_bytes_for
from clarion.events.memory.directory import Directory, SectionOptions
from clarion.events.memory.layout import PAGE_BYTES, aligned, ring_bytes_min
from clarion.events.recorder import NESTED, Sections
from clarion.journal import Durability

IDENTITY = "identity"
SHELL = "shell"
SETS_MAX = 10_000
NESTED_CAPACITY = 64
SHELL_CAPACITY = 1_000
SET_S_MAX = 10.0
"""How long a process waits for a section of its set that an engine is just recovering."""


class Sizes(msgspec.Struct, frozen=True):
    """How much a process may record before it is refused."""

    capacity: int = limits.EVENT_CAPACITY_DEFAULT
    initialisation_capacity: int = limits.EVENT_INITIALISATION_CAPACITY_DEFAULT
    event_bytes: int = limits.EVENT_BYTES_AVERAGE
    event_bytes_max: int = limits.EVENT_BYTES_MAX_DEFAULT
    durability: Durability = "power"

    def options(self, kind: str, capacity: int) -> SectionOptions:
        """For a section of so many events."""
        bytes_ = ring_bytes_for(capacity, self.event_bytes, self.durability)
        return SectionOptions(kind, bytes_, self.event_bytes_max, self.durability)


class _Identity(msgspec.Struct):
    site: int
    node: int
    start_ms: int


class HostMemory:
    """The directory, as one process sees it."""

    def __init__(self, directory: Directory, sizes: Sizes) -> None:
        self.directory = directory
        self.sizes = sizes
        self._generator = _generator(directory.path / IDENTITY)
        self._pid = os.getpid()
        self._own: dict[str, Section] = {}
        self._foreign: dict[str, Section] = {}
        self.unreadable: dict[str, str] = {}
        """Sections that cannot be opened, and why."""

    # --- for recording ------------------------------------------------------------------------------

    def take(self) -> Sections:
        """Sections for this process."""
        if self._pid != os.getpid():
            # A fork: brothers have the same generator, and would give the same ids.
            self._pid = os.getpid()
            self._generator = _generator(self.directory.path / IDENTITY)
        self._own = {}
        for number in range(SETS_MAX):
            sections = self._take_set(number)
            if sections is not None:
                return sections
        raise LimitReached(what="processes that record events", limit=SETS_MAX)

    def _take_set(self, number: int) -> Sections | None:
        """A whole set; None if another process has it, or it holds events and is not as it should be now."""
        wanted = [
            (f"{number}-normal", "normal", self.sizes.capacity),
            (f"{number}-initialisation", "initialisation", self.sizes.initialisation_capacity),
            *((f"{number}-nested-{level}", "nested", NESTED_CAPACITY) for level in range(1, NESTED + 1)),
        ]
        if self.directory.is_alive(wanted[0][0]):  # the usual case: no reason to wait for its lock
            return None
        taken: list[Section] = []
        for name, kind, capacity in wanted:
            # Whoever has the first of a set has the others, when an engine that recovers them is done with it.
            section = self._section(name, kind, capacity, fitting=True, wait_s=SET_S_MAX if taken else 0.0)
            if section is None:
                for one in taken:
                    del self._own[one.name]
                    one.close()
                return None
            taken.append(section)
        return Sections(taken[0], taken[1], tuple(taken[2:]))

    def take_shell(self, wait_s: float) -> Section:
        """The section of the command line, for a moment. Raises `SectionInUse` if others keep it for too long."""
        section = self._section(SHELL, "normal", SHELL_CAPACITY, wait_s=wait_s)
        if section is None:
            raise SectionInUse(section=SHELL)
        return section

    def take_named(self, name: str, kind: str, capacity: int) -> Section:
        """A section of this name that only one process of the host can have: a partner's, a multiplexer's."""
        section = self._section(name, kind, capacity)
        if section is None:
            raise SectionInUse(section=name)
        return section

    def _section(
        self, name: str, kind: str, capacity: int, *, fitting: bool = False, wait_s: float = 0.0
    ) -> Section | None:
        """The section, taken or made; None if another process has it for longer than `wait_s`.

        `fitting`: with the sizes and the durability of now. One that has others is made anew if it is empty; if not
        it is left to the engine (None), which removes it when its events are delivered.
        """
        foreign = self._foreign.pop(name, None)
        if foreign is not None:
            foreign.close()
        options = self.sizes.options(kind, capacity)
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                section = self.directory.adopt(name)
            except SectionDamaged:
                if not fitting:
                    raise
                return None  # the engine reports it; recording goes on elsewhere
            if section is not None and fitting and not _fits(section, options):
                if not self.directory.remove(section):
                    section.close()
                    return None
                section = None
            if section is None:
                section = self._create(name, options)
            if section is not None:
                self._own[name] = section
                return section
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(0.005)

    def _create(self, name: str, options: SectionOptions) -> Section | None:
        """One process after the other: two that make the same file would each believe to have it."""
        with _locked(self.directory.path / IDENTITY):
            if self.directory.path_of(name).exists():
                return None
            return self.directory.create(name, self._next_producer(), options)

    def clean(self) -> None:
        """Remove what dead processes left unfinished; not while somebody is at it."""
        with _locked(self.directory.path / IDENTITY):
            self.directory.clean()

    def _next_producer(self) -> int:
        return self._generator.next_producer()

    # --- for delivering -----------------------------------------------------------------------------

    def found(self) -> list[tuple[Section, bool]]:
        """All sections there are now, each with whether this process writes it."""
        names = self.directory.names()
        for name in [name for name in self._foreign if name not in names]:
            self._foreign.pop(name).close()
        for name in names:
            if name not in self._own and name not in self._foreign:
                self._open(name)
        return [(each, True) for each in self._own.values()] + [(each, False) for each in self._foreign.values()]

    def _open(self, name: str) -> None:
        """To be read. What a dead process left is recovered first."""
        try:
            adopted = self.directory.adopt(name)
            if adopted is not None:
                adopted.close()
            self._foreign[name] = self.directory.look(name)
            self.unreadable.pop(name, None)
        except (OSError, ClarionError) as error:
            self.unreadable[name] = str(error)

    def is_alive(self, section: Section) -> bool:
        """A process writes it."""
        return section.name in self._own or self.directory.is_alive(section.name)

    def is_orphan(self, section: Section) -> bool:
        """Nobody writes it any more."""
        return section.name in self._foreign and section.name != SHELL and not self.directory.is_alive(section.name)

    def remove(self, section: Section) -> bool:
        """An orphan that is empty. False if somebody has taken it meanwhile, or it is not empty."""
        name = section.name
        adopted = self.directory.adopt(name)
        if adopted is None:
            return False
        if not self.directory.remove(adopted):
            adopted.close()
            return False
        with contextlib.suppress(KeyError):
            self._foreign.pop(name).close()
        return True

    def close_foreign(self) -> None:
        """Let go what belongs to others."""
        while self._foreign:
            self._foreign.popitem()[1].close()


def _fits(section: Section, options: SectionOptions) -> bool:
    ring_bytes = max(aligned(options.bytes_, PAGE_BYTES), ring_bytes_min(options.event_bytes_max))
    found = section.durability, section.event_bytes_max, section.ring_bytes
    return found == (options.durability, options.event_bytes_max, ring_bytes)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """A descriptor of the file, which no other process has locked meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _generator(path: Path) -> ids.IdGenerator:
    """Producer ids of this directory: its identity is chosen once, by chance, and each start is remembered."""
    with _locked(path) as descriptor:
        held = os.pread(descriptor, 4096, 0)
        try:
            identity = msgspec.json.decode(held, type=_Identity)
        except msgspec.MsgspecError:
            identity = _Identity(secrets.randbelow(ids.SITE_MAX + 1), secrets.randbelow(ids.NODE_MAX + 1), 0)
        generator = ids.IdGenerator.begin(identity.site, identity.node, time.time_ns() // 1_000_000, identity.start_ms)
        identity.start_ms = generator.start_ms
        encoded = msgspec.json.encode(identity)
        os.pwrite(descriptor, encoded.ljust(max(len(held), len(encoded))), 0)
        os.fsync(descriptor)
        return generator
