"""The rules of alerts: what each is, and how they are read from TOML.

    [[rule]]
    name = "disk-full"
    kind = "threshold"
    where = "JMSType = 'disk.full'"
    count = 3
    within = "5 min"

Guarantees
    1. A `Rule` that exists is valid: its numbers are within their bounds, its selectors compile, its message names
       only what it will have.
    2. Anything else is `BadSetting`, with `line` and `column` of the value, of the key that nobody knows, or of the
       place inside a selector. A key that another kind has is refused too, not ignored.

docs/reference/alert-rules.md lists the keys.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

MINUTE_MS, DAY_MS = 60_000, 86_400_000
RULES_MAX = 100
COUNT_MAX = 10_000
"""Of events or changes that one key has to remember."""
STEPS_MAX = 16
BY_MAX = 8
EXPECTED_MAX = 10_000
SPAN_MS_MAX = 366 * DAY_MS
SLICES = 10
"""A storm counts in slices of a tenth of `within`."""
BASELINE_MAX = 100
"""A baseline is at most so many times `within`."""


class _Condition(msgspec.Struct, frozen=True, tag_field="kind"):
    pass


class Count(_Condition, frozen=True, tag="threshold"):
    """At least `count` events within `within`."""

    count: int
    within_ms: int

    @property
    def horizon_ms(self) -> int:
        return self.within_ms


class Value(_Condition, frozen=True, tag="value"):
    """The last report of a number is over or under a limit, for some time. Written as kind `threshold`."""

    name: str
    over: float | None
    under: float | None
    for_ms: int

    @property
    def horizon_ms(self) -> int:
        return self.for_ms


class Storm(_Condition, frozen=True, tag="storm"):
    """`factor` times more events within `within` than were usual in the `baseline` before, and at least `minimum`."""

    within_ms: int
    baseline_ms: int
    factor: float
    minimum: int

    @property
    def horizon_ms(self) -> int:
        return self.within_ms + self.baseline_ms


class Silence(_Condition, frozen=True, tag="silence"):
    """No event for longer than `after`."""

    after_ms: int
    expect: tuple[tuple[str, ...], ...] = ()

    @property
    def horizon_ms(self) -> int:
        return self.after_ms


class Flapping(_Condition, frozen=True, tag="flapping"):
    """A property changes its value at least `changes` times within `within`."""

    name: str
    changes: int
    within_ms: int

    @property
    def horizon_ms(self) -> int:
        return self.within_ms


class Sequence(_Condition, frozen=True, tag="sequence"):
    """Events that match the steps in this order within `within`; or all but the last, which does not come."""

    steps: tuple[str, ...]
    within_ms: int
    without: str | None = None
    missing_last: bool = False

    @property
    def horizon_ms(self) -> int:
        return self.within_ms


Condition = Count | Value | Storm | Silence | Flapping | Sequence


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. Times are milliseconds."""

    name: str
    condition: Condition
    where: str = ""
    by: tuple[str, ...] = ("source",)
    severity: str = "warning"
    message: str = "{rule}: {key}"
    lateness_ms: int = 5_000
    """How late an event may come: time is believed to have passed only so much later."""
    ordered: bool = False
    """Wait for `lateness_ms`, and take events in the exact order of their times."""
    cooldown_ms: int = 0
    clear: bool = True
    forget_ms: int = DAY_MS

    @property
    def kind(self) -> str:
        """As it is written."""
        return "threshold" if isinstance(self.condition, Count | Value) else type(self.condition).__name__.lower()

    @property
    def fingerprint(self) -> str:
        """Another one when what is remembered under this rule no longer means the same."""
        condition = self.condition
        if isinstance(condition, Silence):
            condition = Silence(condition.after_ms)
        defined = (self.name, condition, self.where, self.by, self.ordered)
        return hashlib.blake2b(msgspec.json.encode(defined), digest_size=8).hexdigest()

    @property
    def selectors(self) -> tuple[str, ...]:
        """One for each bit of a row: those of the steps and then `without`; for other kinds none."""
        if not isinstance(self.condition, Sequence):
            return ()
        return (*self.condition.steps, *((self.condition.without,) if self.condition.without is not None else ()))

    @property
    def reported(self) -> str | None:
        """The property or column whose value a row carries."""
        return self.condition.name if isinstance(self.condition, Value | Flapping) else None


def load(path: Path) -> tuple[Rule, ...]:
    """The rules of a file. Raises `BadSetting`, or `NoPermission`."""
    from clarion.errors import BadSetting, NoPermission
    from clarion.pipelines.alerts.reading import parse

    try:
        text = path.read_bytes().decode()
    except PermissionError:
        raise NoPermission(path=str(path)) from None
    except OSError as error:
        raise BadSetting(file=str(path), detail=f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadSetting(file=str(path), detail=f"it is not UTF-8 at byte {error.start}") from None
    return parse(text, str(path))
