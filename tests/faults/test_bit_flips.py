"""Bits that flip anywhere in a data directory (A-05).

A finished directory, with several destinations, durable subscriptions, partly confirmed messages, checkpoints and
closed segments, is damaged in one place and opened again. Then: at most the record that was hit is lost, and every
lost message is reported; destinations, subscriptions and what was confirmed are as before; everything else is
delivered, in order.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clarion import limits
from clarion.errors import ClarionError
from clarion.journal.layout import HEADER_OFFSETS, HINT_OFFSETS, SEGMENT_HEADER_BYTES
from clarion.journal.record import HEADER_BYTES, Kind, Raw, parse_any
from clarion.settings import Settings
from clarion.testing.invariants import Ledger
from tests.faults.broker_harness import QUEUE, SUBSCRIPTION, TOPIC, Broker, Client, Held, Story, settings_for

SEGMENT_BYTES = 512 * limits.KIB
BYTES_MAX = 12 * SEGMENT_BYTES
OTHERS = ("queue:invoices", "queue:letters")
NAMES = (QUEUE, TOPIC, *OTHERS)
BATCH_MESSAGES = 5
FLIPS = 200
FLIPS_SOAK = 5_000


@dataclass
class Region:
    """Bytes of a file that have a meaning."""

    what: str
    file: str
    start: int
    end: int


@dataclass
class Finished:
    """A directory that was closed in order, and what it holds."""

    path: Path
    story: Story
    owed: dict[str, list[bytes]] = field(default_factory=dict)
    """What each destination still has to deliver, in order."""
    described: Any = None
    regions: list[Region] = field(default_factory=list)


# --- the directory --------------------------------------------------------------------------------


async def build(path: Path) -> Finished:
    """Some five megabytes of log: segments that are closed and live, and two checkpoints."""
    rng = Random(1)
    story = Story()
    for name in OTHERS:
        story.ledgers[name], story.asked[name] = Ledger(), set()
    finished = Finished(path, story)
    broker = Broker(settings(path))
    await broker.start()
    client = Client(broker, story)
    held: dict[str, Held] = {TOPIC: await client.subscribe(TOPIC, SUBSCRIPTION)}
    for name in (QUEUE, *OTHERS):
        held[name] = await client.subscribe(name)
    for number in range(60):
        for name in NAMES:
            ledger = story.ledgers[name]
            bodies = [ledger.new_body(f"{name}-producer", rng.choice((20, 900, 6000))) for _ in range(BATCH_MESSAGES)]
            client.publish(f"{name}-producer", name, bodies)
        await client.settled()
        await client.until(lambda: all(h.ledger.stored <= h.ledger.received.keys() for h in held.values()))
        for name, part in ((QUEUE, 0.95), (TOPIC, 0.5), (OTHERS[0], 0.9), (OTHERS[1], 0.0)):
            mine = sorted(held[name].open)
            client.confirm(held[name], [sequence for sequence in mine if rng.random() < part])
        await client.settled()
        if number in (25, 45):
            await checkpoint(client)
    for name in NAMES:
        finished.owed[name] = [held[name].open[sequence] for sequence in sorted(held[name].open)]
    finished.described = metadata(await client.request("destinations"))
    await broker.end()
    finished.regions = regions_of(path / "journal")
    return finished


async def checkpoint(client: Client) -> None:
    manager = client.broker.manager
    before = manager.count("mm.checkpoints")
    if not manager.upkeep._checkpointing:
        manager.upkeep.checkpoint()
    while manager.count("mm.checkpoints") == before:
        await client.request("destinations")


def settings(path: Path) -> Settings:
    return settings_for(path, BYTES_MAX, segment_bytes=SEGMENT_BYTES)


def metadata(destinations: list[dict[str, Any]]) -> list[object]:
    """What must survive any single damage."""
    return [
        (
            destination["name"],
            destination["kind"],
            destination["next_sequence"],
            [
                (subscription["name"], subscription["durable"], subscription["shared"])
                for subscription in destination["subscriptions"]
                if subscription["durable"]
            ],
        )
        for destination in destinations
    ]


def regions_of(journal: Path) -> list[Region]:
    """All structures of all segments that were ever written, and the format file."""
    regions = [Region("format", "format", 0, (journal / "format").stat().st_size)]
    for file in sorted(journal.glob("*.segment")):
        data = memoryview(file.read_bytes())
        if not any(data[:SEGMENT_HEADER_BYTES]):
            continue
        regions += [Region("segment header", file.name, offset, offset + 56) for offset in HEADER_OFFSETS]
        regions += [Region("hint", file.name, offset, offset + 64) for offset in HINT_OFFSETS]
        offset = SEGMENT_HEADER_BYTES
        while offset < len(data):
            raw = parse_any(data, offset)
            if raw is None:
                offset = (offset // 512 + 1) * 512
                continue
            regions += regions_of_record(file.name, offset, raw)
            offset = raw.end
    return regions


def regions_of_record(file: str, offset: int, raw: Raw) -> list[Region]:
    match raw.kind:
        case Kind.TRAILER:
            return [Region("trailer", file, offset, raw.body_to)]
        case Kind.CHECKPOINT_BEGIN | Kind.CHECKPOINT_PART | Kind.CHECKPOINT_END:
            return [Region("checkpoint", file, offset, raw.body_to)]
    head = (file, offset, offset + HEADER_BYTES + len(raw.head))
    if raw.body_from == raw.body_to:
        return [Region("entry", *head)]
    return [Region("batch head", *head), Region("batch", file, raw.body_from, raw.body_to)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    found = asyncio.run(build(tmp_path_factory.mktemp("finished")))
    kinds = {region.what for region in found.regions}
    assert kinds >= {"format", "segment header", "hint", "trailer", "checkpoint", "entry", "batch head", "batch"}
    return found


# --- opening it again -----------------------------------------------------------------------------


@dataclass
class Reopened:
    """What came of a damaged directory."""

    received: dict[str, list[bytes]]
    described: list[object]
    lost: int
    events: list[str]
    failure: object


async def reopen(finished: Finished, path: Path, caplog: pytest.LogCaptureFixture) -> Reopened:
    """Start, drain, and say what was there; raises what the start raises."""
    caplog.clear()
    story = Story(start=1_000)
    for name in OTHERS:
        story.ledgers[name], story.asked[name] = Ledger(), set()
    for name in NAMES:
        story.ledgers[name].sent.update(finished.story.ledgers[name].sent)
    broker = Broker(settings(path))
    await broker.start()
    try:
        client = Client(broker, story)
        held = {TOPIC: await client.subscribe(TOPIC, SUBSCRIPTION)}
        for name in (QUEUE, *OTHERS):
            held[name] = await client.subscribe(name)
        described = metadata(await client.request("destinations"))
        last = {name: story.ledgers[name].new_body("last") for name in NAMES}
        for name in NAMES:
            client.publish(f"last-{name}", name, [last[name]])
        await client.until(lambda: all(last[name] in story.ledgers[name].received for name in NAMES))
        lost = (await client.request("status"))["lost_messages"]
    finally:
        await broker.end()
    for ledger in story.ledgers.values():
        ledger.check()
    received = {name: [held[name].bodies[sequence] for sequence in sorted(held[name].bodies)][:-1] for name in NAMES}
    return Reopened(received, described, lost, [record.getMessage() for record in caplog.records], broker.failure)


def copy(finished: Finished, tmp_path: Path, number: int) -> Path:
    target = tmp_path / f"copy-{number}"
    shutil.copytree(finished.path, target)
    return target


def assert_little_lost(finished: Finished, found: Reopened, where: str, lost_max: int) -> None:
    assert found.failure is None, where
    assert found.described == finished.described, where
    missing = 0
    for name in NAMES:
        owed, received = finished.owed[name], found.received[name]
        present = set(received)
        assert received == [body for body in owed if body in present], f"{where}: order, or what was confirmed"
        missing += len(owed) - len(received)
    assert missing <= lost_max, f"{where}: {missing} messages lost"
    if missing:
        assert found.lost >= missing, f"{where}: {missing} lost, {found.lost} reported"
        assert "messages_lost" in found.events, where


def flip(path: Path, region: Region, rng: Random) -> str:
    position, bit = rng.randrange(region.start, region.end), rng.randrange(8)
    with (path / "journal" / region.file).open("r+b") as file:
        file.seek(position)
        value = file.read(1)[0]
        file.seek(position)
        file.write(bytes([value ^ 1 << bit]))
    return f"bit {bit} of byte {position} of {region.file} ({region.what} at {region.start})"


def choose(finished: Finished, rng: Random) -> Region:
    """Every kind of structure as often as the others, however many there are."""
    what = rng.choice(sorted({region.what for region in finished.regions}))
    return rng.choice([region for region in finished.regions if region.what == what])


def flip_many(finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, seed: int) -> None:
    rng = Random(seed)

    async def one(number: int) -> None:
        path = copy(finished, tmp_path, number)
        region = choose(finished, rng)
        where = flip(path, region, rng)
        lost_max = BATCH_MESSAGES if region.what in ("batch", "batch head") else 0
        found = await reopen(finished, path, caplog)
        assert_little_lost(finished, found, where, lost_max)
        shutil.rmtree(path)

    for number in range(count):
        asyncio.run(one(number))


def test_a05_the_directory_without_damage(finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = asyncio.run(reopen(finished, copy(finished, tmp_path, 0), caplog))
    assert_little_lost(finished, found, "no damage", 0)
    assert found.lost == 0
    assert "journal_damaged" not in found.events


def test_a05_a_bit_flips_anywhere(finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip_many(finished, tmp_path, caplog, FLIPS, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a05_thousands_of_bits_flip_anywhere(
    finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flip_many(finished, tmp_path, caplog, FLIPS_SOAK, seed=2)


# --- files that are cut off or gone ---------------------------------------------------------------


def assert_not_silent(
    finished: Finished, path: Path, caplog: pytest.LogCaptureFixture, where: str, *, whole: bool = False
) -> None:
    """A clear error, or a start that reports what is missing; what is there is in order."""
    try:
        found = asyncio.run(reopen(finished, path, caplog))
    except ClarionError as error:
        assert re.match(r"CLN-3\d\d ", str(error)), where
        assert not whole, f"{where}: {error}"
        return
    assert found.failure is None, where
    differs = found.described != finished.described
    for name in NAMES:
        owed, received = finished.owed[name], found.received[name]
        present = set(received)
        assert [body for body in owed if body in present] == [body for body in received if body in set(owed)], where
        differs = differs or received != owed
    if differs:
        assert not whole, where
        told = {"journal_damaged", "messages_lost", "journal_warning"} & set(found.events)
        assert told, f"{where}: nobody was told"


def used_segments(finished: Finished) -> list[str]:
    return sorted({region.file for region in finished.regions if region.file.endswith(".segment")})


def test_a05_a_segment_file_that_is_missing(
    finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(used_segments(finished)):
        path = copy(finished, tmp_path, number)
        (path / "journal" / name).unlink()
        assert_not_silent(finished, path, caplog, f"without {name}")


@pytest.mark.parametrize("length", [0, 100, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 1000, SEGMENT_BYTES // 2])
def test_a05_a_segment_file_that_is_cut_off(
    finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    for number, name in enumerate(used_segments(finished)):
        path = copy(finished, tmp_path, number)
        with (path / "journal" / name).open("r+b") as file:
            file.truncate(length)
        assert_not_silent(finished, path, caplog, f"{name} cut off at {length}")
        assert "journal_warning" in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("content", [b"", b"\0" * 60, b"something else\n"])
def test_a05_a_format_file_that_is_overwritten(
    finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = copy(finished, tmp_path, 0)
    (path / "journal" / "format").write_bytes(content)
    assert_not_silent(finished, path, caplog, "format", whole=True)


def test_a05_a_format_file_that_is_missing(
    finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy(finished, tmp_path, 0)
    (path / "journal" / "format").unlink()
    assert_not_silent(finished, path, caplog, "format", whole=True)


def test_a05_two_bits_flip_at_once(finished: Finished, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both copies of something may be hit: then it is a clear error or a report, and never a crash."""
    rng = Random(5)
    for number in range(40):
        path = copy(finished, tmp_path, number)
        where = " and ".join(flip(path, choose(finished, rng), rng) for _ in range(2))
        assert_not_silent(finished, path, caplog, where)
        shutil.rmtree(path)
