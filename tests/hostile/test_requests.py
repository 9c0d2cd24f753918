"""Requests whose arguments are of the wrong type, size or time: an error for whoever asks, and nothing else (B-17)."""

from __future__ import annotations

import pytest

from clarion import limits
from clarion.errors import BadArgument, BadName, LimitReached, RequestError
from clarion.wire import batch, frames
from clarion.wire.frames import Type
from tests.hostile.raw import RawClient
from tests.integration.topologies import Topology

WRONG: list[object] = [5, -1, 1.5, float("inf"), float("nan"), None, True, b"\xff", [], {}, [[1]], (1 << 64) - 1, ""]


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        ("browse", "destination"),
        ("browse", "from"),
        ("browse", "messages"),
        ("browse", "bytes"),
        ("browse", "selector"),
        ("purge", "destination"),
        ("delete", "ranges"),
        ("create", "destination"),
        ("create", "quota_bytes"),
        ("drop", "destination"),
        ("unsubscribe", "subscription"),
        ("recover", "restart"),
        ("read", "destination"),
        ("read", "from"),
        ("read", "end"),
        ("read", "bytes"),
        ("read", "selector"),
        ("read", "subscription"),
        ("read", "identity"),
        ("reader_open", "destination"),
        ("reader_open", "reader"),
        ("reader_open", "subscription"),
        ("reader_open", "selector"),
        ("reader_open", "start"),
        ("reader_open", "start_ms"),
        ("reader_look", "destination"),
        ("reader_look", "reader"),
        ("reader_look", "after"),
        ("reader_look", "subscription"),
        ("reader_confirm", "ranges"),
        ("reader_confirm", "subscription"),
        ("reader_close", "reader"),
        ("committed_version", "key"),
    ],
)
def test_b17_arguments_of_the_wrong_type_are_refused(server: Topology, name: str, verb: str, argument: str) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        raw.publish(producer, 1, f"queue:{name}", b"x")
        raw.next(Type.PUBLISHED)
        usual: dict[str, object] = {"destination": name}
        if verb == "create":
            usual = {"destination": f"{name}-new", "quota_bytes": 1}
        elif verb == "read":
            usual |= {"from": 1, "end": 100}
        elif verb == "reader_open":
            usual |= {"destination": f"topic:{name}-new", "reader": 1, "subscription": "s"}
        elif verb == "reader_confirm":
            usual = {"ranges": {f"queue:{name}": [None, [[1, 2]]]}}
        for number, value in enumerate([*WRONG, [[0, 1]], [[2, 1]], [[1, 1 << 63]], [["a", "b"]], [[1, 2, 3]]]):
            try:
                raw.request(verb, request=number + 1, **{**usual, argument: value})
            except RequestError:
                pass
        for number, value in enumerate([-1, float("inf"), (1 << 64) - 1, "a b", [1], 5.5]):
            if argument in ("from", "messages", "bytes", "quota_bytes") and value != 5.5:
                with pytest.raises((BadArgument, BadName)):
                    raw.request(verb, request=100 + number, **{**usual, argument: value})
        assert raw.request("status", request=1_000)["node"]


def test_b17_a_destination_is_dropped_in_the_same_breath_as_it_is_used(server: Topology, name: str) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        sequence = 1
        for number in range(60):
            destination = f"{'topic' if number % 2 else 'queue'}:{name}"
            parts: list[bytes] = []
            for _ in range(3):
                encoded = batch.encode(destination.encode(), producer + sequence, [bytes(500)] * 3)
                parts += [bytes(part) for part in frames.frame(Type.PUBLISH, 1, [frames.FLOOR.pack(sequence), encoded])]
                sequence += 3
            for verb in ("purge", "drop"):
                asked = frames.pack({"request": number + 1, "verb": verb, "arguments": {"destination": name}})
                parts += [bytes(part) for part in frames.frame(Type.REQUEST, 1, [asked])]
            raw.write(b"".join(parts))
            answers = 0
            while answers < 2:
                answers += raw.frame().type in (Type.REPLY, Type.ERROR)


def test_b13_a_session_has_a_bounded_number_of_consumers(server: Topology, name: str) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        raw.open()
        for number in range(limits.CONSUMERS_PER_SESSION_MAX):
            raw.subscribe(f"queue:{name}", consumer=number, request=number + 1)
        with pytest.raises(LimitReached):
            raw.subscribe(f"queue:{name}", consumer=9_999, request=9_999)


@pytest.mark.parametrize(
    "ranges",
    [
        {5: [None, [[1, 2]]]},
        {b"x": [None, []]},
        {"a b": [None, []]},
        {"queue:q": []},
        {"queue:q": [None]},
        {"queue:q": [None, [1]]},
        {"queue:q": [None, [[1]]]},
        {"queue:q": [None, [["a", "b"]]]},
        {"queue:q": [None, [[1, 1 << 63]]]},
        {"queue:q": [None, [[-1, 5]]]},
        {"queue:q": ["a", [[1, 5]]]},
        {"queue:q": 5},
    ],
)
def test_b17_ranges_that_are_none_confirm_nothing(server: Topology, name: str, ranges: dict[object, object]) -> None:
    """Not even those beside them that are right: all is checked before anything changes."""
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        raw.publish(producer, 1, f"queue:{name}", b"x")
        raw.next(Type.PUBLISHED)
        named = {f"queue:{name}" if one == "queue:q" else one: said for one, said in ranges.items()}
        if f"queue:{name}" not in named:
            named = {f"queue:{name}": [None, [[1, 2]]], **named}
        with pytest.raises(RequestError):
            raw.request("reader_confirm", request=1, ranges=named)
        (left,) = raw.request("read", request=2, destination=name, **{"from": 1, "end": 9})["slices"]
        assert left[0] == 1


def test_b17_many_reads_that_nobody_takes_cost_nobody_else_anything(server: Topology, name: str) -> None:
    """A client asks for far more than may wait for a connection, and reads none of it for a while."""
    with RawClient(server.port) as greedy, RawClient(server.port) as other:
        greedy.hello()
        producer = greedy.open()
        for number in range(30):
            greedy.publish(producer, 1 + 50 * number, f"queue:{name}", *[bytes(20_000)] * 50)
            greedy.next(Type.PUBLISHED)
        asked: list[bytes] = []
        for number in range(200):
            wanted = {"destination": name, "from": 1, "end": 1_501}
            said = frames.pack({"request": number + 1, "verb": "read", "arguments": wanted})
            asked += [bytes(part) for part in frames.frame(Type.REQUEST, 1, [said])]
        greedy.write(b"".join(asked))
        other.hello()
        other.open()
        for number in range(20):
            assert other.request("status", request=number + 1)["node"]
        answers = 0
        while answers < 200:
            answers += greedy.frame().type == Type.REPLY
