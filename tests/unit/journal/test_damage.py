"""Damage to what was durable: reported, rebuilt as far as possible, never hiding what follows (A-05)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from clarion.errors import MetadataDamaged
from clarion.journal import FileStore, InlineCommitter, Journal, JournalOptions
from clarion.journal.layout import decode_segment_header
from clarion.testing.faulty_disk import FaultyDisk

from .journal_harness import ENTRY, SEGMENT_BYTES, Owner, body_of, fill, open_owner


def written(disk: FaultyDisk, *, checkpoint_at: int = -1, count: int = 60, seed: int = 3) -> Owner:
    """A finished journal: closed, so that even the last group is known to be durable."""
    rng = Random(seed)
    owner = open_owner(disk)
    for number in range(count):
        owner.append(body_of(rng), b"head %d" % number)
        if rng.random() < 0.4:
            owner.committer.run()
        if number == checkpoint_at:
            owner.committer.run()
            owner.checkpoint([b"%d" % len(owner.appended), bytes(2_000)])
            owner.committer.run()
    owner.journal.close()
    return owner


def compare(found: Owner, expected: Owner) -> int:
    """All metadata is there, in order; bodies are whole or missing. Gives the number missing."""
    covered = int(found.found.parts[0]) if found.found.parts else 0
    entries = found.found.entries
    assert [(index, head) for index, head, _ in entries] == [
        (index, head) for index, head, _ in expected.appended[covered:]
    ]
    missing = 0
    for (_, _, body), (_, _, wanted) in zip(entries, expected.appended[covered:], strict=True):
        assert body is None or body == wanted
        missing += body is None
    return missing


@pytest.mark.parametrize("checkpoint_at", [-1, 20])
def test_a05_one_flipped_bit_anywhere_costs_at_most_one_body(checkpoint_at: int) -> None:
    pristine = FaultyDisk(SEGMENT_BYTES)
    expected = written(pristine, checkpoint_at=checkpoint_at)
    images = [pristine.read(file, 0, SEGMENT_BYTES) for file in pristine.files()]
    bodies_lost = 0
    step = 211
    for at in range(0, len(images) * SEGMENT_BYTES, step):
        file, offset = divmod(at, SEGMENT_BYTES)
        disk = FaultyDisk(SEGMENT_BYTES)
        for image in images:
            disk.write(disk.create(), 0, [image])
        disk.flip(file, offset, at % 8)
        found = open_owner(disk)
        missing = compare(found, expected)
        assert missing <= 1
        assert sum(lost.records for lost in found.found.lost) == missing
        bodies_lost += missing
    assert bodies_lost > 5


def test_a05_a_damaged_body_keeps_its_metadata_and_its_followers() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = open_owner(disk)
    for number in range(5):
        owner.append(b"body" * 50, b"head %d" % number)
    owner.committer.run()
    owner.journal.close()
    place = owner.locations[2]
    disk.flip(0, place.position % SEGMENT_BYTES + 60)
    found = open_owner(disk)
    assert [(entry[0], entry[2] is None) for entry in found.found.entries] == [
        (1, False), (2, False), (3, True), (4, False), (5, False),
    ]  # fmt: skip
    (lost,) = found.found.lost
    assert (lost.position_from, lost.position_to) == (place.position, place.position + place.span)
    # Reading skips it as well.
    span = owner.locations[4].position + owner.locations[4].span - owner.locations[0].position
    assert [record.index for record in found.journal.read(owner.locations[0].position, span)] == [1, 2, 4, 5]


def test_a05_a_lost_stretch_of_disk_hides_nothing_behind_it() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = written(disk, count=80)
    first = owner.locations[10].position
    start = first % SEGMENT_BYTES
    file = first // SEGMENT_BYTES - 1
    disk.write(file, start, [bytes(min(5_000, SEGMENT_BYTES - start))])
    found = open_owner(disk)
    assert found.found.lost
    whole = {entry[0]: entry[2] for entry in found.found.entries if entry[2] is not None}
    hit = {place.index for place in owner.locations if first - place.span < place.position < first + 5_000}
    for index, _, body in owner.appended:
        assert whole.get(index) == body or index in hit
    assert found.journal.index_last == 80


def test_a05_a_whole_segment_lost_is_a_lost_range() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = written(disk, count=80)
    lost_file = 2
    disk.write(lost_file, 0, [bytes(SEGMENT_BYTES)])
    found = open_owner(disk)
    assert found.found.lost
    ordinal = lost_file + 1
    expected = [place.index for place in owner.locations if place.position // SEGMENT_BYTES != ordinal]
    assert [entry[0] for entry in found.found.entries] == expected
    found.append(b"goes on")
    assert found.appended[-1][0] == 81


def test_a05_a_damaged_checkpoint_falls_back_to_the_older_one() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = open_owner(disk)
    for name in (b"first", b"second", b"third"):
        owner.append(b"before " + name)
        owner.committer.run()
        owner.checkpoint([name, bytes(1_000)])
        owner.committer.run()
    owner.append(b"last")
    owner.committer.run()
    status = owner.journal.status()
    owner.journal.close()
    file, offset = divmod(status.checkpoint_newest, SEGMENT_BYTES)
    disk.flip(file - 1, offset + 600)
    found = open_owner(disk)
    assert found.found.parts[0] == b"second"
    assert [entry[2] for entry in found.found.entries] == [b"before third", b"last"]
    assert found.journal.checkpoint_due
    # And the next checkpoint keeps the one that was read as its older.
    found.checkpoint([b"fourth"])
    found.committer.run()
    assert found.journal.status().checkpoint_older == status.checkpoint_older


def test_a05_no_checkpoint_and_no_beginning_is_said() -> None:
    disk = FaultyDisk(SEGMENT_BYTES, files_max=8)
    owner = open_owner(disk)
    while owner.journal.status().checkpoint_older < 20 * SEGMENT_BYTES:
        fill(owner)
        owner.checkpoint([b"state"])
        owner.committer.run()
    status = owner.journal.status()
    owner.journal.close()
    for begin in (status.checkpoint_newest, status.checkpoint_older):
        ordinal, offset = divmod(begin, SEGMENT_BYTES)
        disk.flip(owner.journal._space.in_use[ordinal].file, offset + 9)
    with pytest.raises(MetadataDamaged):
        open_owner(disk)


def test_a05_both_headers_damaged_are_read_from_the_records_and_repaired() -> None:
    disk = FaultyDisk(SEGMENT_BYTES)
    owner = written(disk)
    for offset in (20, 2_068):
        disk.flip(1, offset)
    found = open_owner(disk)
    assert compare(found, owner) == 0 and not found.found.lost
    header = decode_segment_header(memoryview(disk.read(1, 0, 4096)))
    assert header is not None and header.generation == 2


def test_a05_a_flip_in_a_directory_is_survived(tmp_path: Path) -> None:
    store = FileStore.open(tmp_path, segment_bytes=524_288)
    committer = InlineCommitter()
    journal, recovery = Journal.open(store, JournalOptions(), committer)
    list(recovery.records)
    journal.start()
    for number in range(20):
        journal.append(ENTRY, b"%d" % number, bytes([number]) * 3_000)
    committer.run()
    journal.close()
    target = tmp_path / "00000000.segment"
    pristine = target.read_bytes()
    for at in range(0, 72_000, 2_003):
        damaged = bytearray(pristine)
        damaged[at] ^= 0x10
        target.write_bytes(damaged)
        store = FileStore.open(tmp_path)
        journal, recovery = Journal.open(store, JournalOptions(), InlineCommitter())
        records = list(recovery.records)
        assert [record.head for record in records] == [b"%d" % number for number in range(20)]
        assert sum(record.body is None for record in records) == len(recovery.lost) <= 1
        store.close()
