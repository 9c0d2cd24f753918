"""Events that other processes of the host recorded: their sections are kept at the partner as well.

Theory of operation
    A process with a partner mirrors its own rings while it records. Others of its host, and the command line, record
    in sections of their own, which they do not share; the one that has the partner reads those and sends what the
    partner lacks, a moment after it was recorded. Only a section that holds something needs a link.

Guarantee: the partner is told what is settled of every section, also of one that was removed meanwhile.

Rule: one thread, the pair's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from clarion import ids, limits
from clarion.errors import ClarionError
from clarion.events.memory import Section
from clarion.events.memory.directory import Directory

from .keeper import Keeper
from .mirror import Mirror

LOOK_S = 0.2
COPIES_MAX = limits.EVENT_LINK_CONNECTIONS_MAX // 2
"""At the same time: each has a link of its own, and the partner has so many."""
FLOORS_KEPT = 1_000
COPIED_KINDS = frozenset({"normal", "initialisation", "nested"})


class Copies:
    """The sections of a directory that this process does not write."""

    def __init__(self, directory: Directory, keeper: Keeper, is_own: Callable[[str], bool], identity: int) -> None:
        """`identity`: any producer id of this directory."""
        self._directory = directory
        self._keeper = keeper
        self._is_own = is_own
        self._identity = ids.node_of(identity)
        self._sections: dict[str, Section] = {}
        self._inodes: dict[str, int] = {}
        self._mirrors: dict[str, Mirror] = {}
        self._floors: dict[int, int] = {}
        self._leaving: list[tuple[Mirror, Section]] = []
        """The keeper may still read them."""
        self._unread = True
        """There is a section that could not be opened."""
        self._look_s = 0.0

    def look(self) -> None:
        """Sections come and go, fill and become empty."""
        now_s = time.monotonic()
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        self._leaving = [(mirror, section) for mirror, section in self._leaving if not self._left(mirror, section)]
        names = set(self._directory.names())
        for name in [name for name, section in self._sections.items() if self._is_gone(name, section, names)]:
            self._let_go(name)
        self._unread = False
        for name in sorted(names - set(self._sections)):
            if not self._is_own(name):
                self._open(name)
        for name, section in self._sections.items():
            section.follow()
            holds = section.first_sequence < section.next_sequence
            mirror = self._mirrors.get(name)
            if holds and mirror is None and len(self._mirrors) < COPIES_MAX:
                self._mirrors[name] = self._keeper.copy(section)
            elif not holds and mirror is not None:
                self._keeper.remove(mirror)
                del self._mirrors[name]
            self._note(section)

    def floors(self) -> Iterable[tuple[int, int]]:
        """(producer, what is settled below) of these sections, and of the last that were removed."""
        return list(self._floors.items())

    def settle(self, producers: Iterable[tuple[int, int]], own: Iterable[int]) -> bool:
        """The partner holds these, each up to a sequence. What has no section here any more is settled: a section
        goes only when it is empty. Those of a directory that was lost have another identity, and stay.

        False if that cannot be told now."""
        if self._unread:
            return False
        there = {*own, *(section.producer for section in self._sections.values())}
        for producer, end in producers:
            if producer not in there and ids.node_of(producer) == self._identity:
                self._floors[producer] = max(end, self._floors.get(producer, 0))
        return True

    def close(self) -> None:
        """After the keeper was closed."""
        for section in [*self._sections.values(), *(section for _, section in self._leaving)]:
            section.close()
        self._sections.clear()
        self._leaving.clear()

    def _is_gone(self, name: str, section: Section, names: set[str]) -> bool:
        """Removed, or made anew, or ours since."""
        if name not in names or self._is_own(name):
            return True
        try:
            return self._directory.path_of(name).stat().st_ino != self._inodes[name]
        except OSError:
            return True

    def _left(self, mirror: Mirror, section: Section) -> bool:
        if self._keeper.has(mirror):
            return False
        section.close()
        return True

    def _open(self, name: str) -> None:
        try:
            inode = self._directory.path_of(name).stat().st_ino
            section = self._directory.look(name)
        except (OSError, ClarionError):
            self._unread = True  # or it is gone again; if not, the engine reports it
            return
        if section.kind in COPIED_KINDS:
            self._sections[name], self._inodes[name] = section, inode
        else:
            section.close()

    def _note(self, section: Section) -> None:
        self._floors.pop(section.producer, None)
        self._floors[section.producer] = section.first_sequence
        while len(self._floors) > FLOORS_KEPT:
            del self._floors[next(iter(self._floors))]

    def _let_go(self, name: str) -> None:
        section = self._sections.pop(name)
        mirror = self._mirrors.pop(name, None)
        if mirror is not None:
            self._keeper.remove(mirror)
        if self._is_own(name):
            self._floors.pop(section.producer, None)
        else:
            self._floors[section.producer] = section.next_sequence
        if mirror is not None:
            self._leaving.append((mirror, section))
        else:
            section.close()
