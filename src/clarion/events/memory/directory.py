"""The directory of one event system on a host: sections of all its processes, alive and dead.

    engine.lock          who delivers: one process at a time
    sections/NAME.ring   one per section, with NAME.mark; locked by the process that writes it
    spare/NAME.ring      made in advance for forked children, which take one by giving it another name

Guarantees
    1. A section whose owner is gone is found, and taken by one process only. It is removed only when it is empty.
    2. A forked child gets a section of its own without allocating: the spare was opened, and mapped, by its parent.

Rules
    1. Locks belong to processes, not to forks of them (`files.FileLock`).
    2. Producer ids come from the caller, who knows site and node; each ring gets its own, spare ones too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from clarion.errors import SectionInUse
from clarion.events.memory.files import MARK_SUFFIX, PENDING_SUFFIX, RING_SUFFIX, FileLock, MappedFile, is_free
from clarion.events.memory.ring import Section, new_pages
from clarion.ids import format_id
from clarion.journal.options import Durability

ENGINE_LOCK = "engine.lock"


class SectionOptions(NamedTuple):
    """What a new section is made with."""

    kind: str
    bytes_: int
    event_bytes_max: int
    durability: Durability


class Directory:
    """Made by `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sections_path = path / "sections"
        self.spare_path = path / "spare"
        self._engine: FileLock | None = None
        self._spares: list[tuple[str, Section, FileLock]] = []
        """Kind, section, and the lock that keeps it from being cleaned away."""

    @classmethod
    def open(cls, path: Path | str) -> Directory:
        """Makes the directory if there is none."""
        directory = cls(Path(path))
        for each in (directory.path, directory.sections_path, directory.spare_path):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(directory.path / ENGINE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return directory

    def close(self) -> None:
        """Let the engine lock go, and remove the spare sections that this process made."""
        self.leave_engine()
        for _, section, reserved in self._spares:
            if reserved.is_held:
                section.file.remove()  # type: ignore[attr-defined]
            section.close()
            reserved.release()
        self._spares.clear()

    # --- the engine ---------------------------------------------------------------------------------

    def try_engine(self) -> bool:
        """Become the process that delivers; False if another one is."""
        if self._engine is None or not self._engine.is_held:
            self._engine = None
            with contextlib.suppress(BlockingIOError):
                self._engine = FileLock(self.path / ENGINE_LOCK)
        return self._engine is not None

    def leave_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.release()

    # --- sections -----------------------------------------------------------------------------------

    def path_of(self, name: str) -> Path:
        return self.sections_path / f"{name}{RING_SUFFIX}"

    def create(self, name: str, producer: int, options: SectionOptions) -> Section:
        """A new section that this process writes."""
        return Section.create(
            self.path_of(name),
            name=name,
            kind=options.kind,
            producer=producer,
            bytes_=options.bytes_,
            event_bytes_max=options.event_bytes_max,
            durability=options.durability,
        )

    def names(self) -> list[str]:
        """Of all sections, of this and other processes, alive or dead."""
        return sorted(path.stem for path in self.sections_path.glob(f"*{RING_SUFFIX}"))

    def is_alive(self, name: str) -> bool:
        """Whether a process writes this section. One that is gone altogether is not alive."""
        path = self.path_of(name)
        return not is_free(path) and path.exists()

    def look(self, name: str) -> Section:
        """A section that another process writes, to read it and move its head. Raises `FileNotFoundError`."""
        return Section.open(self.path_of(name), writable=False)

    def adopt(self, name: str) -> Section | None:
        """A section whose owner is gone, recovered and locked; None if the owner is alive, or the section is gone."""
        try:
            return Section.open(self.path_of(name), writable=True)
        except (SectionInUse, FileNotFoundError):
            return None

    def remove(self, section: Section) -> bool:
        """Remove and close a section that this process owns or has adopted; False if it is not empty."""
        if section.first_sequence < section.next_sequence:
            return False
        file = section.file
        assert isinstance(file, MappedFile)
        assert file.lock is not None and file.lock.is_held, "only who has its lock may remove a section"
        file.remove()
        section.close()
        return True

    # --- spare sections -----------------------------------------------------------------------------

    def fill_spares(self, count: int, options: SectionOptions, next_producer: Callable[[], int]) -> None:
        """Have this many spare sections of a kind for children of this process."""
        self._spares = [spare for spare in self._spares if spare[1].file.path.exists()]  # type: ignore[attr-defined]
        while sum(kind == options.kind for kind, _, _ in self._spares) < count:
            self._spares.append(self._make_spare(options, next_producer()))

    def _make_spare(self, options: SectionOptions, producer: int) -> tuple[str, Section, FileLock]:
        path = self.spare_path / f"{format_id(producer)}{RING_SUFFIX}"
        header, pages = new_pages(options.kind, producer, options.bytes_, options.event_bytes_max, options.durability)
        file = MappedFile.create(path, header.ring_bytes, pages, locked=False)
        section = Section.attach(path.stem, file, writable=True)
        return options.kind, section, FileLock(path.with_suffix(MARK_SUFFIX))

    def take_spare(self, kind: str, name: str) -> Section | None:
        """A spare section for this process, under this name; None if there is none left. Needs one descriptor."""
        for number, (found, section, reserved) in enumerate(self._spares):
            if found != kind:
                continue
            file = section.file
            assert isinstance(file, MappedFile)
            try:
                lock = FileLock(file.path)
            except (BlockingIOError, FileNotFoundError):
                continue  # a brother has it
            try:
                file.move(self.path_of(name))
            except FileNotFoundError:
                lock.release()
                continue
            file.lock = lock
            reserved.release()
            del self._spares[number]
            section.take_over(name)
            return section
        return None

    def clean(self) -> None:
        """Remove what dead processes left behind that holds no event: spare sections, files never finished."""
        for mark in self.spare_path.glob(f"*{MARK_SUFFIX}"):
            _remove_if_free(mark.with_suffix(RING_SUFFIX), mark)
        for folder in (self.sections_path, self.spare_path):
            for pending in folder.glob(f"*{PENDING_SUFFIX}"):
                _remove_if_free(pending)


def _remove_if_free(path: Path, *others: Path) -> None:
    """Remove files if nobody has the lock of any of them."""
    with contextlib.ExitStack() as stack, contextlib.suppress(BlockingIOError):
        for each in (*others, path):
            with contextlib.suppress(FileNotFoundError):
                stack.callback(FileLock(each).release)
        for each in (path, *others):
            each.unlink(missing_ok=True)
