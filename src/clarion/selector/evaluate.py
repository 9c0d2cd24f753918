"""The compiled selector, and how it meets a batch."""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat

import numpy as np

from clarion import ids, limits
from clarion.errors import BadBatch, BadSelector
from clarion.message import Headers, decode_headers
from clarion.selector import names
from clarion.selector.generate import Test, generate
from clarion.selector.numbers import shortened
from clarion.wire.batch import HEADERS, TIMES, Batch

Matches = np.ndarray[tuple[int], np.dtype[np.bool_]]

_BLANK = " \t\f\r\n"
_NO_HEADERS = Headers()
_COLUMNS_FROM = 8


class Selector:
    """A compiled selector. Cannot be changed; may be used by any number of destinations and threads."""

    __slots__ = ("_by_id", "_by_time", "_test", "canonical", "is_trivial", "needs_headers", "text")

    def __init__(self, text: str, canonical: str, test: Test | None, used: frozenset[str]) -> None:
        self.text = text
        """As it was written."""
        self.canonical = canonical
        """The same for texts that differ in white space and the case of reserved words only."""
        self.is_trivial = test is None
        """It is blank: every message matches."""
        self.needs_headers = not used <= names.BATCH_FIELDS.keys()
        """Whether it looks at more than the batch knows of all its messages: headers have to be decoded."""
        self._test = test
        self._by_id = "JMSMessageID" in used
        self._by_time = "JMSTimestamp" in used

    def __repr__(self) -> str:
        return f"<Selector {self.canonical!r}>"

    def matches(self, batch: Batch, first: int, end: int) -> Matches:
        """For each message in [first, end) of the batch whether it matches.

        Never raises, and never looks at bodies: headers that cannot be decoded do not match.
        About 1 µs a message if headers are needed, nothing a message if all messages are the same to it.
        """
        count = end - first
        if self._test is None:
            return np.ones(count, np.bool_)
        decoding = self.needs_headers and bool(batch.flags & HEADERS)
        if not decoding and not self._by_id and not (self._by_time and batch.flags & TIMES):
            return np.full(count, self._test(_NO_HEADERS, batch.priority, batch.created_ms, None), np.bool_)
        messages = range(first, end)
        times = map(batch.time_ms, messages) if self._by_time else repeat(0)
        identities = map(_id_text, map(batch.id_of, messages)) if self._by_id else repeat(None)
        if not decoding:
            found = map(self._test, repeat(_NO_HEADERS, count), repeat(batch.priority), times, identities)
            return np.fromiter(found, np.bool_, count)
        priority, test = batch.priority, self._test
        results: list[bool] = []
        for section, timestamp_ms, identity in zip(
            _header_sections(batch, first, end), times, identities, strict=False
        ):
            try:
                headers = decode_headers(section)
            except BadBatch:
                results.append(False)
            else:
                results.append(test(headers, priority, timestamp_ms, identity))
        return np.array(results, np.bool_)

    def matches_one(
        self,
        headers: Headers,
        *,
        priority: int = limits.PRIORITY_DEFAULT,
        timestamp_ms: int = 0,
        message_id: int = 0,
    ) -> bool:
        """Whether a single message with these headers matches."""
        return self._test is None or self._test(headers, priority, timestamp_ms, _id_text(message_id))


def _header_sections(batch: Batch, first: int, end: int) -> list[memoryview]:
    """The encoded headers of each message; columns at once pay from a few messages on."""
    if end - first < _COLUMNS_FROM:
        return [batch.record(n)[0] for n in range(first, end)]
    starts = (batch.offsets()[first:end].astype(np.int64) - batch.base).tolist()
    sizes = batch.header_sizes()[first:end].tolist()
    data = batch.data
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _id_text(message_id: int) -> str:
    return f"ID:{ids.format_id(message_id)}"


@lru_cache(limits.SELECTORS_CACHED_MAX)
def compile_selector(text: str) -> Selector:
    """The selector that this text is; a blank one matches everything. Raises `BadSelector`."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise BadSelector(selector=ascii(text), column=error.start + 1, detail="it is not valid Unicode") from None
    if size > limits.SELECTOR_BYTES_MAX:
        detail = f"{size} bytes, the limit is {limits.SELECTOR_BYTES_MAX}"
        raise BadSelector(selector=shortened(text), column=1, detail=detail)
    if not text.strip(_BLANK):
        return Selector(text, "", None, frozenset())
    from clarion.selector import grammar  # slow to import, and most processes never see a selector

    try:
        node, canonical = grammar.parse(text)
    except grammar.SelectorError as error:
        raise BadSelector(selector=text, column=error.at + 1, detail=error.detail) from None
    return Selector(text, canonical, *generate(node))
