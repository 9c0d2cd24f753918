"""Opening persistent memory, and making the state of it again: checkpoint plus replay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from clarion.core.entries import STAGED_PAGE, Kind, decode_moved, decode_moved_fragment
from clarion.core.state import State
from clarion.errors import ConfigurationError, JournalError
from clarion.instruments import Registry
from clarion.journal import FileStore, Journal, JournalOptions, Probe, Record, Recovery, ThreadCommitter
from clarion.journal import Kind as JournalKind
from clarion.nodes.logging import ERROR, INFO, WARNING, event
from clarion.settings import Settings

OpenJournal = Callable[[JournalOptions, Probe], tuple[Journal, Recovery]]
_log = logging.getLogger("clarion.mm")
_PROBES = (
    ("journal.before_write", "a group is about to be written"),
    ("journal.after_write", "a group is written, not synced"),
    ("journal.before_sync", "a group is about to be synced"),
    ("journal.after_sync", "a group is durable, nobody knows yet"),
    ("journal.checkpoint_begin", "a checkpoint begins"),
    ("journal.checkpoint_end", "a checkpoint is complete"),
    ("journal.recycle", "a segment is about to be reused"),
)


def options_of(settings: Settings) -> JournalOptions:
    """What the settings say of the journal."""
    wanted = settings.journal
    return JournalOptions(durability=wanted.durability, bytes_max=wanted.bytes_max, segment_bytes=wanted.segment_bytes)


def probe_of(registry: Registry) -> tuple[Probe, Callable[[], bool]]:
    """The test points of the journal, and whether none of those on the way of a commit is armed."""
    points = {name: registry.test_point(name, meaning=meaning) for name, meaning in _PROBES}
    before_write, after_write, before_sync, after_sync, *_ = points.values()

    def probe(name: str) -> None:
        point = points[name]
        if point.armed:
            point.fire()

    def is_clear() -> bool:
        return not (before_write.armed or after_write.armed or before_sync.armed or after_sync.armed)

    return probe, is_clear


def files_of(settings: Settings, loop: asyncio.AbstractEventLoop) -> OpenJournal:
    """Opens the files of the data directory. Raises `JournalError` and `ConfigurationError`s."""
    path = settings.node.data_path / "journal"

    def opened(options: JournalOptions, probe: Probe) -> tuple[Journal, Recovery]:
        try:
            store = FileStore.open(
                path,
                durability=options.durability,
                segment_bytes=options.segment_bytes,
                bytes_max=options.bytes_max,
            )
            try:
                return Journal.open(store, options, ThreadCommitter(loop), probe=probe)
            except BaseException:
                store.close()
                raise
        except (NotADirectoryError, FileExistsError) as error:
            raise ConfigurationError(detail=f"the data directory {path}: {error.strerror}") from error
        except OSError as error:
            raise JournalError(detail=f"{path}: {error.strerror or error}") from error

    return opened


def replay(state: State, recovery: Recovery) -> None:
    """The state as it was: on a worker thread, before anybody else sees it."""
    state.load(recovery.checkpoint_parts)
    for record in recovery.records:
        if record.kind == JournalKind.MOVED:
            _replay_move(state, record)
        elif record.kind >= Kind.PUBLISH:
            span = 0 if record.body is None else record.span
            state.apply(record.index, record.kind, record.head, record.position, span)
    state.count_streams()


def _replay_move(state: State, record: Record) -> None:
    """Compaction copied something: it is where the copy is."""
    if record.body is None:
        return
    fragment = decode_moved_fragment(record.head)
    if fragment is not None:
        stream = state.streams.get(fragment[0])
        if stream is not None:
            stream.move(fragment[1], record.position, record.span)
        return
    identity, first, _ = decode_moved(record.head, record.body)
    destination = state.destinations.get(identity)
    if destination is None:
        return
    if first & STAGED_PAGE:
        destination.stages.move(first & ~STAGED_PAGE, record.position, record.span)
    else:
        destination.pages.move(first, record.position, record.span)


def retain(state: State, journal: Journal) -> None:
    """Tell the journal what of it lives."""
    for destination in state.destinations.values():
        for page in destination.pages:
            journal.retain(page.position, page.live)
        for staged in destination.stages:
            journal.retain(staged.position, staged.span)
    for stream in state.streams:
        for position, size in stream.spaces(state.segment_bytes):
            journal.retain(position, size)


def report(state: State, journal: Journal, recovery: Recovery, seconds: float) -> None:
    """Log what was found: damage first."""
    for lost in recovery.lost:
        event(_log, ERROR, "journal_damaged", position_from=lost.position_from, position_to=lost.position_to)
    for destination in state.destinations.values():
        if recovery.lost and destination.lost_messages:
            event(_log, ERROR, "messages_lost", destination=str(destination), count=destination.lost_messages)
    for warning in journal.status().warnings:
        event(_log, WARNING, "journal_warning", warning=warning)
    event(_log, INFO, "mm_ready", destinations=len(state.destinations), ms=round(seconds * 1000))
