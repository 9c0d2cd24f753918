"""All bodies of a batch at once are what each of them is by itself, whatever their sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clarion.wire.batch import Batch, encode
from clarion.wire.bodies import bodies_of

ALIKE = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=9)
)
ANY = st.lists(st.binary(max_size=40), min_size=1, max_size=9)


@given(ALIKE | ANY, st.sampled_from(["none", "alike", "any"]), st.data())
def test_b04_bodies_of_a_batch_and_of_its_slices(bodies: list[bytes], heads: str, data: st.DataObject) -> None:
    headers = None
    if heads != "none":
        headers = [bytes([1]) * (5 if heads == "alike" else data.draw(st.integers(0, 9))) for _ in bodies]
    batch = Batch.parse(encode(b"queue:q", 1_001, bodies, headers))
    assert bodies_of(batch) == bodies
    first = data.draw(st.integers(0, len(bodies) - 1))
    part = Batch.parse(b"".join(batch.slice_parts(first, len(bodies))))
    assert bodies_of(part) == bodies[first:]
    assert all(type(body) is bytes for body in bodies_of(part))
