"""Ids, handles and messages of two-phase commit: bytes and texts (B-14)."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.core import two_phase as tp
from clarion.core.two_phase.messages import Message
from clarion.errors import BadArgument

T = tp.TransactionId.of(1, 1)

# --- ids ----------------------------------------------------------------------------------------------

_IDS = st.builds(tp.TransactionId.of, st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 64) - 1))


@given(_IDS, _IDS)
def test_b14_an_id_is_24_bytes_that_sort_like_it_and_a_text(one: tp.TransactionId, two: tp.TransactionId) -> None:
    assert len(one.encode()) == 24
    assert tp.TransactionId.decode(one.encode()) == one
    assert tp.TransactionId.parse(str(one)) == one
    assert re.fullmatch(r"[0-9a-f]{32}-[0-9a-f]{1,16}", str(one))
    assert (one.encode() < two.encode()) == (one < two)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-1",
        "0" * 32,
        *("0" * 32 + rest for rest in ("-", "-01", "-g", "-1\n", "-" + "1" * 17, "-+1", "-1_0", "-1 ")),
        "0" * 31 + "A-1",
        "\u0660" * 32 + "-1",  # digits, but not ours
        " " + "0" * 31 + "-1",
    ],
)
def test_b14_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(BadArgument) as refused:
        tp.TransactionId.parse(text)
    assert refused.value.facts["argument"] == "transaction"
    with pytest.raises(BadArgument):
        tp.TransactionId.decode(text.encode())


@given(_IDS, st.sets(st.integers(1, 1 << 20), max_size=5))
def test_b14_a_handle_says_who_takes_part(transaction: tp.TransactionId, groups: set[int]) -> None:
    handle = tp.Handle(transaction, tuple(sorted(groups)))
    assert tp.Handle.parse(str(handle)) == handle


@pytest.mark.parametrize("text", ["", str(T), f"{T}@2.1", f"{T}@1.1", f"{T}@x", f"{T}@01", f"x{T}@1", f"{T}@1.", "@1"])
def test_b14_what_is_not_a_handle_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        tp.Handle.parse(text)


# --- messages -----------------------------------------------------------------------------------------


_GROUPS = st.integers(0, 1 << 31)
_FIELDS: dict[str, st.SearchStrategy[object]] = {
    "transaction": _IDS,
    "participants": st.lists(_GROUPS).map(tuple),
    "work": st.binary(),
    "handles": st.lists(_IDS).map(tuple),
    "expires_at_ms": st.integers(0, 1 << 62),
    "decision": st.sampled_from(tp.Decision),
    "reason": st.text(),
    "participant": _GROUPS,
}
_MESSAGES = [
    st.builds(kind, **{field.name: _FIELDS[field.name] for field in msgspec.structs.fields(kind)})
    for kind in get_args(Message)
]


@given(st.one_of(_MESSAGES))
def test_b14_messages_survive_the_bus(message: Message) -> None:
    again = tp.decode(tp.encode(message))
    assert again == message
    assert type(again) is type(message)


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x91\x63", msgspec.msgpack.encode([6, [b"short", 1], 1])])
def test_b14_what_is_not_a_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        tp.decode(data)
