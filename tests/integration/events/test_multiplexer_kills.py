"""SIGKILL of a multiplexer at each of its steps, and of its sender: nothing is lost, logs have each once (A-11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.events_harness import KILLED, Nursery, until
from tests.integration.events.multiplexer_harness import (
    PROCESSES,
    MultiplexerPlace,
    Place,
    check,
    lines_of,
)

MODES = {
    "early": {"confirm_early": True, "forward": False},
    "early-forward": {"confirm_early": True, "forward": True},
    "late": {"confirm_early": False, "forward": False},
    "late-forward": {"confirm_early": False, "forward": True},
}
KEEPERS = ("one", "odd", "log")
ON_THE_WAY = {
    "251": (1, 4),
    "252": (1, 4),
    "253": (1, 4),
    "254": (1, 9),
    "255": (1, 9),
    "256": (1, 5),
    "216b": (1, 5),
    "217": (1, 3),
}
"""At which passings a multiplexer is killed while events come in."""
KILLS = [
    (mode, f"events.{step}=kill@{passing}")
    for step, passings in ON_THE_WAY.items()
    for passing in passings
    for mode in (("early-forward", "late") if step == "256" else ("early", "late-forward"))
]
AT_START = ["events.271=kill", "events.272=kill", "events.231b=kill", "events.254=kill", "events.240=kill"]
SENDER = ["events.215=kill@2", "events.216=kill@1", "events.216=kill@3", "events.216b=kill@2", "events.217=kill@1"]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(PROCESSES) as nursery:
        yield nursery


def _check_all(collector: MultiplexerPlace, sender: Place) -> None:
    emitted = lines_of(sender.folder / "emitted")
    check(emitted, collector, "one")
    check(emitted, collector, "log")
    check(emitted, collector, "odd", lambda line: line.number % 2 == 1)


@pytest.mark.parametrize(("mode", "arm"), KILLS)
def test_a11_kill_while_events_come_in(nursery: Nursery, tmp_path: Path, mode: str, arm: str) -> None:
    collector = MultiplexerPlace(nursery, tmp_path / "m", recipients=KEEPERS, **MODES[mode])
    collector.start(arm=arm)
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address)
    sender.start(end="stays")
    collector.wait(KILLED)
    collector.start()
    until(lambda: len(lines_of(sender.folder / "emitted")) == 40 and sender.waiting() == 0, "the sender is confirmed")
    collector.drained()
    _check_all(collector, sender)
    sender.kill()
    collector.kill()


@pytest.mark.parametrize("arm", AT_START)
@pytest.mark.parametrize("mode", ["early", "late"])
def test_a11_kill_while_it_replays(nursery: Nursery, tmp_path: Path, mode: str, arm: str) -> None:
    """The life before has left events that `one` has, and others not."""
    collector = MultiplexerPlace(nursery, tmp_path / "m", recipients=KEEPERS, **MODES[mode])
    collector.start(refusing=("odd",))
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address)
    sender.start()
    until(lambda: len(collector.got("one")) >= 40, "they are there")
    collector.kill()
    collector.start(arm=arm)
    collector.wait(KILLED)
    collector.start()
    sender.wait()
    collector.drained()
    _check_all(collector, sender)
    collector.kill()


@pytest.mark.parametrize("arm", SENDER)
@pytest.mark.parametrize("mode", ["early", "late"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a11_kill_of_the_sender(nursery: Nursery, tmp_path: Path, mode: str, arm: str, restarted: bool) -> None:
    """What is complete here, and has left its memory, is known when a sender that missed that sends it again."""
    collector = MultiplexerPlace(nursery, tmp_path / "m", recipients=KEEPERS, **MODES[mode])
    collector.start()
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address)
    sender.start(arm=arm, label="a")
    sender.wait(KILLED)
    collector.drained()
    before = len(collector.got("one"))
    if restarted:
        collector.kill()
        collector.start()
    sender.start(label="b")
    sender.wait()
    collector.drained()
    _check_all(collector, sender)
    got = collector.got("one")
    assert before <= len(got)
    assert max(Counter(line.id for line in got).values()) == 1, "it was delivered again after it was complete"
    collector.kill()


@pytest.mark.parametrize("mode", list(MODES))
def test_a11_both_are_killed_again_and_again(nursery: Nursery, tmp_path: Path, mode: str) -> None:
    collector = MultiplexerPlace(nursery, tmp_path / "m", recipients=KEEPERS, **MODES[mode])
    collector.start()
    sender = Place(nursery, tmp_path / "s", multiplexer=collector.address, events=60)
    for number, (step, other) in enumerate((("255", "216"), ("252", "215"), ("254", "216b"))):
        collector.kill()
        collector.start(arm=f"events.{step}=kill@{3 + number}")
        sender.start(arm=f"events.{other}=kill@{2 + number}", label=f"l{number}", end="stays")
        until(lambda: not (sender.lives and collector.lives), "one of them is killed")
        for place in (sender, collector):
            if place.lives:
                place.kill()
        collector.start()
    sender.start(label="last")
    sender.wait()
    collector.drained()
    _check_all(collector, sender)
    collector.kill()
