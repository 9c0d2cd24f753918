"""What happens in a pair until each of its systems was killed at the steps that it was armed for (A-10).

Again and again: both are well, a emits, dies with events that are owed; b acts for it, delivers them, a returns and
gets back what was done. Whoever dies on the way, at its step, lives again. Deliveries to one recipient come first, so
that a death in one of them is a death in one to that recipient.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.pair_harness import World
from tests.faults.pair_ledger import confirmed_for_partner, held_for_partner
from tests.faults.pair_system import System, until

ROUNDS_MAX = 4
"""So often; then a step was not come to."""
EMITTED = 12


class Story:
    """`deaths`: who dies, and at which armed step; those of one system in this order. `first`: a recipient."""

    def __init__(self, pair: World, *deaths: tuple[str, str], first: str) -> None:
        self.pair = pair
        self.left = list(deaths)
        self.first = first

    def tell(self) -> None:
        pair, told = self.pair, list(self.left)
        self._close_gates()
        for system in (pair.b, pair.a):
            if self._arm(system):
                system.close()
                self._begin(system)
        for _ in range(ROUNDS_MAX):
            self._round()
            if not self.left:
                break
        assert not self.left, f"not come to, of {told}: {self.left}"
        pair.check()

    def _round(self) -> None:
        pair, a, b = self.pair, self.pair.a, self.pair.b
        self._close_gates()
        self._until(lambda: a.status()["bond"] == "paired", "a is paired")
        self._try_to(lambda: a.emit(EMITTED))
        self._until(lambda: self._owed() <= held_for_partner(b.child), "b has them")
        if a.runs:
            a.kill()
            pair.died(a)
        self._until(lambda: b.acts, "b acts")
        owed = self._owed()
        pair.open_gate(f"-{self.first}")
        self._until(lambda: owed <= set(confirmed_for_partner(b.child, self.first)), f"b delivers to {self.first}")
        for recipient in b.child.recipients:
            pair.open_gate(f"-{recipient}")
        self._until(lambda: not self._owed(), "b delivers them")
        self._begin(a)
        self._until(pair.is_well, "both are well")

    def _close_gates(self) -> None:
        for recipient in self.pair.b.child.recipients:
            self.pair.close_gate(f"-{recipient}")

    def _owed(self) -> set[str]:
        """Events of a."""
        return self.pair.emitted_by(self.pair.a) - {line.id for line in self.pair.got()}

    # --- who dies -------------------------------------------------------------------------------------

    def _arm(self, system: System) -> str:
        return next((arm for side, arm in self.left if side == system.side), "")

    def _begin(self, system: System) -> None:
        self.pair.begin(system, arm=self._arm(system), initialising=2)
        self._try_to(system.begun)

    def _look(self) -> bool:
        """Whether somebody has just died; then it lives again."""
        dead = [system for system in self.pair.systems.values() if system.runs and system.killed()]
        for system in dead:
            self.left.remove((system.side, self._arm(system)))
            self.pair.died(system)
            self._begin(system)
        return bool(dead)

    def _try_to(self, act: Callable[[], object]) -> object:
        """Unless it is told to somebody who dies of it."""
        try:
            return act()
        except (AssertionError, OSError):
            until(self._look, lambda: f"who does not answer has died: {self._seen()}", 5.0)
            return None

    def _until(self, condition: Callable[[], object], what: str) -> None:
        until(lambda: not self._look() and self._try_to(condition), lambda: f"{what}: {self._seen()}")

    def _seen(self) -> object:
        try:
            return self.left, self._owed(), self.pair.seen()
        except (AssertionError, OSError) as error:
            return error
