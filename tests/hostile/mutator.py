"""Frames that no honest client sends, from a seed: one seed gives one sequence of connections.

A connection is a valid beginning (none, HELLO, HELLO and OPEN, a used session, a closed one), then frames that
are wrong in a way that an answer can be given for, and at the end one that may cost the connection. So every
frame that is counted is one that a server has looked at.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from crc32c import crc32c

from clarion import ids
from clarion.wire import batch, frames
from clarion.wire.frames import Type

QUEUES = [f"queue:fuzz-{number}" for number in range(6)]
TOPICS = [f"topic:fuzz-t{number}" for number in range(4)]
NAMES = [*QUEUES, *TOPICS, "fuzz-0", "fuzz-t0", "topic:fuzz-0", "queue:fuzz-t0"]
BAD_NAMES = ["", "queue:", ":", "a b", "x" * 300, "exchange:a", "queue:_system", "\0", "queue:\ud7ff\0", "é" * 200]
VERBS = ["status", "destinations", "browse", "purge", "delete", "create", "drop", "unsubscribe", "explode", ""]
U32, U63, U64 = (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1
NUMBERS = [0, 1, 2, 3, 5, 100, 65_536, U32, U32 + 1, U63, U63 + 1, U64, -1, -(1 << 63)]
SESSION_TYPES = [
    Type.OPEN, Type.CLOSE, Type.PUBLISH, Type.SUBSCRIBE, Type.CREDIT, Type.CONFIRM, Type.REJECT, Type.UNSUBSCRIBE,
    Type.REQUEST,
]  # fmt: skip
FIELDS = [
    ("I", 4), ("B", 10), ("B", 11), ("I", 12), ("Q", 16), ("Q", 24), ("I", 32), ("I", 36), ("q", 40), ("q", 48),
    ("q", 64), ("H", 72), ("H", 74), ("I", 76), ("I", 92), ("I", 96),
]  # fmt: skip
"""Fields of a batch: type and offset."""
BEGINNINGS = ["nothing", "hello", "open", "open", "open", "used", "used", "used", "closed", "goodbye"]


def raw_frame(kind: int, channel: int, payload: bytes, flags: int = 0) -> bytes:
    """One frame of any content."""
    return frames.HEADER.pack(len(payload), kind & 255, flags & 255, 0, channel & U32) + payload


class Mutator:
    """An endless source of connections."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._producer = 0
        self._sequence = 0

    def connection(self) -> tuple[list[bytes], int]:
        """What one connection sends, frame by frame, and how many frames of it are mutated."""
        rng = self.random
        self._producer = ids.EPOCH_MS << 64 | rng.getrandbits(60) << 48
        self._sequence = 1
        beginning = rng.choice(BEGINNINGS)
        sent = self._beginning(beginning)
        answerable = min(60, int(rng.expovariate(1 / 16))) if beginning in ("open", "used") else 0
        mutated = [self._soft() for _ in range(answerable)]
        mutated.append(self._hard())
        return [*sent, *mutated], len(mutated)

    # --- what is right ----------------------------------------------------------------------------------

    def _beginning(self, how: str) -> list[bytes]:
        hello = raw_frame(Type.HELLO, 0, frames.pack({"versions": [1, 1], "authentication": {"mechanism": "none"}}))
        opened = [hello, raw_frame(Type.OPEN, 1, frames.pack({"producer": self._producer.to_bytes(16, "big")}))]
        match how:
            case "nothing":
                return []
            case "hello":
                return [hello]
            case "open":
                return opened
            case "closed":
                return [*opened, raw_frame(Type.CLOSE, 1, b"")]
            case "goodbye":
                return [*opened, raw_frame(Type.GOODBYE, 0, frames.pack({"code": "", "facts": {}}))]
        used = [raw_frame(Type.PUBLISH, 1, self._publish()) for _ in range(2)]
        subscribed = [
            raw_frame(Type.SUBSCRIBE, 1, frames.pack({**self._subscribe(), "consumer": number})) for number in (1, 2)
        ]
        return [*opened, *used, *subscribed]

    def _publish(self, name: bytes | None = None) -> bytes:
        rng = self.random
        destination = rng.choice(NAMES).encode() if name is None else name
        bodies = [rng.randbytes(rng.choice([0, 1, 50, 700])) for _ in range(rng.choice([1, 1, 3, 40]))]
        headers = [rng.randbytes(rng.choice([0, 5])) for _ in bodies] if rng.random() < 0.3 else None
        first = self._sequence
        deltas = None
        if rng.random() < 0.2:  # a sparse one; what is left out is never sent
            deltas = sorted(rng.sample(range(1, 3 * len(bodies) + 1), len(bodies)))
            deltas = [delta - deltas[0] for delta in deltas]
        self._sequence += len(bodies) if deltas is None else deltas[-1] + 1
        encoded = batch.encode(destination, self._producer + first, bodies, headers, id_deltas=deltas)
        return frames.FLOOR.pack(first) + encoded

    def _subscribe(self) -> dict[str, object]:
        rng = self.random
        durable = rng.random() < 0.3
        return {
            "request": rng.randrange(1, 100),
            "consumer": rng.randrange(1, 6),
            "destination": rng.choice(NAMES),
            "subscription": rng.choice(["s1", "s2"]) if durable else None,
            "durable": durable,
            "shared": rng.random() < 0.2,
            "credit_messages": rng.choice([0, 1, 100, 1_000_000]),
            "credit_bytes": rng.choice([0, 1, 100_000, 64 << 20]),
            "unconfirmed_max": rng.choice([1, 10, 1_000_000]),
            "held": [self._range() for _ in range(rng.choice([0, 0, 3]))],
        }

    def _range(self) -> tuple[int, int]:
        rng = self.random
        first = rng.choice([0, 1, rng.randrange(1, 300), U63 - 10])
        return first, first + rng.choice([1, 2, 30, 1 << 40 if first < U32 else 1])

    def _request(self) -> dict[str, object]:
        rng = self.random
        arguments: dict[str, object] = {
            "destination": rng.choice(NAMES),
            "from": rng.randrange(100),
            "messages": rng.randrange(1, 50),
            "bytes": rng.randrange(1, 100_000),
            "ranges": [list(self._range())],
            "quota_bytes": rng.choice([1, 1_000, 1_000_000]),
            "subscription": "s1",
        }
        return {"request": rng.randrange(1, 100), "verb": rng.choice(VERBS), "arguments": arguments}

    def _unsubscribe(self) -> dict[str, object]:
        rng = self.random
        unseen = [self._range() for _ in range(rng.randrange(3))]
        return {"request": 7, "consumer": rng.randrange(6), "unseen": unseen, "delete": rng.random() < 0.3}

    # --- what is wrong, and can be answered -------------------------------------------------------------

    def _soft(self) -> bytes:
        rng = self.random
        made: Callable[[], bytes] = rng.choice(
            [self._confused, self._confused, self._confused, self._acknowledgement, self._credit, self._odd_publish]
        )
        return made()

    def _confused(self) -> bytes:
        """A control payload with values of other types, sizes and meanings than it should have."""
        rng = self.random
        kind, value = rng.choice(
            [
                (Type.SUBSCRIBE, self._subscribe()),
                (Type.UNSUBSCRIBE, self._unsubscribe()),
                (Type.REQUEST, self._request()),
                (Type.REQUEST, self._request()),
            ]
        )
        target = value
        arguments = value.get("arguments")
        if isinstance(arguments, dict) and rng.random() < 0.8:
            target = arguments
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            key = rng.choice([key for key in target if key not in ("request", "verb", "consumer")])
            if rng.random() < 0.2:
                del target[key]
            else:
                target[key] = self._value()
            if not target.keys() - {"request", "verb", "consumer"}:
                break
        return raw_frame(kind, 1, frames.pack(value))

    def _value(self, depth: int = 0) -> object:
        rng = self.random
        match rng.randrange(11):
            case 0 | 1 | 2:
                return rng.choice(NUMBERS)
            case 3:
                return rng.choice([0.5, float("inf"), float("-inf"), float("nan"), 1e300])
            case 4:
                return rng.choice([*NAMES, *BAD_NAMES])
            case 5:
                return rng.randbytes(rng.randrange(40))
            case 6:
                return rng.choice([None, True, False])
            case 7 if depth < 4:
                return [self._value(depth + 1) for _ in range(rng.randrange(4))]
            case 8 if depth < 4:
                return {rng.choice(["a", "destination", ""]): self._value(depth + 1)}
            case 9:
                return [self._range() for _ in range(rng.choice([1, 50, 2_000]))]
        return rng.choice(NAMES)

    def _acknowledgement(self) -> bytes:
        rng = self.random
        kind = rng.choice([Type.CONFIRM, Type.CONFIRM, Type.REJECT])
        ranges = [self._range() for _ in range(rng.choice([0, 1, 1, 3, 1_024]))]
        request = rng.choice([0, 0, 1, U63, U64])
        return raw_frame(kind, 1, frames.pack_ack(rng.randrange(6), request, ranges))

    def _credit(self) -> bytes:
        rng = self.random
        credit = frames.CREDIT.pack(rng.randrange(6), rng.choice([0, 1, 1_000_000]), rng.choice([0, 1, 64 << 20]))
        return raw_frame(Type.CREDIT, 1, credit)

    def _odd_publish(self) -> bytes:
        """A sound batch with an odd name, an old or a far sequence, a flag, odd times."""
        rng = self.random
        match rng.randrange(5):
            case 0:
                name = rng.choice([*BAD_NAMES[1:]]).encode("utf-8", "surrogatepass")[:263]
                return raw_frame(Type.PUBLISH, 1, self._publish(name or b"?"))
            case 1:
                return raw_frame(Type.PUBLISH, 1, self._publish(rng.randbytes(rng.randrange(1, 20))))
            case 2:
                self._sequence = rng.choice([1, 2, self._sequence + 5, self._sequence + (1 << 25), 1 << 47])
                return raw_frame(Type.PUBLISH, 1, self._publish(), flags=rng.choice([0, 1, 255]))
            case 3:
                return self._lying_batch(harmless=True)
        return raw_frame(Type.PUBLISH, 1, self._publish())

    # --- what may cost the connection -------------------------------------------------------------------

    def _hard(self) -> bytes:
        rng = self.random
        made: Callable[[], bytes] = rng.choice(
            [
                self._flipped, self._flipped, self._truncated, self._wrong_size, self._wrong_channel, self._unknown,
                self._noise, self._lying_batch, self._deep, self._not_text, self._huge_counts, self._server_frame,
            ]
        )  # fmt: skip
        return made()

    def _any_valid(self) -> tuple[int, bytes]:
        rng = self.random
        kind = rng.choice([*SESSION_TYPES, Type.HELLO, Type.GOODBYE, Type.HEARTBEAT])
        match kind:
            case Type.PUBLISH:
                return kind, self._publish()
            case Type.SUBSCRIBE:
                return kind, frames.pack(self._subscribe())
            case Type.UNSUBSCRIBE:
                return kind, frames.pack(self._unsubscribe())
            case Type.REQUEST:
                return kind, frames.pack(self._request())
            case Type.CONFIRM | Type.REJECT:
                return kind, frames.pack_ack(1, 1, [self._range()])
            case Type.CREDIT:
                return kind, frames.CREDIT.pack(1, 1, 1)
            case Type.HELLO:
                return kind, frames.pack({"versions": [1, 1], "heartbeat_ms": rng.choice(NUMBERS)})
            case Type.OPEN:
                return kind, frames.pack({"producer": rng.choice([None, rng.randbytes(16), b""])})
            case Type.GOODBYE:
                return kind, frames.pack({"code": rng.choice(["", "CLN-102", "x"]), "facts": {"self": 1}})
        return kind, b""

    def _flipped(self) -> bytes:
        kind, payload = self._any_valid()
        data = bytearray(raw_frame(kind, self.random.choice([0, 1]), payload))
        for _ in range(self.random.choice([1, 1, 2, 8])):
            at = self.random.randrange(len(data))
            data[at] ^= 1 << self.random.randrange(8)
        return bytes(data)

    def _truncated(self) -> bytes:
        kind, payload = self._any_valid()
        whole = raw_frame(kind, 1, payload)
        return whole[: self.random.randrange(1, len(whole))]

    def _wrong_size(self) -> bytes:
        kind, payload = self._any_valid()
        size = self.random.choice([0, 1, len(payload) - 1, len(payload) + 1, 4 << 20, (4 << 20) + 4097, U32])
        return frames.HEADER.pack(max(0, size), kind, 0, 0, 1) + payload

    def _wrong_channel(self) -> bytes:
        kind, payload = self._any_valid()
        return raw_frame(kind, self.random.choice([0, 2, 77, U32]), payload)

    def _unknown(self) -> bytes:
        kind = self.random.choice([0, 5, 9, 14, 19, 25, 43, 100, 101, 255])
        return raw_frame(kind, self.random.choice([0, 1]), self.random.randbytes(self.random.randrange(50)))

    def _noise(self) -> bytes:
        return self.random.randbytes(self.random.choice([1, 11, 12, 13, 200, 5_000]))

    def _lying_batch(self, harmless: bool = False) -> bytes:
        """A batch whose inner numbers lie, under a checksum that is right."""
        rng = self.random
        payload = bytearray(self._publish())
        view = memoryview(payload)[frames.FLOOR.size :]
        if harmless:
            struct.pack_into("<B", view, 11, rng.randrange(10))
            struct.pack_into("<qqqq", view, 40, *(rng.choice([0, 1, U63, 1 << 41]) for _ in range(4)))
        else:
            size, at = rng.choice(FIELDS)
            known = batch.Batch(view)
            if known.flags & batch.IDS and rng.random() < 0.5:  # one of its ids
                size, at = "I", known.size - len(known.data) - 4 * rng.randint(1, known.count)
            width = struct.calcsize(size)
            at = min(at, len(view) - width)
            value = rng.choice([0, 1, 2, 255, 65_535, U32, U63, rng.getrandbits(8 * width)])
            view[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        view[0:4] = crc32c(view[4:]).to_bytes(4, "little")
        del view
        return raw_frame(Type.PUBLISH, 1, bytes(payload))

    def _deep(self) -> bytes:
        depth = self.random.choice([100, 2_000, 100_000])
        opening = self.random.choice([b"\x91", b"\x81\xa1a"])
        head = b"\x83\xa7request\x01\xa4verb\xa6status\xa9arguments" if self.random.random() < 0.5 else b""
        kind = self.random.choice([Type.HELLO, Type.GOODBYE, Type.OPEN, Type.REQUEST, Type.SUBSCRIBE])
        channel = 0 if kind in (Type.HELLO, Type.GOODBYE) else self.random.choice([1, 9])
        return raw_frame(kind, channel, head + opening * depth + b"\xc0")

    def _not_text(self) -> bytes:
        payload = frames.pack({**self._subscribe(), "destination": "queue:NAME"})
        wrong = self.random.choice([b"\xff\xfe\xfd\xfc", b"\xc0\x80ab", b"\xed\xa0\x80a"])
        return raw_frame(Type.SUBSCRIBE, 1, payload.replace(b"NAME", wrong))

    def _huge_counts(self) -> bytes:
        rng = self.random
        match rng.randrange(4):
            case 0:
                return raw_frame(Type.CREDIT, 1, frames.CREDIT.pack(1, U32, U64))
            case 1:
                ranges = frames.RANGE.pack(*rng.choice([(0, U64), (5, 5), (9, 1), (U64 - 1, U64)]))
                return raw_frame(Type.CONFIRM, 1, frames.ACK.pack(1, 0, 1) + ranges * rng.choice([1, 1_025, 5_000]))
            case 2:  # an array, map, text or bytes that says it has 4 billion elements
                return raw_frame(Type.REQUEST, 1, rng.choice([b"\xdd", b"\xdf", b"\xdb", b"\xc6"]) + b"\xff" * 4)
        ranges_claimed = [[1, 2]] * rng.choice([16_384, 16_385, 60_000])
        return raw_frame(Type.SUBSCRIBE, 1, frames.pack({**self._subscribe(), "held": ranges_claimed}))

    def _server_frame(self) -> bytes:
        kind = self.random.choice([kind for kind in Type if kind not in SESSION_TYPES])
        return raw_frame(kind, self.random.choice([0, 1]), self.random.randbytes(self.random.choice([0, 16, 40])))
