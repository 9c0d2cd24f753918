"""Persistent memory of a node: a log in pre-allocated segments, with checkpoints and group commit.

    store = FileStore.open(path)
    journal, recovery = Journal.open(store, JournalOptions(), ThreadCommitter(loop))
    for record in recovery.records: ...      # after recovery.checkpoint_parts
    journal.start()

How it lies on the disk, byte by byte: `docs/formats/journal.md`.
"""

from clarion.journal.committer import Committer, InlineCommitter
from clarion.journal.file_store import FileStore
from clarion.journal.journal import Journal
from clarion.journal.options import Durability, JournalOptions, JournalStatus, Probe
from clarion.journal.record import ENTRY_KIND_MIN, Kind, Location, Record
from clarion.journal.recovery import LostRange, Recovery
from clarion.journal.space import Victim
from clarion.journal.store import MemoryStore, Store
from clarion.journal.threads import ThreadCommitter

__all__ = [
    "ENTRY_KIND_MIN",
    "Committer",
    "Durability",
    "FileStore",
    "InlineCommitter",
    "Journal",
    "JournalOptions",
    "JournalStatus",
    "Kind",
    "Location",
    "LostRange",
    "MemoryStore",
    "Probe",
    "Record",
    "Recovery",
    "Store",
    "ThreadCommitter",
    "Victim",
]
