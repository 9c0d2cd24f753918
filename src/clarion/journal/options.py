"""What a journal is told when it is opened, and what it tells about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from clarion import limits

Durability = Literal["power", "process"]
Probe = Callable[[str], None]


@dataclass(slots=True, frozen=True)
class JournalOptions:
    durability: Durability = "power"
    """`power`: written and synced, survives the machine. `process`: copied into mapped memory,
    survives SIGKILL but neither a crash of the operating system nor a loss of power."""
    bytes_max: int = limits.JOURNAL_BYTES_MAX_DEFAULT
    checkpoint_log_bytes: int = limits.CHECKPOINT_LOG_BYTES_MAX
    checkpoint_log_entries: int = limits.CHECKPOINT_LOG_ENTRIES
    segment_bytes: int | None = None
    """Of a new journal; None lets the store choose by the space it has."""


@dataclass(slots=True, frozen=True)
class JournalStatus:
    segments: int
    free_segments: int
    segment_bytes: int
    bytes_total: int
    bytes_live: int
    bytes_reserve: int
    room: int
    tail: int
    durable: int
    checkpoint_newest: int
    checkpoint_older: int
    commits: int
    commits_here: int
    """Those among them for which the appending thread waited itself."""
    commit_us_p50: int
    commit_us_p99: int
    syncs: int
    growth_blocked: bool
    write_blocked: bool
    """The file system took no write although the space was allocated; the writer waits."""
    warnings: list[str] = field(default_factory=list)
