"""A packed batch is byte for byte the batch that the same messages make one by one (D-02)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import limits
from clarion.client.prepacked import Packed
from clarion.errors import BadArgument, MessageTooLarge
from clarion.wire import batch as wire
from clarion.wire.batch import Batch

U32 = st.integers(0, (1 << 32) - 1)
MS = st.integers(0, 1 << 40)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 20))

    def column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    return {
        "bodies": draw(st.lists(st.binary(max_size=30), min_size=count, max_size=count)),
        "headers": column(st.binary(max_size=10)),
        "groups": column(U32),
        "time_deltas_ms": column(U32),
        "priority": draw(st.integers(0, limits.PRIORITY_MAX)),
        **{name: draw(MS) for name in ("deliver_at_ms", "expiry_first_ms", "expiry_last_ms")},
        "created_ms": draw(st.integers(1, 1 << 40)),
    }


def packed_of(said: dict[str, Any], wrap: Any) -> Packed:
    headers = said["headers"] or [b""] * len(said["bodies"])
    records = [one + two for one, two in zip(headers, said["bodies"], strict=True)]

    def column(values: Any) -> Any:
        return None if values is None else wrap(np.array(values, np.uint32))

    return Packed(
        count=len(records),
        offsets=column([0, *np.cumsum([len(one) for one in records])]),
        data=b"".join(records),
        header_sizes=column(None if said["headers"] is None else [len(one) for one in headers]),
        group_hashes=column(said["groups"]),
        time_deltas=column(said["time_deltas_ms"]),
        **{
            name: said[name]
            for name in ("priority", "deliver_at_ms", "expiry_first_ms", "expiry_last_ms", "created_ms")
        },
    )


@given(messages(), st.integers(1, (1 << 100) - 1), st.sampled_from([bytes, memoryview, np.ndarray.view]))
def test_d02_packed_is_encoded_as_any_other_batch(said: dict[str, Any], first_id: int, wrap: Any) -> None:
    packed = packed_of(said, wrap)
    packed.check()
    encoded = packed.encode(b"queue:q", first_id, 77)
    assert encoded == wire.encode(b"queue:q", first_id, **said)
    batch = Batch.parse(bytes(encoded))
    assert batch.count == packed.count
    if said["time_deltas_ms"] is not None:
        assert batch.time_deltas().tolist() == said["time_deltas_ms"]
        assert batch.time_ms(0) == said["created_ms"] + said["time_deltas_ms"][0]
    assert packed.terms.priority == said["priority"] and packed.terms.until == 0


@given(messages(), st.data())
def test_d02_what_passes_the_check_a_broker_takes_and_nothing_else_does(
    said: dict[str, Any], data: st.DataObject
) -> None:
    """One number of one column is changed: the check says what parsing the encoded batch says."""
    packed = packed_of(said, bytes)
    name = data.draw(st.sampled_from([one for one in ("offsets", "header_sizes") if getattr(packed, one) is not None]))
    column = np.frombuffer(getattr(packed, name), np.uint32).copy()
    column[data.draw(st.integers(0, len(column) - 1))] = data.draw(st.integers(0, 400) | U32)
    changed = Packed(**{**{one: getattr(packed, one) for one in packed.__struct_fields__}, name: column.tobytes()})
    try:
        changed.check()
    except BadArgument:
        passes = False
    else:
        passes = True
    try:
        Batch.parse(bytes(changed.encode(b"queue:q", 1 << 64, 1)))
    except Exception:
        parsed = False
    else:
        parsed = True
    assert passes == parsed


def test_d02_the_time_of_sending_is_filled_in_and_the_size_is_bounded() -> None:
    packed = Packed(count=1, offsets=np.array([0, 5], np.uint32), data=b"hello")
    assert Batch(packed.encode(b"queue:q", 1 << 64, 1_234)).created_ms == 1_234
    packed.check(13)
    with pytest.raises(MessageTooLarge):
        packed.check(12)
