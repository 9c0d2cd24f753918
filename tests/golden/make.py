"""Make the golden files with the code of now: `python -m tests.golden.make`.

Only for a new version of a format: the files of an old version are never made again.

    journal-v1.tar.xz   a data directory as a killed server left it: a checkpoint, and entries after it
    journal-v1.json     what is in it
    exchange-v1.json    every byte of a scripted session, both ways

`sparse-v1.json`, a sparse batch, a slice of it and its log entry, came later and is not made here.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from clarion import sync
from clarion.settings import load
from clarion.testing.server import ServerProcess
from clarion.wire.frames import Type
from tests.golden.exchange import replay, script
from tests.hostile.raw import RawClient

FOLDER = Path(__file__).parent
SEGMENT_BYTES = 512 << 10
ENVIRONMENT = {
    "CLARION_JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES),
    "CLARION_JOURNAL_BYTES_MAX": str(8 * SEGMENT_BYTES),
    "CLARION_NODE_NAME": "golden",
}


def body_of(destination: str, number: int) -> bytes:
    return f"{destination} {number} ".encode() * (1 + number % 7)


def main() -> None:
    assert load().node.name == "clarion"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with ServerProcess(data, environment=ENVIRONMENT) as server:
            first_life(server.url)
            assert server.stop() == 0
            assert _has_checkpoint(data)
            server.start()
            content = second_life(server)
            server.kill()
        _keep(data, FOLDER / "journal-v1.tar.xz")
        _write("journal-v1.json", content)
        with ServerProcess(Path(folder) / "other", environment=ENVIRONMENT) as server:
            steps = script()
            answers = replay(server.port, steps)
            recorded = [
                {"step": step.name, "client": step.sent.hex(), "server": [frame.hex() for frame in got]}
                for step, got in zip(steps, answers, strict=True)
            ]
            _write("exchange-v1.json", recorded)


def first_life(url: str) -> None:
    """What a checkpoint holds."""
    with sync.connect(url) as connection, connection.session() as session:
        connection.command("create", {"destination": "queue:bounded", "quota_bytes": 54_321})
        connection.command("create", {"destination": "queue:dropped"})
        connection.command("drop", {"destination": "queue:dropped"})
        for name, shared in (("alone", False), ("team", True), ("gone", False)):
            with session.receive("topic:news", durable=name, shared=shared):
                pass
        session.command("unsubscribe", {"destination": "news", "subscription": "gone"})
        for number in range(1, 151):
            session.send_nowait("queue:orders", body_of("orders", number), properties={"n": number, "odd": number % 2})
            session.send_nowait("topic:news", body_of("news", number))
        session.flush()
        with session.receive("topic:news", durable="alone") as consumer:
            first = _taken(consumer, 150)
            consumer.confirm(first, first + 60)
        with session.receive("queue:orders") as consumer:
            first = _taken(consumer, 150)
            for number in range(0, 150, 3):
                consumer.confirm(first + number, first + number + 1)
        for _ in range(30):  # an eighth of the journal's size makes a checkpoint due
            session.send("queue:churn", bytes(30_000))
        session.command("drop", {"destination": "queue:churn"})


def second_life(server: ServerProcess) -> dict[str, Any]:
    """What the log after it holds; the content of all."""
    with sync.connect(server.url) as connection, connection.session() as session:
        for number in range(151, 201):
            session.send_nowait("queue:orders", body_of("orders", number), properties={"n": number, "odd": number % 2})
            session.send_nowait("topic:news", body_of("news", number))
        session.flush()
        with session.receive("topic:news", durable="team", shared=True) as consumer:
            first = _taken(consumer, 200)
            consumer.confirm(first + 100, first + 120)
            consumer.reject(first + 150, first + 160)
        producer = _remembered(server.port)
        orders = [number for number in range(1, 201) if (number - 1) % 3 or number > 150]
        return {
            "made_with": connection.server,
            "destinations": {
                "bounded": {"kind": "queue", "bytes_quota": 54_321, "next_sequence": 1},
                "orders": {"kind": "queue", "next_sequence": 201},
                "news": {"kind": "topic", "next_sequence": 201},
                "doubles": {"kind": "queue", "next_sequence": 4},
            },
            "subscriptions": [
                {"destination": "orders", "name": None, "shared": True, "unconfirmed": orders},
                {"destination": "news", "name": "alone", "shared": False, "unconfirmed": list(range(61, 201))},
                {
                    "destination": "news",
                    "name": "team",
                    "shared": True,
                    "unconfirmed": [*range(1, 101), *range(121, 201)],
                    "returned": list(range(151, 161)),
                },
            ],
            "producer": producer.hex(),
        }


def _remembered(port: int) -> bytes:
    """A producer whose session did not end cleanly, so that its sequences are remembered."""
    with RawClient(port) as raw:
        raw.hello()
        producer = raw.open()
        for first in (1, 3):
            bodies = [body_of("doubles", number) for number in ((1, 2) if first == 1 else (3,))]
            raw.publish(producer, first, "queue:doubles", *bodies)
            raw.next(Type.PUBLISHED)
    return producer.to_bytes(16, "big")


def _taken(consumer: sync.Consumer, count: int) -> int:
    """Take so many messages; the sequence of the first."""
    messages = []
    for _ in range(count):
        message = consumer.receive(timeout=10)
        assert message is not None
        messages.append(message)
    return messages[0].sequence


def _has_checkpoint(data: Path) -> bool:
    """Does a hint of some segment name one? docs/formats/journal.md has the offsets."""
    for segment in data.glob("journal/*.segment"):
        content = segment.read_bytes()[:2048]
        for at in (512, 1024):
            if content[at : at + 8] == b"CLNJHNT1" and any(content[at + 32 : at + 40]):
                return True
    return False


def _keep(data: Path, path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in sorted(data.rglob("*")):
            if file.is_file():
                entry = tarfile.TarInfo(file.relative_to(data).as_posix())
                entry.size = file.stat().st_size
                entry.mode = 0o600
                with file.open("rb") as content:
                    tar.addfile(entry, content)
    path.write_bytes(lzma.compress(packed.getvalue(), preset=9))
    print(f"{path.name}: {path.stat().st_size} bytes")


def _write(name: str, content: object) -> None:
    (FOLDER / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
