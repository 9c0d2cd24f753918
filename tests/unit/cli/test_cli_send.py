"""`clarion send` as a process: its options arrive in batches, wrong ones do not get as far as a server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle

import msgspec
import pytest

from clarion.cli.main import main
from clarion.message import decode_headers
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Frame, Type
from tests.unit.client.scripted_broker import Broker, Publish, ServerEnd

NOBODY = "clarion://127.0.0.1:1"


class Delivering(Broker):
    """Says DELIVERED for what was stored with `until`: a message at a time, the last one first."""

    def __init__(self) -> None:
        super().__init__()
        self.flags: list[int] = []
        self._how = cycle([frames.CONFIRMED, frames.UNWANTED, frames.EXPIRED])

    def _publish(self, end: ServerEnd, frame: Frame) -> None:
        self.flags.append(frame.flags)
        super()._publish(end, frame)

    def answer(self, published: Publish) -> None:
        super().answer(published)
        if self.flags[-1]:
            for sequence in reversed(range(published.first, published.first + published.count)):
                said = frames.SETTLED.pack(sequence, 1, next(self._how))
                self.ends[published.connection].send(Type.DELIVERED, published.channel, said)


@pytest.fixture
def there() -> Iterator[Delivering]:
    """A broker in a thread of its own."""
    loop = asyncio.new_event_loop()
    made = Delivering()
    loop.run_until_complete(made.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield made
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(made.stop())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def send(*arguments: str, url: str = NOBODY, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    command = [sys.executable, "-m", "clarion", "send", *arguments, "--url", url]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=60)


def test_b04_every_option_reaches_the_batch(there: Delivering) -> None:
    before_ms = time.time_ns() // 1_000_000
    done = send(
        "jobs", "-", "-p", "n=5", "--ttl", "60", "--delay", "1.5", "--priority", "9", "--group", "g", "--type", "t",
        "--reply-to", "topic:answers", "--correlation-id", "c", "--until", "every", url=there.url, stdin=b"body",
    )  # fmt: skip
    after_ms = time.time_ns() // 1_000_000
    assert (done.returncode, done.stderr) == (0, b"")
    (batch,) = (batch for _, batch, _ in there.stored["jobs"])
    identity, how = done.stdout.decode().split()
    assert (int(identity, 16), how) == (batch.first_id, "confirmed")
    headers, body = batch.record(0)
    read = decode_headers(headers)
    assert (bytes(body), batch.priority, there.flags) == (b"body", 9, [frames.UNTIL_EVERY])
    assert before_ms + 1_500 <= batch.deliver_at_ms <= after_ms + 1_510
    assert before_ms + 60_000 <= read.expires_at_ms <= after_ms + 60_000
    assert batch.expiry_first_ms == batch.expiry_last_ms == read.expires_at_ms
    assert (read.group, read.type, read.reply_to, read.correlation_id) == ("g", "t", "topic:answers", "c")
    assert read.properties == {"n": 5}


def test_b04_without_options_a_message_is_plain(there: Delivering) -> None:
    done = send("jobs", "body", url=there.url)
    batch: Batch = there.stored["jobs"][0][1]
    assert done.stdout.decode() == f"{batch.first_id:032x}\n"
    assert (batch.flags, batch.priority, batch.deliver_at_ms, batch.expiry_first_ms, there.flags) == (0, 4, 0, 0, [0])


def test_b04_how_many_copies_were_delivered_how_is_said(there: Delivering) -> None:
    done = send("jobs", "body", "--count", "2500", "--until", "any", "--json", url=there.url)
    assert done.returncode == 0, done.stderr
    said = msgspec.json.decode(done.stdout)
    assert (said["count"], len(there.bodies("jobs"))) == (2_500, 2_500)
    assert said["how"] == {"confirmed": 834, "unwanted": 833, "expired": 833}
    assert int(said["last_id"], 16) - int(said["id"], 16) == 2_499
    assert msgspec.json.decode(send("jobs", "x", "--until", "any", "--json", url=there.url).stdout)["how"] == "unwanted"
    done = send("jobs", "body", "--count", "2", "--until", "any", url=there.url)
    assert done.stdout.endswith(b", 1 expired, 1 confirmed\n") or done.stdout.endswith(b", 1 confirmed, 1 expired\n")


def test_b13_who_waits_for_a_delivery_in_vain_gives_up(there: Delivering) -> None:
    there.answering = False
    done = send("jobs", "body", "--until", "any", "--timeout", "0.2", url=there.url)
    assert (done.returncode, done.stdout) == (75, b"")
    assert done.stderr.startswith(b"error: CLN-203 jobs ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ttl", "0"], "--ttl"),
        (["--ttl", "-1"], "--ttl"),
        (["--ttl", "1e12"], "--ttl"),
        (["--ttl", "nan"], "--ttl"),
        (["--delay", "-1"], "--delay"),
        (["--delay", "soon"], "--delay"),
        (["--priority", "10"], "--priority"),
        (["--group", ""], "--group"),
        (["--reply-to", "two words"], "--reply-to"),
        (["--until", "tomorrow"], "--until"),
        (["-p", f"big={'x' * 70_000}"], "-p"),
    ],
)
def test_b04_wrong_options_are_wrong_usage_and_no_server_is_asked(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["send", "jobs", "body", *arguments, "--url", NOBODY])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert text in said.err
