"""Recovered is not yet durable: what makes the recovered tail so.

Guarantees
    After `make_durable` every byte of the log that counts is on the disk. After a SIGKILL the page cache
    may show bytes that never reached it; without this, an effect of such a byte could leave the process
    and the next loss of power take the byte back.

Rules
    1. Writes only bytes that are there already, except headers that were damaged or are discarded.
    2. Any error ends the start: nothing may go on with a log that is not certain.
"""

from __future__ import annotations

from clarion.journal.layout import SEGMENT_HEADER_BYTES, SegmentHeader, header_page, ordinal_of_end
from clarion.journal.recovery import Recovered
from clarion.journal.scan import FoundSegment
from clarion.journal.store import Store
from clarion.journal.writer import Writer


def make_durable(store: Store, writer: Writer, recovered: Recovered, *, sync: bool) -> None:
    """Write again what is not known to be durable, repair headers, sync every file."""
    plan = recovered.plan
    segment_bytes = store.segment_bytes
    last = ordinal_of_end(plan.cut, segment_bytes)
    # Discarded segments lose their header before the next incarnation writes: otherwise they would be
    # the newest segments at the next recovery, and their trailers speak of old checkpoints.
    erased = list(recovered.scanner.stale)
    for ordinal, segment in recovered.scanner.segments.items():
        if ordinal > last:
            erased.append(segment.file)
            continue
        base = ordinal * segment_bytes
        start = max(plan.durable, base + SEGMENT_HEADER_BYTES)
        end = min(plan.cut, base + segment_bytes)
        if segment.header_damaged:
            writer.write_fully(segment.file, 0, [_page(recovered, segment, segment_bytes)])
        elif start < end:
            writer.write_fully(segment.file, 0, [store.read(segment.file, 0, SEGMENT_HEADER_BYTES)])
        if start < end:
            writer.write_fully(segment.file, start - base, [store.read(segment.file, start - base, end - start)])
    for file in erased:
        writer.write_fully(file, 0, [bytes(SEGMENT_HEADER_BYTES)])
    if sync:
        # Also files whose bytes are known: they may have been written under "process" durability.
        for file in store.files():
            writer.sync_file(file)


def _page(recovered: Recovered, segment: FoundSegment, segment_bytes: int) -> bytes:
    return header_page(SegmentHeader(segment.incarnation, segment_bytes, segment.ordinal, recovered.checkpoints))
