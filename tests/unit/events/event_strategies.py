"""Events of every shape that the rules allow."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from clarion.events.event import PROPERTIES_RESERVED, TIME_NS_MAX, Event, Severity
from clarion.message import PropertyValue

TYPES = st.text("abzABZ059._-", min_size=1, max_size=200)
SOURCES = st.one_of(
    st.sampled_from(
        ["volume/7", "https://example.com/a%20b#top", "a b", "7:8", "100%", "ü/€", "//", "#", "a#b#c", "[::1]"]
    ),
    st.text(min_size=1, max_size=60).filter(str.isprintable),
)
VALUES: st.SearchStrategy[PropertyValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
    st.binary(max_size=20),
    st.text(max_size=20),
    st.sampled_from(
        ["", " padded ", '"quoted"', "100%", "%41", "a\x7fb\x80\n", "\ufdd0\U0001ffff", "5", "true", "€ 😀"]
    ),
)
NAMES = st.one_of(
    st.text("abz09", min_size=1, max_size=22),
    st.sampled_from(["subject", "dataschema", "data", "id", "type", "datacontenttype", "specversion", "clarionextra"]),
    st.text(min_size=1, max_size=10),
).filter(lambda name: name not in PROPERTIES_RESERVED)
ATTRIBUTES = st.dictionaries(NAMES, VALUES, max_size=5)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
CONTENT_TYPES = st.sampled_from(
    [
        "",
        "application/json",
        "application/json; charset=utf-8",
        "application/vnd.other+json",
        "text/plain",
        "text/plain;charset=iso-8859-1",
        "text/xml;version=1;charset='UTF-8'",
        "application/octet-stream",
        "application/cloudevents+json",
    ]
)
BODIES = st.one_of(
    st.binary(max_size=50), st.sampled_from([b"", b' {"a": 1}\n', b'{"a":  1e999}', b'"\xff"', b"null", b"[" * 3000])
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Any event; the time is exact to the nanosecond only sometimes."""
    content_type = draw(CONTENT_TYPES)
    return Event(
        draw(st.text(min_size=1, max_size=40).filter(str.isprintable)),
        draw(st.integers(0, TIME_NS_MAX) | st.integers(0, TIME_NS_MAX // 1000).map(lambda us: us * 1000)),
        draw(SOURCES),
        draw(TYPES),
        draw(st.sampled_from(Severity)),
        draw(BODIES if content_type else BODIES | JSON),
        content_type,
        draw(ATTRIBUTES),
    )
