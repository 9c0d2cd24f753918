"""The order of a replay, its chunks and its places, against a plain model (D-09)."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadArgument
from clarion.message import Headers, encode_headers
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from clarion.pipelines.archive.reading import Wanted, micros
from clarion.pipelines.replay import Pace
from clarion.pipelines.replay_sending import pieces, target, without
from clarion.pipelines.replaying import COLUMNS, Ordered, merged, runs_of
from clarion.spark import schema
from tests.unit.pipelines.archive_rows import DAY, Row, append

DESTINATIONS = ("queue:b", "topic:a")
ROWS = st.builds(Row, st.sampled_from(DESTINATIONS), st.integers(1, 80), st.integers(0, 2))
BATCHES = st.lists(ROWS, min_size=1, max_size=60, unique_by=lambda row: row[:2]).flatmap(
    lambda rows: st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)).map(
        lambda where: [[row for row, batch in zip(rows, where, strict=True) if batch == number] for number in range(4)]
    )
)


def ordered(files: LocalFiles, wanted: Wanted, **more: Any) -> Ordered:
    chosen = wanted.chosen(Log(files).latest().files.values())
    return Ordered(chosen, wanted, lambda path: str(files.root / path), **more)


@settings(max_examples=15, deadline=None)
@given(BATCHES, st.integers(1, 30), st.integers(1, 4_000), st.booleans(), st.data())
def test_d09_chunks_from_any_place_are_exactly_the_wanted_rows_in_order(
    batches: list[list[Row]], rows_max: int, bytes_max: int, by_time: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = LocalFiles(folder)
        for batch in filter(None, batches):
            append(files, batch)
        since = micros(DAY + timedelta(days=1), "since") if by_time else None
        wanted = Wanted(since_us=since)
        rows = ordered(files, wanted)
        model = [
            (row.destination, row.sequence)
            for row in sorted((row for batch in batches for row in batch), key=lambda row: row[:2])
            if not by_time or row.day >= 1
        ]
        chunks = list(rows.chunks(0, rows_max, bytes_max))
        got = [keys(chunk.rows) for chunk in chunks]
        assert [key for several in got for key in several] == model
        assert all(len(several) <= rows_max for several in got)
        ends = [chunk.end for chunk in chunks]
        assert ends == sorted(set(ends)) and ends[-1:] == ([rows.end] if rows.end else [])
        if chunks:
            resumed = data.draw(st.integers(0, len(chunks) - 1))
            rest = [key for chunk in rows.chunks(ends[resumed], 7, 1 << 20) for key in keys(chunk.rows)]
            assert rest == [key for several in got[resumed + 1 :] for key in several]


def keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["destination"].to_pylist(), table["sequence"].to_pylist(), strict=True))


def test_d09_only_selected_rows_are_sent_and_places_stay_the_same(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    append(files, [Row("topic:a", number) for number in range(1, 10_001)])
    append(files, [Row("topic:a", number) for number in range(10_001, 10_101)])
    first, second = sorted(Log(files).latest().files.values(), key=lambda file: file.first)
    selection = {first.path: np.array([0, 4_095, 4_096, 9_999])}
    rows = ordered(files, Wanted(), selection=selection)
    chunks = list(rows.chunks(0, 2, 1 << 20))
    assert [chunk.rows["sequence"].to_pylist() for chunk in chunks] == [[1, 4_096], [4_097, 10_000], []]
    assert [chunk.end for chunk in chunks] == [4_096, 10_000, 10_100]
    assert second.path not in selection and list(rows.chunks(10_100, 2, 1 << 20)) == []


def test_d09_a_destination_made_again_comes_after_its_earlier_life(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for batch, sequences in enumerate([(5, 6), (7, 8), (1, 2), (3, 4, 5)]):
        append(files, [Row("topic:a", number) for number in sequences], "query", batch)
    assert [len(run.files) for run in runs_of(Log(files).latest().files.values())] == [1, 1, 1, 1]
    (chunk,) = ordered(files, Wanted()).chunks(0, 100, 1 << 20)
    assert chunk.rows["sequence"].to_pylist() == [5, 6, 7, 8, 1, 2, 3, 4, 5]


def _ascending(parts: list[list[int]]) -> list[list[int]]:
    """No value twice, cut anywhere."""
    values = sorted({value for part in parts for value in part})
    return [values[: len(values) // 2], [], values[len(values) // 2 :]]


@given(st.lists(st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=4).map(_ascending)))
def test_d09_a_merge_is_the_stable_order_of_its_sources(sources: list[list[list[int]]]) -> None:
    tables = [
        iter([pa.table({"sequence": pa.array(part, pa.int64()), "source": [number] * len(part)}) for part in parts])
        for number, parts in enumerate(sources)
    ]
    got = [(row["sequence"], row["source"]) for table in merged(tables) for row in table.to_pylist()]
    assert got == sorted((value, number) for number, parts in enumerate(sources) for part in parts for value in part)


# --- sending, without a broker ------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([4, 9]), st.booleans()), min_size=1, max_size=30))
def test_d09_pieces_cover_the_rows_in_order_and_change_where_something_does(kinds: list[tuple[str, int, bool]]) -> None:
    wanted = schema.arrow_schema(COLUMNS)
    columns = {
        "destination": [name for name, _, _ in kinds],
        "priority": [priority for _, priority, _ in kinds],
        "large": ["x" if large else None for _, _, large in kinds],
    }
    table = pa.table(
        [pa.array(columns.get(field.name, [None] * len(kinds)), field.type) for field in wanted], schema=wanted
    )
    found = list(pieces(table))
    assert [kind for low, high in found for kind in kinds[low:high]] == kinds
    for low, high in found:
        assert len(set(kinds[low:high])) == 1
    assert len(found) == 1 + sum(before != after for before, after in pairwise(kinds))


def test_d09_a_message_goes_where_it_was_or_where_it_is_told() -> None:
    assert target("topic:orders", None) == "topic:orders"
    assert target("topic:orders", "queue:all") == "queue:all"
    assert target("queue:orders.eu", "topic:again.{name}") == "topic:again.orders.eu"
    assert target("queue:_DMQ", "queue:{name}.again") == "queue:DMQ.again"
    with pytest.raises(BadArgument, match="belongs to the system"):
        target("queue:_DMQ", None)


def test_d09_headers_lose_only_what_must_go_and_are_else_the_same_bytes() -> None:
    plain = encode_headers(Headers(type="t", properties={"n": 1}))
    odd = b"\x82\xa1t\xd9\x01t\xa1z\x01"  # a longer form than ours, and a field that nobody knows
    expiring = encode_headers(Headers(type="t", expires_at_ms=5))
    assert without(plain, ["x", "d"]) is plain and without(odd, ["x"]) is odd
    assert without(None, ["x"]) is None and without(b"", ["x"]) == b""
    assert without(expiring, ["x"]) == encode_headers(Headers(type="t"))
    assert without(encode_headers(Headers(expires_at_ms=5)), ["x"]) == b""
    assert msgspec.msgpack.decode(without(b"\x82\xa1x\x05\xa1z\x01", ["x"]) or b"") == {"z": 1}


def test_d09_a_rate_is_kept_over_chunks_and_a_stop_is_heard() -> None:
    now_s = [100.0]

    def pass_by(seconds: float) -> None:
        now_s[0] += seconds

    pace = Pace(10.0, lambda: now_s[0], pass_by)
    for _ in range(5):
        assert pace.wait(4, lambda: False)
    assert now_s[0] == pytest.approx(101.6)
    assert not pace.wait(4, lambda: now_s[0] > 101.7)
    assert Pace(None).wait(1 << 40, lambda: False)
