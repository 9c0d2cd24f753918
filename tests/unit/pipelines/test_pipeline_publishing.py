"""What is worth a message."""

from __future__ import annotations

from typing import Any

import pytest

from clarion.pipelines.publishing import NEWS, is_news

LAST: dict[str, Any] = {"state": "running", "error": None, "master": "m", "rows": 100, "lag": 5, "updated": "a"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"updated": "b"}, False),
        ({"rows": 100 + NEWS}, False),
        ({"rows": 101 + NEWS}, True),
        ({"lag": 6 + NEWS}, True),
        ({"lag": None}, False),
        ({"state": "stopped"}, True),
        ({"error": "CLN-500"}, True),
    ],
)
def test_d11_a_status_is_sent_for_news_and_not_for_itself(change: dict[str, Any], expected: bool) -> None:
    assert is_news(LAST, {**LAST, **change}) is expected


def test_d11_the_first_status_is_news() -> None:
    assert is_news({}, LAST)
