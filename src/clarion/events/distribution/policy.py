"""How long to wait after a failure, and when to stop trying."""

from __future__ import annotations

import msgspec

from clarion.errors import BadArgument

_DOUBLINGS_MAX = 64
"""More failures than this never change a pause; the power stays a number."""


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Backoff and give-up of one recipient. By default nothing is ever given up."""

    first_ms: int = 200
    factor: float = 2.0
    max_ms: int = 60_000
    jitter: float = 0.2
    """A pause is up to this part of itself longer or shorter."""
    give_up_age_ms: int | None = None
    """An event that is so old is given up when it fails, or when its recipient fails again and again."""
    give_up_attempts: int | None = None
    """An event that failed so often, on its own, is given up."""

    def __post_init__(self) -> None:
        if not 1 <= self.first_ms <= self.max_ms:
            raise BadArgument(argument="first_ms", detail=f"{self.first_ms} is not within 1 to {self.max_ms}")
        if not 1.0 <= self.factor <= 1_000.0 or not 0.0 <= self.jitter <= 1.0:
            raise BadArgument(argument="factor", detail="the factor is at least 1, jitter is within 0 to 1")
        for name, value in (("give_up_age_ms", self.give_up_age_ms), ("give_up_attempts", self.give_up_attempts)):
            if value is not None and value < 1:
                raise BadArgument(argument=name, detail=f"{value} is less than 1")

    def pause_ms(self, failures: int, chance: float) -> int:
        """The pause after so many failures in a row; `chance` is within 0 to 1 and makes the jitter."""
        pause = min(self.first_ms * self.factor ** min(failures - 1, _DOUBLINGS_MAX), self.max_ms)
        return max(1, round(pause * (1 + self.jitter * (2 * chance - 1))))

    def why_given_up(self, attempts: int, age_ms: int) -> str | None:
        """The reason to give up an event that has just failed; None to go on."""
        if self.give_up_attempts is not None and attempts >= self.give_up_attempts:
            return f"failed {attempts} times"
        return self.why_too_old(age_ms)

    def why_too_old(self, age_ms: int) -> str | None:
        """The reason to give up an event of this age; None to go on."""
        if self.give_up_age_ms is not None and age_ms >= self.give_up_age_ms:
            return f"not delivered within {self.give_up_age_ms} ms"
        return None
