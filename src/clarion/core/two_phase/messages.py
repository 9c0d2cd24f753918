"""What the machines of two-phase commit hear and say: messages, entries, other stimuli, instructions.

Messages travel between client managers and message managers; `encode` and `decode` are their form on the bus
(MessagePack arrays; fields are only ever added at the end). Entries are facts for the log of a message
manager: the host stores them within entries of its own, and gives them back in the same order.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from .identity import Handle, TransactionId


class Decision(IntEnum):
    """How a transaction ends."""

    ABORT = 0
    COMMIT = 1


ROLLED_BACK = "its client rolled it back"
NOT_READY = "a message manager did not answer in time"
SESSION_ENDED = "its session ended"
TOO_LONG = "it took too long"
EXPIRED = "it expired before its owner decided"
SILENT = "its client manager fell silent before it was decided"
NOT_PREPARED = "it is not prepared where it is decided"


class _Value(msgspec.Struct, frozen=True, array_like=True):
    """Compared by type and fields, never changed."""


class _Message(_Value, frozen=True):
    transaction: TransactionId


# --- from the coordinator -----------------------------------------------------------------------------


class Prepare(_Message, frozen=True, tag=1):
    """Can you? Once ready, you can and will, whatever happens."""

    participants: tuple[int, ...]
    """All of them, ascending; the first holds the decision."""
    work: bytes = b""
    """What it is about, for the host: what was consumed, how much must have been staged, …"""
    handles: tuple[TransactionId, ...] = ()
    """Prepared transactions that this one decides with itself."""
    expires_at_ms: int = 0
    """Unix time until which the transaction waits for an owner outside; 0: the coordinator is its owner."""


class CommitOne(_Message, frozen=True, tag=2):
    """You are the only participant: prepare, decide and complete."""

    work: bytes = b""
    handles: tuple[TransactionId, ...] = ()


class Decide(_Message, frozen=True, tag=3):
    """To the decision holder: let this be the decision, unless there is one already."""

    decision: Decision
    reason: str = ""
    work: bytes = b""


class Final(_Message, frozen=True, tag=4):
    """This is the decision, a fact. From the coordinator, or from the decision holder."""

    decision: Decision
    reason: str = ""
    work: bytes = b""


class Close(_Message, frozen=True, tag=5):
    """To the decision holder: everybody has completed."""


# --- from participants --------------------------------------------------------------------------------


class Ready(_Message, frozen=True, tag=6):
    """Prepared, durably."""

    participant: int


class Fail(_Message, frozen=True, tag=7):
    """Aborted, durably, and never prepared again: nobody can commit this transaction."""

    participant: int
    reason: str


class Completed(_Message, frozen=True, tag=8):
    """This was decided, and is durable here."""

    participant: int
    decision: Decision
    reason: str = ""


class Ask(_Message, frozen=True, tag=9):
    """To the decision holder: I am prepared and nobody speaks to me; what was decided? Answered by `Final`."""

    participant: int


ToParticipant = Prepare | CommitOne | Decide | Final | Close | Completed | Ask
ToCoordinator = Ready | Fail | Completed
Message = ToParticipant | ToCoordinator

encode = msgspec.msgpack.encode
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def decode(data: bytes | memoryview) -> Message:
    """The inverse of `encode`. Raises `msgspec.DecodeError` for anything else."""
    return _decoder.decode(data)


# --- other stimuli ------------------------------------------------------------------------------------


class Tick(_Value, frozen=True):
    """Time has passed."""


class Stage(_Value, frozen=True):
    """To a participant: a batch wants to be part of this transaction."""

    transaction: TransactionId


class SessionEnded(_Value, frozen=True):
    """To a participant: nothing more comes from this producer."""

    producer: bytes


class Commit(_Value, frozen=True):
    """To a coordinator: commit, now."""


class Rollback(_Value, frozen=True):
    """To a coordinator: undo."""

    reason: str = ROLLED_BACK


class Hold(_Value, frozen=True):
    """To a coordinator: prepare, and leave the decision to whoever has the handle, until it expires."""

    expires_at_ms: int


# --- entries of a participant's log -------------------------------------------------------------------


class Began(_Value, frozen=True):
    """The first batch of a transaction was staged. A host whose staged batches carry the id need not store it."""

    transaction: TransactionId


class Prepared(_Value, frozen=True):
    """The transaction will be decided by the first of `participants`, or with the bundle that takes it over."""

    transaction: TransactionId
    participants: tuple[int, ...]
    handles: tuple[TransactionId, ...] = ()
    expires_at_ms: int = 0


class Decided(_Value, frozen=True):
    """The transaction is decided, and with it those it was a bundle of, all in this one entry."""

    transactions: tuple[TransactionId, ...]
    """The transaction itself comes first."""
    decision: Decision
    reason: str = ""


class Closed(_Value, frozen=True):
    """Every participant has completed: the decision holder need not keep the outcome for them."""

    transaction: TransactionId


Entry = Began | Prepared | Decided | Closed


# --- instructions -------------------------------------------------------------------------------------


class Log(_Value, frozen=True):
    """Append this entry, and apply it, before anything else is handled."""

    entry: Entry


class AfterDurable(_Value, frozen=True):
    """Send this when everything logged so far is durable."""

    message: Message
    to: int | None = None
    """A message manager group; None: whoever sent the message that is being handled."""


class Refuse(_Value, frozen=True):
    """To `Stage`: the batch cannot be part of this transaction any more, or there are too many."""

    reason: str


class Contradiction(_Value, frozen=True):
    """Somebody decided otherwise. Either a fault, or an outcome that somebody forgot; for the operator."""

    transaction: TransactionId
    detail: str


class Send(_Value, frozen=True):
    """From a coordinator: send this to a message manager group."""

    to: int
    message: Message


class Held(_Value, frozen=True):
    """From a coordinator: it is prepared everywhere and waits for its owner."""

    handle: Handle


class Outcome(_Value, frozen=True):
    """From a coordinator: this is what to tell the client."""

    decision: Decision
    reason: str = ""


ParticipantInstruction = Log | AfterDurable | Refuse | Contradiction
CoordinatorInstruction = Send | Held | Outcome | Contradiction
