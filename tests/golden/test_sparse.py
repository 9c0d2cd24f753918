"""Sparse batches and their log entries, as they were first written: this version reads them, and writes them alike."""

from __future__ import annotations

import json
from typing import Any

from clarion import ids
from clarion.core.entries import Publish
from clarion.core.sparse import pack_runs, sequence_runs, unpack_runs
from clarion.wire.batch import IDS, Batch, encode
from tests.golden.make import FOLDER

KEPT: dict[str, Any] = json.loads((FOLDER / "sparse-v1.json").read_text("utf-8"))
PRODUCER = 9 << ids.SEQUENCE_BITS
SEQUENCES = [1_000, 1_003, 1_004, 1_005, 1_900, 90_000]


def batch_of_now() -> Batch:
    bodies = [f"body {sequence}".encode() for sequence in SEQUENCES]
    headers = [b"\x81\xa1t\xa1" + letter.encode() for letter in "abcdef"]
    deltas = [sequence - SEQUENCES[0] for sequence in SEQUENCES]
    return Batch.parse(
        encode(
            b"topic:golden",
            PRODUCER + SEQUENCES[0],
            bodies,
            headers,
            None,
            [0, 1, 2, 3, 5, 8],
            created_ms=1_790_000_000_000,
            id_deltas=deltas,
        )
    )


def test_a05_an_old_sparse_batch_is_understood_and_written_alike() -> None:
    batch = Batch.parse(bytes.fromhex(KEPT["batch"]))
    assert batch.flags & IDS
    assert [ids.sequence_of(batch.id_of(index)) for index in range(batch.count)] == SEQUENCES
    assert [bytes(batch.record(index)[1]) for index in range(batch.count)] == [
        f"body {sequence}".encode() for sequence in SEQUENCES
    ]
    assert bytes(batch_of_now().buffer) == bytes(batch.buffer)
    assert b"".join(batch.slice_parts(2, 5)).hex() == KEPT["slice"]
    part = Batch.parse(bytes.fromhex(KEPT["slice"]))
    assert [ids.sequence_of(part.id_of(index)) for index in range(part.count)] == SEQUENCES[2:5]


def test_a05_an_old_entry_of_a_sparse_batch_is_understood_and_written_alike() -> None:
    entry = Publish.decode(bytes.fromhex(KEPT["publish"]))
    runs = [(1_000, 1_001), (1_003, 1_006), (1_900, 1_901), (90_000, 90_001)]
    assert unpack_runs(ids.sequence_of(entry.first_id), entry.runs) == runs == sequence_runs(batch_of_now())
    now = Publish(7, len(SEQUENCES), 55, 900, PRODUCER + SEQUENCES[0], 1_790_000_000_123, runs=pack_runs(runs))
    assert entry == now and now.encode().hex() == KEPT["publish"]
