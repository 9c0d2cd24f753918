"""Log files as recipients: whole lines, each event once, whatever fails (A-08, A-12)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadArgument, NotDelivered
from clarion.events.event import Event
from clarion.events.recipients import LogFile
from clarion.events.recipients.log_lines import id_of_json, id_of_text, json_line, read_tail, text_line

from .event_strategies import ATTRIBUTES, BODIES, CONTENT_TYPES, SOURCES
from .recipient_events import PRODUCER, TIME_NS, event, events

DAY_S = 86_400


def deliver(recipient: LogFile, *batches: list[Event]) -> None:
    async def scenario() -> None:
        async with recipient:
            for batch in batches:
                await recipient.deliver(batch)

    asyncio.run(scenario())


def numbers(path: Path) -> list[int]:
    """Which events are in a file."""
    return [json.loads(line)["data"]["free_bytes"] for line in path.read_text().splitlines()]


def test_a12_a_line_an_event(tmp_path: Path) -> None:
    path = tmp_path / "made" / "events.jsonl"
    deliver(LogFile(path), events(1, 2), events(3))
    assert numbers(path) == [1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a12_as_text(tmp_path: Path) -> None:
    path = tmp_path / "events.log"
    batch = [
        event(1),
        event(2, source="volume 7", data="two\nlines", attributes={"rack": 4, "a b": "c\x1b"}),
        event(3, data=b"\x00\xff", severity="info"),
        event(4, data=None),
    ]
    deliver(LogFile(path, format="text"), batch)
    assert [re.sub(r"\b[0-9a-f]{32}\b", "ID", line) for line in path.read_text().splitlines()] == [
        '2026-01-01T00:00:01.000000Z ID ERROR disk.full volume/7 {"free_bytes":1}',
        r'2026-01-01T00:00:02.000000Z ID ERROR disk.full "volume 7" "two\nlines" rack=4 "a b"="c\u001b"',
        r"2026-01-01T00:00:03.000000Z ID INFO disk.full volume/7 b'\x00\xff'",
        "2026-01-01T00:00:04.000000Z ID ERROR disk.full volume/7",
    ]


@given(SOURCES, BODIES, CONTENT_TYPES, ATTRIBUTES)
def test_a12_any_event_is_one_line_that_tells_its_id(
    source: str, body: bytes, content_type: str, attributes: dict[str, Any]
) -> None:
    one = event(7, source=source, data=body, content_type=content_type, attributes=attributes)
    for line, id_of in ((json_line(one), id_of_json), (text_line(one), id_of_text)):
        assert not {0, 10, 13} & set(line)
        assert id_of(line) == one.id
    assert text_line(one).decode().isprintable()


# --- each event once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "text"])
def test_a08_what_is_in_the_file_is_not_written_again(tmp_path: Path, form: Any) -> None:
    path = tmp_path / "log"
    deliver(LogFile(path, format=form), events(1, 2, 3), events(3, 4))
    deliver(LogFile(path, format=form), events(2, 3, 4, 5, 5))
    assert len(path.read_text().splitlines()) == 5


def test_a08_nothing_is_taken_for_written_because_a_later_one_is(tmp_path: Path) -> None:
    """Events of one producer need not come in order: only ids that were seen are doubles."""
    path = tmp_path / "log"
    deliver(LogFile(path), events(9, 11))
    deliver(LogFile(path), events(8, 9, 10, 11))
    assert numbers(path) == [9, 11, 8, 10]


def test_a08_ids_are_known_over_a_rotation_and_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "log"
    deliver(LogFile(path, bytes_max=1), events(1, 2), events(3))
    assert numbers(tmp_path / "log.1") == [1, 2] and numbers(path) == [3]
    deliver(LogFile(path, bytes_max=1), events(1, 2, 3, 4))
    assert numbers(path) == [4]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"")), max_size=30), st.binary(max_size=5))
def test_a08_the_tail_of_a_file_is_read_as_a_naive_reader_would(lines: list[bytes], torn: bytes) -> None:
    torn = torn.replace(b"\n", b"")
    content = b"".join(b"%b\n" % line for line in lines)
    descriptor = os.memfd_create("tail")
    try:
        os.write(descriptor, content + torn)
        tail = read_tail(descriptor, lambda line: line.hex() or None, 10)
    finally:
        os.close(descriptor)
    assert tail.whole_bytes == len(content)
    assert tail.ids == [line.hex() for line in lines if line and b"\0" not in line][-10:]


def test_a08_a_long_file_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clarion.events.recipients.log_lines._BLOCK_BYTES", 100)
    path = tmp_path / "log"
    deliver(LogFile(path), [event(number, producer=PRODUCER) for number in range(1, 400)])
    deliver(LogFile(path), events(*range(1, 402)))
    assert numbers(path) == list(range(1, 402))


# --- crashes and full disks ---------------------------------------------------------------------------


def test_a05_half_a_line_of_a_crash_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    deliver(LogFile(path), events(1, 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    deliver(LogFile(path), events(2, 3))
    assert numbers(path) == [1, 2, 3]


def test_a05_a_damaged_line_is_written_again_and_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    deliver(LogFile(path), events(1, 2, 3))
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:40] + bytes(len(second) - 41) + b"\n" + third)
    deliver(LogFile(path), events(1, 2, 3))
    lines = path.read_bytes().splitlines(keepends=True)
    assert [lines[0], lines[2], lines[3]] == [first, third, second]


def failing(real: Callable[..., Any], error: int, *, after: int = 0, short: int | None = None) -> Callable[..., Any]:
    """A system call that works `after` times, then once writes less, then fails once, then works."""
    calls = 0

    def call(descriptor: int, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after + 1 and short is not None:
            return real(descriptor, bytes(rest[0])[:short])
        if calls == after + 1 + (short is not None):
            raise OSError(error, os.strerror(error))
        return real(descriptor, *rest)

    return call


@pytest.mark.parametrize("short", [None, 1, 250])
def test_a08_a_full_disk_confirms_nothing_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int | None
) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        async with LogFile(path) as recipient:
            await recipient.deliver(events(1))
            whole = path.read_bytes()
            with monkeypatch.context() as patched:
                patched.setattr(os, "write", failing(os.write, errno.ENOSPC, short=short))
                with pytest.raises(NotDelivered, match="No space left"):
                    await recipient.deliver(events(2, 3))
                assert path.read_bytes() == whole
            await recipient.deliver(events(2, 3, 4))

    asyncio.run(scenario())
    assert numbers(path) == [1, 2, 3, 4]


def test_a08_what_cannot_be_cut_at_once_is_cut_before_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        async with LogFile(path) as recipient:
            await recipient.deliver(events(1))
            with monkeypatch.context() as patched:
                patched.setattr(os, "write", failing(os.write, errno.EIO, short=30))
                patched.setattr(os, "ftruncate", failing(os.ftruncate, errno.EIO))
                with pytest.raises(NotDelivered):
                    await recipient.deliver(events(2))
            await recipient.deliver(events(2))

    asyncio.run(scenario())
    assert numbers(path) == [1, 2]


def test_a05_lines_whose_sync_failed_are_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        async with LogFile(path) as recipient:
            await recipient.deliver(events(1))
            whole = path.read_bytes()
            with monkeypatch.context() as patched:
                patched.setattr(os, "fdatasync", failing(os.fdatasync, errno.EIO))
                with pytest.raises(NotDelivered, match="Input/output error"):
                    await recipient.deliver(events(2))
            assert path.read_bytes() == whole
            await recipient.deliver(events(2))

    asyncio.run(scenario())
    assert numbers(path) == [1, 2]


def test_a05_confirmed_is_synced_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    deliver(LogFile(tmp_path / "a"), events(1))
    assert synced == [(tmp_path / "a").stat().st_size]
    deliver(LogFile(tmp_path / "b", sync=False), events(1))
    assert len(synced) == 1


def test_a12_a_place_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("")

    async def scenario() -> None:
        async with LogFile(tmp_path / "place" / "log") as recipient:
            with pytest.raises(NotDelivered):
                await recipient.deliver(events(1))
            (tmp_path / "place").unlink()
            await recipient.deliver(events(1))

    asyncio.run(scenario())
    assert numbers(tmp_path / "place" / "log") == [1]


def test_a12_one_writer_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, other = LogFile(tmp_path / "log"), LogFile(tmp_path / "log")
        async with one, other:
            await one.deliver(events(1))
            with pytest.raises(NotDelivered, match="another process"):
                await other.deliver(events(2))

    asyncio.run(scenario())


# --- rotation -----------------------------------------------------------------------------------------


def test_a12_rotation_by_size_keeps_so_many(tmp_path: Path) -> None:
    path = tmp_path / "log"
    size = len(json_line(event(1))) + 1
    deliver(LogFile(path, bytes_max=2 * size, keep=2), *[events(number) for number in range(1, 10)])
    assert numbers(path) == [9]
    assert numbers(tmp_path / "log.1") == [7, 8] and numbers(tmp_path / "log.2") == [5, 6]
    assert len(list(tmp_path.iterdir())) == 3


def test_a12_rotation_that_keeps_nothing(tmp_path: Path) -> None:
    deliver(LogFile(tmp_path / "log", bytes_max=1, keep=0), events(1), events(2))
    assert numbers(tmp_path / "log") == [2] and len(list(tmp_path.iterdir())) == 1


def test_a12_rotation_by_day_also_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "log"
    now_s = [TIME_NS / 1e9]

    async def scenario() -> None:
        async with LogFile(path, daily=True, clock=lambda: now_s[0]) as recipient:
            await recipient.deliver(events(1))
            now_s[0] += DAY_S / 2
            await recipient.deliver(events(2))
            now_s[0] += DAY_S / 2
            await recipient.deliver(events(3))

    asyncio.run(scenario())
    assert numbers(tmp_path / "log.1") == [1, 2] and numbers(path) == [3]
    os.utime(path, (now_s[0], now_s[0]))
    deliver(LogFile(path, daily=True, clock=lambda: now_s[0]), events(4))
    assert numbers(path) == [3, 4]
    os.utime(path, (now_s[0], now_s[0]))
    deliver(LogFile(path, daily=True, clock=lambda: now_s[0] + DAY_S), events(5))
    assert numbers(path) == [5] and numbers(tmp_path / "log.1") == [3, 4]


def test_a12_a_file_that_was_moved_away_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def scenario() -> None:
        async with LogFile(path) as recipient:
            await recipient.deliver(events(1))
            path.rename(tmp_path / "moved")
            await recipient.deliver(events(1, 2))
            path.write_bytes(b"")  # copytruncate
            await recipient.deliver(events(2, 3))

    asyncio.run(scenario())
    assert numbers(tmp_path / "moved") == [1] and numbers(path) == [3]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    for argument, wrong in (("format", "xml"), ("bytes_max", 0), ("keep", -1)):
        with pytest.raises(BadArgument, match=argument):
            LogFile(tmp_path / "log", **{argument: wrong})  # type: ignore[arg-type]
