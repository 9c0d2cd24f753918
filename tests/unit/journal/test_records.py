"""Records, headers, hints and trailers: what is encoded is decoded, what is damaged is not (A-05)."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.journal import MemoryStore
from clarion.journal.layout import (
    Checkpoints,
    Hint,
    SegmentHeader,
    decode_hints,
    decode_segment_header,
    encode_hint,
    encode_trailer,
    group_end,
    header_page,
    pack_mirror,
    parse_mirror,
    parse_trailer,
)
from clarion.journal.record import Kind, parse, salvage, span_of

from .journal_harness import SEGMENT_BYTES, encode, open_owner

KINDS = st.integers(1, 255)
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@given(KINDS, U64, U32, U64, st.binary(max_size=60), st.binary(max_size=300))
def test_a05_a_record_reads_back(
    kind: int, generation: int, incarnation: int, index: int, head: bytes, body: bytes
) -> None:
    data = memoryview(encode(kind, generation, incarnation, index, head, body))
    assert len(data) == span_of(len(head), len(body)) and len(data) % 8 == 0
    raw = parse(data, 0, generation)
    assert raw is not None
    assert (raw.kind, raw.incarnation, raw.index, raw.head) == (kind, incarnation, index, head)
    assert data[raw.body_from : raw.body_to] == body and raw.end == len(data)
    assert parse(data, 0, generation ^ 1) is None  # a ghost of an earlier life of the segment


@given(st.binary(max_size=20), st.binary(max_size=100), st.data())
def test_a05_one_flipped_bit_is_always_seen(head: bytes, body: bytes, data: st.DataObject) -> None:
    record = bytearray(encode(40, 7, 1, 5, head, body))
    bit = data.draw(st.integers(0, (36 + len(head) + len(body)) * 8 - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert parse(memoryview(record), 0, 7) is None


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=80)), max_size=12), st.integers(0, 2**32))
def test_a05_salvage_finds_every_whole_record_among_rubbish(records: list[tuple[bytes, bytes]], seed: int) -> None:
    rng = Random(seed)
    data = bytearray()
    places = []
    for number, (head, body) in enumerate(records):
        data += rng.randbytes(8 * rng.randrange(4))
        places.append((len(data), number))
        data += encode(40, 3, 1, number, head, body)
    data += rng.randbytes(24)
    found = [(offset, raw.index) for offset, raw in salvage(memoryview(data), 0, 3)]
    assert found == places


@given(U32, U64, U64, U64, st.integers(0, 4095), st.integers(0, 7))
def test_a05_a_segment_header_survives_one_flip(
    incarnation: int, generation: int, newest: int, older: int, at: int, bit: int
) -> None:
    header = SegmentHeader(incarnation, 65_536, generation, Checkpoints(newest, older))
    page = bytearray(header_page(header))
    page[at] ^= 1 << bit
    assert decode_segment_header(memoryview(page)) == header


def test_a05_a_hint_counts_only_in_its_generation() -> None:
    hint = Hint(3, 9, 9 * 65_536 + 8192, Checkpoints(5, 4), 77)
    page = bytearray(4096)
    page[512:1024] = encode_hint(hint)
    assert decode_hints(memoryview(page), 9) == [hint]
    assert decode_hints(memoryview(page), 8) == []
    page[530] ^= 4
    assert decode_hints(memoryview(page), 9) == []


@given(st.lists(st.tuples(KINDS, U64, st.binary(max_size=40), st.integers(0, 5_000)), max_size=10))
def test_a05_a_trailer_holds_second_copies(records: list[tuple[int, int, bytes, int]]) -> None:
    base, start = 9 * 65_536, 9 * 65_536 + 4096
    mirror: list[bytes] = []
    for number, (kind, index, head, body_bytes) in enumerate(records):
        mirror += (pack_mirror(kind, number * 8, len(head), body_bytes, index), head)
    mirror_bytes = sum(map(len, mirror))
    offset = 4096 + 8 * len(records)
    encoded = b"".join(encode_trailer(9, 3, start, start, start - 512, Checkpoints(2, 1), 55, mirror, mirror_bytes))
    assert group_end(offset, mirror_bytes) == (offset + len(encoded) + 511) // 512 * 512
    data = memoryview(bytes(offset) + encoded)
    found = parse_trailer(data, offset, 9, base)
    assert found is not None and found.end == base + group_end(offset, mirror_bytes)
    assert (found.group_start, found.durable, found.index_last) == (start, start - 512, 55)
    raw = parse(data, offset, 9)
    assert raw is not None
    body = bytes(data[raw.body_from : raw.body_to])
    assert encode(Kind.TRAILER, 9, 3, 0, b"", body).startswith(encoded)  # a record like any other
    copies = [(copy.kind, copy.index, copy.head, copy.body_bytes) for copy in parse_mirror(data, raw, start)]
    assert copies == records


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 300), st.booleans()), max_size=60))
def test_a05_a_journal_is_a_list(script: list[tuple[int, int, bool]]) -> None:
    """The naive model: what was appended is what is found, in order, in place."""
    store = MemoryStore(SEGMENT_BYTES)
    owner = open_owner(store)
    for number, (body_bytes, head_bytes, run) in enumerate(script):
        owner.append(bytes([number]) * body_bytes, bytes([number + 1]) * head_bytes, reserve=True)
        if run or number % 3 == 0:
            owner.committer.run()
    owner.committer.run()
    assert owner.durable == owner.appended
    for place, (index, head, body) in zip(owner.locations, owner.appended, strict=True):
        (record,) = owner.journal.read(place.position, place.span)
        assert record.body is not None
        assert (record.index, record.head, bytes(record.body)) == (index, head, body)
    assert open_owner(store).found.entries == owner.appended


def test_a05_recycled_segments_never_bring_old_records_back() -> None:
    store = MemoryStore(SEGMENT_BYTES, files_max=8)
    owner = open_owner(store)
    recycled: list[str] = []
    owner.journal._probe = recycled.append
    for round_number in range(40):
        owner.append(b"old" * 300, b"%d" % round_number, reserve=True)
        for _ in range(6):
            owner.append(bytes(1_000), b"filler", reserve=True)
        owner.committer.run()
        owner.checkpoint([b"%d" % len(owner.appended)])
        owner.committer.run()
        found = open_copy(store)
        assert found == owner.appended[len(owner.appended) :]
    assert recycled.count("journal.recycle") > 20


def open_copy(store: MemoryStore) -> list[tuple[int, bytes, bytes | None]]:
    copy = MemoryStore(SEGMENT_BYTES, files_max=8)
    copy.content = [bytearray(content) for content in store.content]
    return open_owner(copy).found.entries
