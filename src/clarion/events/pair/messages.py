"""What the machine of a pair is told, and what it wants done.

Rule: names only, no behaviour. Times are milliseconds of one clock that goes on while the process is paused.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from clarion.events.link.frames import Heartbeat


class Policy(StrEnum):
    """Who grants the right to act for a system that is silent."""

    WITNESS = "witness"
    WAIT = "wait"
    """Only an operator. Nothing is doubled, and nothing of a dead system is delivered before somebody says so."""
    REPLAY = "replay"
    """Silence alone. A cut wire looks like a crash, so events may be delivered by both: at least once."""


class Timing(msgspec.Struct, frozen=True):
    """Durations; `of` derives them from that of a lease."""

    lease_ms: int
    margin_ms: int
    """Rights are given up so much earlier than they end, for clocks that run differently."""
    heartbeat_ms: int
    silence_ms: int
    """A partner that was silent for so long is away …"""
    takeover_ms: int
    """… and after so long it may be acted for; a word of it holds as long."""
    retry_ms: int
    """Between two questions to the witness or the partner; also how often a lease is renewed."""
    pause_ms: int
    """Between two ticks; more means that the process was paused."""
    return_wait_ms: int
    """How long a system that was acted for waits for its partner to tell what it did, when that is away itself."""

    @classmethod
    def of(cls, lease_ms: int) -> Timing:
        return cls(
            lease_ms=lease_ms,
            margin_ms=max(lease_ms // 10, 1),
            heartbeat_ms=max(lease_ms // 6, 1),
            silence_ms=lease_ms // 2,
            takeover_ms=lease_ms,
            retry_ms=max(lease_ms // 3, 1),
            pause_ms=lease_ms // 2,
            return_wait_ms=10 * lease_ms,
        )


class Memory(msgspec.Struct, frozen=True):
    """What a system of a pair remembers of it across a crash."""

    epoch: int = 0
    """The last epoch of the lease on its own name that it knows all about; 0: it never had one."""
    act: int = 0
    """The last epoch in which it acted for its partner."""
    owes: bool = False
    """It has confirmations of its partner's events that the partner does not know."""


# --- stimuli --------------------------------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True):
    """Time passes. Due at least every `heartbeat_ms`."""


class Heard(msgspec.Struct, frozen=True):
    """A heartbeat of the partner, over whichever connection."""

    heartbeat: Heartbeat


class Recipients(msgspec.Struct, frozen=True):
    """Who our recipients are has changed: events that are recorded from now on may be for these. Versions grow."""

    version: int


class Mirrored(msgspec.Struct, frozen=True):
    """Whether all that is recorded here is at the partner too, and new events go there at once."""

    whole: bool
    version: int
    """Of our recipients, as the partner has recorded them; 0: it has not, since we started."""
    detail: str = ""


class LeaseGranted(msgspec.Struct, frozen=True):
    """The witness granted or renewed a lease that was asked for at `asked_ms`."""

    name: str
    epoch: int
    ttl_ms: int
    asked_ms: int


class LeaseRefused(msgspec.Struct, frozen=True):
    """Somebody else has it."""

    name: str


class WitnessUnreachable(msgspec.Struct, frozen=True):
    """No answer."""

    name: str


class GiveBackAsked(msgspec.Struct, frozen=True):
    """The partner wants to know what was done for it."""


class ReplayStopped(msgspec.Struct, frozen=True):
    """Nothing of the partner's is on its way any more: what is confirmed is recorded."""

    number: int


class StateApplied(msgspec.Struct, frozen=True):
    """What the partner did is recorded here."""

    epoch: int
    token: int


class GiveBackDone(msgspec.Struct, frozen=True):
    """The partner has recorded what was given back under this token."""

    token: int


class TakeOver(msgspec.Struct, frozen=True):
    """An operator says that the partner is dead."""


class Proceed(msgspec.Struct, frozen=True):
    """An operator says that nobody acts for this system."""


Stimulus = (
    Tick
    | Heard
    | Recipients
    | Mirrored
    | LeaseGranted
    | LeaseRefused
    | WitnessUnreachable
    | GiveBackAsked
    | ReplayStopped
    | StateApplied
    | GiveBackDone
    | TakeOver
    | Proceed
)

# --- instructions ---------------------------------------------------------------------------------


class SendHeartbeat(msgspec.Struct, frozen=True):
    heartbeat: Heartbeat


class AskLease(msgspec.Struct, frozen=True):
    """Ask the witness for the lease on a name, or renew it; say when it was asked in the answer."""

    name: str
    ttl_ms: int
    asked_ms: int


class ReleaseLease(msgspec.Struct, frozen=True):
    name: str
    epoch: int


class Remember(msgspec.Struct, frozen=True):
    """Make this durable before anything that follows."""

    memory: Memory


class SetMayDeliver(msgspec.Struct, frozen=True):
    """Own events may be delivered from now on, or no more. `may_deliver` is to be asked before every batch as well."""

    allowed: bool


class StartReplay(msgspec.Struct, frozen=True):
    """Deliver the partner's events. `may_act` is to be asked before every batch."""

    epoch: int


class StopReplay(msgspec.Struct, frozen=True):
    """Deliver no more of the partner's; say `ReplayStopped` when nothing is on its way any more."""

    number: int


class AskGiveBack(msgspec.Struct, frozen=True):
    epoch: int


class SendGiveBack(msgspec.Struct, frozen=True):
    """Tell the partner which of its events were confirmed to whom."""

    epoch: int
    token: int


class SendDone(msgspec.Struct, frozen=True):
    token: int


class Forget(msgspec.Struct, frozen=True):
    """The partner knows all that was done for it."""


class Report(msgspec.Struct, frozen=True):
    """Emit an event about the pair."""

    type: str
    severity: str
    data: dict[str, str | int | bool]


Instruction = (
    SendHeartbeat
    | AskLease
    | ReleaseLease
    | Remember
    | SetMayDeliver
    | StartReplay
    | StopReplay
    | AskGiveBack
    | SendGiveBack
    | SendDone
    | Forget
    | Report
)
