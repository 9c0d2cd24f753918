"""The states of a system of a pair, and what changes them: the tables that `machine` obeys.

Rule: what is not in a table does not change that state.
"""

from __future__ import annotations

from enum import StrEnum


class Right(StrEnum):
    """To deliver our own events."""

    WAITING = "waiting"  # not yet
    HOLDING = "holding"  # yes
    FENCED = "fenced"  # no more: it ran out
    RETURNING = "returning"  # the partner acts for us, or has done so: we asked for what it did
    OWED = "owed"  # it is ours again, but what the partner did is not known yet


class Duty(StrEnum):
    """To deliver the partner's events."""

    IDLE = "idle"
    TAKING_OVER = "taking over"
    ACTING = "acting"
    GIVING_BACK = "giving back"


class Bond(StrEnum):
    """Whether our events are at the partner too."""

    ALONE = "alone"  # since the start
    PAIRED = "paired"
    TELLING = "telling"  # they are, but our recipients have changed, and the partner does not know it yet
    DEGRADED = "degraded"


class Event(StrEnum):
    """What can change a state."""

    ALLOWED = "a lease or a word, and nothing is owed to us"
    OWED = "a lease, but somebody acted for us meanwhile"
    ACTED = "the partner acts for us, or has done so"
    APPLIED = "what it did is recorded"
    PATIENCE = "it did not tell for too long"
    LAPSED = "the right ran out"
    SILENT = "nothing heard of the partner for too long"
    HEARD = "a sign of life of it"
    ORDERED = "an operator says so"
    GRANTED = "the lease on the partner's name"
    ASKED = "the partner wants its events back"
    DONE = "the partner has recorded what we did"
    WHOLE = "all that is recorded is at the partner, and it knows for whom it is"
    BROKEN = "it is not"
    UNTOLD = "it is, but the partner does not know our recipients of now"


RIGHT: dict[Right, dict[Event, Right]] = {
    Right.WAITING: {
        Event.ALLOWED: Right.HOLDING,
        Event.OWED: Right.OWED,
        Event.ACTED: Right.RETURNING,
        Event.ORDERED: Right.HOLDING,
    },
    Right.HOLDING: {
        Event.LAPSED: Right.FENCED,
        Event.ACTED: Right.RETURNING,
    },
    Right.FENCED: {
        Event.ALLOWED: Right.HOLDING,
        Event.OWED: Right.OWED,
        Event.ACTED: Right.RETURNING,
        Event.ORDERED: Right.HOLDING,
    },
    Right.RETURNING: {
        Event.APPLIED: Right.WAITING,
        Event.ALLOWED: Right.HOLDING,
        Event.OWED: Right.OWED,
        Event.ORDERED: Right.HOLDING,
    },
    Right.OWED: {
        Event.APPLIED: Right.HOLDING,
        Event.ALLOWED: Right.HOLDING,
        Event.PATIENCE: Right.HOLDING,
        Event.LAPSED: Right.FENCED,
        Event.ORDERED: Right.HOLDING,
    },
}
DUTY: dict[Duty, dict[Event, Duty]] = {
    Duty.IDLE: {
        Event.SILENT: Duty.TAKING_OVER,
        Event.ORDERED: Duty.ACTING,
    },
    Duty.TAKING_OVER: {
        Event.HEARD: Duty.IDLE,
        Event.GRANTED: Duty.ACTING,
    },
    Duty.ACTING: {
        Event.ASKED: Duty.GIVING_BACK,
        Event.LAPSED: Duty.IDLE,
    },
    Duty.GIVING_BACK: {
        Event.DONE: Duty.IDLE,
        Event.SILENT: Duty.TAKING_OVER,  # not acting: it may have recorded what we told it, so anew
        Event.LAPSED: Duty.IDLE,
    },
}
BOND: dict[Bond, dict[Event, Bond]] = {
    Bond.ALONE: {Event.WHOLE: Bond.PAIRED, Event.BROKEN: Bond.DEGRADED, Event.SILENT: Bond.DEGRADED},
    Bond.PAIRED: {Event.BROKEN: Bond.DEGRADED, Event.SILENT: Bond.DEGRADED, Event.UNTOLD: Bond.TELLING},
    Bond.TELLING: {Event.WHOLE: Bond.PAIRED, Event.BROKEN: Bond.DEGRADED, Event.SILENT: Bond.DEGRADED},
    Bond.DEGRADED: {Event.WHOLE: Bond.PAIRED},
}
