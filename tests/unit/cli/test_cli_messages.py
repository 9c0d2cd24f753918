"""Messages as JSON and as text for people; properties as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli import messages, show
from clarion.cli.admin import sequence_range
from clarion.cli.send import parse_property
from clarion.cli.sinks import Files
from clarion.message import Headers, Message, encode_headers
from clarion.wire import batch as wire


def message(body: bytes, headers: Headers | None = None, encoded: bytes | None = None) -> Message:
    """One message as a consumer gets it."""
    known = encoded if encoded is not None else encode_headers(headers or Headers())
    data = wire.encode(b"queue:jobs", 1 << 64, [body], [known] if known else None, created_ms=1_700_000_000_123)
    return Message(wire.Batch(memoryview(bytes(data))), 0, 7, delivery_count=2, redelivered=True)


def test_facts_of_a_message() -> None:
    properties: dict[str, Any] = {"region": "eu", "n": 5, "ok": True, "none": None, "raw": b"\x00\xff"}
    described = messages.facts(message(b"x", Headers(correlation_id="c", properties=properties)))
    assert described == {
        "id": f"{1 << 64:032x}",
        "sequence": 7,
        "destination": "queue:jobs",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "timestamp_ms": 1_700_000_000_123,
        "priority": 4,
        "redelivered": True,
        "delivery_count": 2,
        "properties": {**properties, "raw": {"base64": "AP8="}},
        "correlation_id": "c",
    }


def test_headers_that_cannot_be_read_do_not_hide_the_body() -> None:
    foreign = message(b"body", encoded=b"\xc1")
    assert "CLN-107" in messages.facts(foreign)["headers_error"]
    assert messages.body(foreign.body) == {"body": "body"}


@given(st.binary(max_size=200))
def test_a_json_line_has_the_body_exactly(data: bytes) -> None:
    line = messages.line(messages.facts(message(data)) | messages.body(data))
    said = msgspec.json.decode(line)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    if "body" in said:
        assert said["body"].encode() == data
    else:
        assert msgspec.convert(said["body_base64"], bytes, strict=False) == data


@given(st.binary(max_size=200), st.integers(1, 50))
def test_text_for_people_has_no_control_characters(data: bytes, limit: int) -> None:
    text = messages.printable(data, limit)
    assert len(text) <= limit
    assert all(character.isprintable() or character in "\n\t" for character in text)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("n=5", "n", 5),
        ("x=1.5", "x", 1.5),
        ("on=true", "on", True),
        ("none=null", "none", None),
        ('s="5"', "s", "5"),
        ("s=eu", "s", "eu"),
        ("s=", "s", ""),
        ("s=a=b", "s", "a=b"),
        ("s=01", "s", "01"),
        ("s=NaN", "s", "NaN"),
        ("s=[1]", "s", "[1]"),
        ("s={}", "s", "{}"),
    ],
)
def test_properties_have_the_type_that_they_look_like(text: str, name: str, value: object) -> None:
    found = parse_property(text)
    assert found == (name, value) and type(found[1]) is type(value)


@pytest.mark.parametrize("text", ["", "x", "=x"])
def test_a_property_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_property(text)


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 40))
def test_ranges_include_both_ends(first: int, more: int) -> None:
    assert sequence_range(f"{first}-{first + more}") == (first, first + more + 1)
    assert sequence_range(str(first)) == (first, first + 1)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (64 << 30, "64.0 GiB"), (None, "-")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert show.size(count) == text


def test_tables_fit_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show.table(("name", ">count", "~body"), [("a" * 60, 1_234_567, "b" * 200), ("[red]x", 1, "c")])
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines())
    assert "1,234,567" in said and "[red]x" in said


def test_files_hold_bodies_and_a_second_delivery_changes_nothing(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    sink = Files(tmp_path / "out", json=False)
    for _ in range(2):
        sink.write(cast(Any, message(b"\x00body")))  # nothing of it asks the broker
        sink.flush()
    (written,) = (tmp_path / "out").iterdir()
    assert written.read_bytes() == b"\x00body"
    assert written.name == f"000000000007-{1 << 64:032x}"
    assert capfdbinary.readouterr().out.decode().splitlines() == [str(written)] * 2
