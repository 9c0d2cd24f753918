"""Dead messages sent back, a thousand at a time, by a list.

Guarantees
    1. Neither twice nor not at all: what is sent is durable where it goes and gone from `_DMQ` by one entry of the
       broker's log. So a chunk may be asked for again, by this process or by a later one: what was sent is passed over.
    2. Only what is on the list is sent, and only in the `_DMQ` that the list was made of.
    3. A message that cannot be sent holds up no other: its origin, or its subscription, is not asked for again in this
       run, and it is counted with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from clarion.errors import BadArgument, ConnectionLost, RequestError
from clarion.pipelines.deadletters.stories import DEAD
from clarion.sync import Session

CHUNK = 1_000
"""Messages that one request sends back, so that none keeps the server busy for long."""
_ASKED_MAX = 10
"""How often a request is made whose answers were lost with the connection."""
RECEIVING = "somebody is receiving it"
"""Why a message stays that the broker had nothing against."""

Group = tuple[str | None, str | None]


class Resubmission:
    """Sends messages of `_DMQ` back where they were, or all of them to one destination."""

    def __init__(self, session: Session, to: str | None) -> None:
        self._session = session
        self._to = to
        self._hopeless: dict[Group, str] = {}
        """Origins and subscriptions that nothing can be sent to, and why."""

    def check(self, selected: pa.Table, done: int) -> None:
        """Raises `BadArgument` if the broker's `_DMQ` is not the one that the list was made of."""
        if done >= selected.num_rows:
            return
        rest = selected.slice(done)
        first, last = rest["sequence"][0].as_py(), rest["sequence"][-1].as_py()
        if end_of_dead(self._session) <= last:
            raise _another(f"it has never had a message {last}")
        for message in self._session.browse(DEAD, start=first, count=1):
            at = pc.index(rest["sequence"], message.sequence).as_py()
            if at >= 0 and rest["id"][at].as_py() != message.id:
                raise _another(f"its message {message.sequence} is another one")

    def send(self, chunk: pa.Table) -> dict[str, int]:
        """Send these, ascending by sequence. Returns how many of them are still dead, by reason."""
        sequences: list[int] = chunk["sequence"].to_pylist()
        groups = _groups(chunk)
        hopeful = [one for one, group in zip(sequences, groups, strict=True) if group not in self._hopeless]
        try:
            if self._ask(hopeful) == len(sequences):
                return {}
        except RequestError:
            if self._to is not None:
                raise  # it would be the same for each
            self._send_groups(sequences, groups)
        still = self._still_dead(sequences)
        kept = (group for one, group in zip(sequences, groups, strict=True) if one in still)
        return dict(Counter(self._hopeless.get(group, RECEIVING) for group in kept))

    def _send_groups(self, sequences: list[int], groups: list[Group]) -> None:
        """One of them cannot be sent. Whether a message can be depends on where it was, so each place has its turn."""
        members: dict[Group, list[int]] = {}
        for group, sequence in zip(groups, sequences, strict=True):
            members.setdefault(group, []).append(sequence)
        for group, some in members.items():
            if group not in self._hopeless:
                try:
                    self._ask(some)
                except RequestError as error:
                    self._hopeless[group] = str(error)

    def _ask(self, sequences: list[int]) -> int:
        if not sequences:
            return 0
        arguments = {"sequences": sequences, "to": self._to}
        for _ in range(_ASKED_MAX - 1):
            try:
                return int(self._session.command("resend", arguments)["resent"])
            except ConnectionLost:
                pass  # whether it was done is not known: those that were sent are passed over
        return int(self._session.command("resend", arguments)["resent"])

    def _still_dead(self, sequences: Sequence[int]) -> set[int]:
        wanted = set(sequences)
        found: set[int] = set()
        for message in self._session.browse(DEAD, start=sequences[0]):
            if message.sequence > sequences[-1]:
                break
            if message.sequence in wanted:
                found.add(message.sequence)
        return found


def end_of_dead(session: Session) -> int:
    """The sequence that the next dead message will have."""
    (found,) = session.reader(DEAD).look()
    return found.end


def _groups(table: pa.Table) -> list[Group]:
    return list(zip(table["origin"].to_pylist(), table["subscription"].to_pylist(), strict=True))


def _another(what: str) -> BadArgument:
    detail = f"the dead messages of this server are not those that the job was made for: {what}"
    return BadArgument(argument="checkpoint", detail=f"{detail}; give the job up by abandon = true")
