"""Commands as recipients (A-12)."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from clarion.errors import BadArgument, NotDelivered
from clarion.events.event import Event
from clarion.events.recipients import Command, Partly

from .recipient_events import events


def deliver(recipient: Command, *batches: list[Event]) -> None:
    async def scenario() -> None:
        async with recipient:
            for batch in batches:
                await recipient.deliver(batch)

    asyncio.run(scenario())


def test_a12_the_event_is_on_standard_input_and_in_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = Command(["sh", "-c", f"cat >> {out}; env | grep ^CLARION_EVENT_ | sort > {out}.$CLARION_EVENT_DATA_X"])
    batch = events(1, attributes={"rack-no": 4, "hot": True, "raw": b"\0", "text": "a b", "none": None})
    deliver(command, batch)
    line = json.loads(out.read_text())
    assert line["id"] == batch[0].id and line["data"] == {"free_bytes": 1}
    variables = dict(each.split("=", 1) for each in (tmp_path / "out.").read_text().splitlines())
    assert variables == {
        "CLARION_EVENT_ID": batch[0].id,
        "CLARION_EVENT_TYPE": "disk.full",
        "CLARION_EVENT_SOURCE": "volume/7",
        "CLARION_EVENT_SEVERITY": "error",
        "CLARION_EVENT_TIME": "2026-01-01T00:00:01.000000Z",
        "CLARION_EVENT_CONTENT_TYPE": "application/json",
        "CLARION_EVENT_COUNT": "1",
        "CLARION_EVENT_ATTRIBUTE_RACK_NO": "4",
        "CLARION_EVENT_ATTRIBUTE_HOT": "true",
        "CLARION_EVENT_ATTRIBUTE_TEXT": "a b",
    }


def test_a12_one_run_for_a_batch_with_a_line_for_each(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pretty = Event("x", 1, "s", "t", data=b'{\n "a": 1\r\n}', content_type="application/json")
    deliver(
        Command(["sh", "-c", f"cat > {out}; echo $CLARION_EVENT_COUNT >> {out}"], per="batch"), [*events(1), pretty]
    )
    first, second, count = out.read_text().splitlines()
    assert json.loads(first)["data"] == {"free_bytes": 1} and json.loads(second)["data"] == {"a": 1} and count == "2"


def test_a08_the_exit_status_confirms_and_says_why_not() -> None:
    command = Command(["sh", "-c", '[ "$CLARION_EVENT_SOURCE" = good ] || { echo " full\n stop" >&2; exit 3; }'])
    batch = [*events(1, source="good"), *events(2, 3, source="bad"), *events(4, source="good")]
    with pytest.raises(Partly) as caught:
        deliver(command, batch)
    assert caught.value.done == {0, 3} and set(caught.value.failed) == {1}
    assert str(caught.value.failed[1]).endswith("sh ended with status 3: full stop")


def test_a08_a_signal_a_missing_command_and_a_command_in_the_dark() -> None:
    with pytest.raises(NotDelivered, match="signal 15"):
        deliver(Command(["sh", "-c", "kill $$"]), events(1))
    with pytest.raises(NotDelivered, match="cannot be started"):
        deliver(Command(["/no/such/thing"]), events(1))
    with pytest.raises(NotDelivered, match="cannot be started"):
        deliver(Command(["true"], directory="/no/such/place"), events(1))
    deliver(Command(["true"]), events(1, data="x" * 1_000_000))  # it does not read: its status decides
    deliver(Command(["sh", "-c", "yes | head -c 3000000 >&2"]), events(1))
    deliver(Command(["sh", "-c", "yes | head -c 3000000"]), events(1))


def test_a12_what_it_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    started = time.monotonic()
    deliver(Command(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid"]), events(1))
    assert time.monotonic() - started < 60
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a07_after_its_time_the_whole_group_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pids")
    watched: list[int] = []

    def watch() -> None:
        watched.extend(os.pidfd_open(int(pid)) for pid in (tmp_path / "pids").read_text().split())

    reader = threading.Thread(target=watch)
    reader.start()
    script = f"sleep 600 & echo $$ $! > {tmp_path}/pids; wait"
    with pytest.raises(NotDelivered, match="killed after 2 s"):
        deliver(Command(["sh", "-c", script], timeout_s=2), events(1))
    reader.join()
    assert len(watched) == 2
    for process in watched:
        assert select.select([process], [], [], 20)[0], "it still runs"
        os.close(process)


def test_a07_closing_ends_what_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")

    async def scenario() -> None:
        recipient = Command(["sh", "-c", f"echo > {tmp_path}/begun; sleep 600"], timeout_s=600)
        await recipient.open()
        delivering = asyncio.create_task(recipient.deliver(events(1, 2)))
        await asyncio.to_thread((tmp_path / "begun").read_text)
        await recipient.close()
        with pytest.raises(Partly) as caught:
            await delivering
        assert not caught.value.done

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a12_it_runs_where_and_with_what_it_is_told(tmp_path: Path) -> None:
    script = "import os, pathlib; pathlib.Path('here').write_text(os.environ['COLOUR'])"
    command = Command([sys.executable, "-c", script], directory=tmp_path, environment={"COLOUR": "red"}, name="p")
    deliver(command, events(1))
    assert (tmp_path / "here").read_text() == "red"


def test_wrong_arguments_are_refused() -> None:
    for wrong in ("echo", [], [7]):
        with pytest.raises(BadArgument, match="command"):
            Command(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="per"):
        Command(["true"], per="day")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="timeout_s"):
        Command(["true"], timeout_s=0)
    assert Command(["/usr/bin/true"]).name == "true"
