"""Names of transactions: 24 bytes in the log and on the bus, text for people and for clients."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec

from clarion.errors import BadArgument

PRODUCER_BYTES = 16
ENCODED_BYTES = PRODUCER_BYTES + 8
NUMBER_MAX = (1 << 64) - 1
_TEXT = re.compile(r"([0-9a-f]{32})-(0|[1-9a-f][0-9a-f]{0,15})", re.ASCII)


class TransactionId(NamedTuple):
    """A producer's transaction. Unique, because producer ids are and a producer uses a number once."""

    producer: Annotated[bytes, msgspec.Meta(min_length=PRODUCER_BYTES, max_length=PRODUCER_BYTES)]
    number: Annotated[int, msgspec.Meta(ge=0)]

    @classmethod
    def of(cls, producer: int, number: int) -> TransactionId:
        """Transaction `number` of the producer with this id."""
        return cls(producer.to_bytes(PRODUCER_BYTES, "big"), number)

    def encode(self) -> bytes:
        """24 bytes, big endian: they sort like the id."""
        return self.producer + self.number.to_bytes(8, "big")

    @classmethod
    def decode(cls, data: bytes) -> TransactionId:
        """The inverse of `encode`. Raises `BadArgument` unless there are exactly 24 bytes."""
        if len(data) != ENCODED_BYTES:
            raise BadArgument(argument="transaction", detail=f"an id has {ENCODED_BYTES} bytes, not {len(data)}")
        return cls(data[:PRODUCER_BYTES], int.from_bytes(data[PRODUCER_BYTES:], "big"))

    def __str__(self) -> str:
        return f"{self.producer.hex()}-{self.number:x}"

    def __repr__(self) -> str:
        return str(self)  # so that the story of a transaction can be read

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """The inverse of `str`, and of nothing else. Raises `BadArgument`."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise BadArgument(argument="transaction", detail=f"{text[:80]!r} is not the id of a transaction")
        return cls(bytes.fromhex(found[1]), int(found[2], 16))


class Handle(NamedTuple):
    """A transaction that was prepared for an owner outside, with everybody who has to do with it.

    Its text is all that another client manager needs to decide it.
    """

    transaction: TransactionId
    participants: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.transaction}@{'.'.join(map(str, self.participants))}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """The inverse of `str`. Raises `BadArgument`."""
        transaction, _, groups = text.partition("@")
        try:
            handle = cls(TransactionId.parse(transaction), tuple(int(group) for group in groups.split(".") if group))
        except ValueError:
            handle = None
        if handle is None or str(handle) != text or list(handle.participants) != sorted(set(handle.participants)):
            raise BadArgument(argument="handle", detail=f"{text[:80]!r} is not a handle")
        return handle
