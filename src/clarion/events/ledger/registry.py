"""Who the recipients are, which sections there are, and named values.

Rules
    1. Every change of the recipients begins a new epoch; see `state` for what that means.
    2. Whether a recipient owes is the engine's knowledge, and passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from clarion import limits
from clarion.errors import BadArgument, LimitReached, NoSuchRecipient, RecipientOwes
from clarion.events.ledger.dead import DEAD_SECTION
from clarion.events.ledger.durable import Durable
from clarion.events.ledger.entries import (
    RANGES_PER_ENTRY_MAX,
    Added,
    Adopted,
    Decided,
    Finished,
    Removed,
    Value,
    id_bytes,
)
from clarion.events.ledger.part import Part
from clarion.events.ledger.state import RecipientRow, SectionRow
from clarion.message import check_name

_log = logging.getLogger("clarion.events")


class Registry(Part):
    """Recipients, sections, values."""

    # --- recipients -----------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Of the table of recipients as it is now."""
        return self._state.epoch

    def recipients(self, *, removed: bool = False) -> list[RecipientRow]:
        """Those that are there, by slot; with `removed` also those whose slot is not used again yet."""
        rows = self._state.recipients
        return [rows[slot] for slot in sorted(rows) if removed or not rows[slot].removed]

    def recipient(self, name: str) -> RecipientRow:
        """Raises `NoSuchRecipient`."""
        row = self._state.by_name(name)
        if row is None:
            raise NoSuchRecipient(recipient=name)
        return row

    def routing(self, epoch: int) -> list[tuple[int, str]]:
        """(slot, filter) of everybody who was there in an epoch: who decides later decides by this."""
        rows = sorted(self._state.recipients.values(), key=lambda row: row.slot)
        found = [(row.slot, row.filter_at(epoch)) for row in rows]
        return [(slot, text) for slot, text in found if text is not None]

    def add_recipient(self, name: str, filter_text: str = "") -> int:
        """The slot of a recipient; durable when `durable()` says so.

        The same name with the same filter is the same recipient; with another filter it keeps its slot, and a new
        epoch begins. Raises `LimitReached` when no slot is free.
        """
        check_name(name)
        if len(filter_text.encode()) > limits.SELECTOR_BYTES_MAX:
            raise BadArgument(argument="filter", detail=f"more than {limits.SELECTOR_BYTES_MAX} bytes")
        row = self._state.by_name(name)
        if row is not None and row.filter == filter_text:
            return row.slot
        slot = self._state.free_slot() if row is None else row.slot
        if slot is None:
            raise LimitReached(
                what="recipients, removed ones with events under way included", limit=limits.EVENT_RECIPIENTS_MAX
            )
        self._log.write(Added(slot, name, filter_text, self._state.epoch + 1))
        return slot

    def remove_recipient(self, name: str, *, owed: int, now_ms: int, force: bool = False) -> Durable:
        """Remove a recipient that has not confirmed `owed` events; with `force` these count as settled by that.

        Raises `NoSuchRecipient`, and `RecipientOwes` if it owes and is not forced.
        """
        row = self.recipient(name)
        if owed and not force:
            raise RecipientOwes(recipient=name, count=owed)
        self._log.write(Removed(row.slot, self._state.epoch + 1, owed, force, now_ms))
        if owed:
            _log.warning("recipient %s was removed; %d events that it had not confirmed are given up", name, owed)
        return self._written()

    # --- sections -------------------------------------------------------------------------------------

    def sections(self) -> list[SectionRow]:
        """Those that are not finished."""
        return list(self._state.sections.values())

    def adopt_section(self, section: int, name: str, kind: str, *, first: int = 1, oldest_epoch: int = 0) -> Durable:
        """Know a section from now on. A known one is left as it is.

        `oldest_epoch`: the lowest epoch that a record in it has or will have; 0 if that is not known.
        """
        if section == DEAD_SECTION:
            raise BadArgument(argument="section", detail="0 is the section of the dead")
        if section not in self._state.sections:
            self._log.write(Adopted(id_bytes(section), name, kind, first, oldest_epoch))
        return self._written()

    def finish_section(self, section: int) -> Durable:
        """Forget a section: it is settled for everybody, and its file goes (when this is durable)."""
        if section in self._state.sections:
            self._log.write(Finished(id_bytes(section)))
        return self._written()

    def released(self, section: int, first: int, oldest_epoch: int = 0) -> None:
        """The section has nothing below `first` any more, and nothing older than this epoch is or comes there.

        Not written: the section itself says so again after a restart.
        """
        row = self._state.sections.get(section)
        if row is not None:
            row.release(first)
            row.oldest_epoch = max(row.oldest_epoch, oldest_epoch)

    def decide(self, section: int, runs: Iterable[tuple[int, int, int]]) -> Durable:
        """(first, end, bits): for whom these events are, that were recorded undecided."""
        flat = [part for run in runs for part in run]
        for start in range(0, len(flat), 3 * RANGES_PER_ENTRY_MAX):
            self._log.write(Decided(id_bytes(section), flat[start : start + 3 * RANGES_PER_ENTRY_MAX]))
        return self._written()

    def decided(self, section: int, first: int, end: int) -> list[tuple[int, int, int]]:
        """What was decided within [first, end)."""
        row = self._state.sections.get(section)
        return [] if row is None else row.decided.overlap(first, end)

    # --- named values ---------------------------------------------------------------------------------

    def value(self, name: str) -> bytes | None:
        return self._state.values.get(name)

    def set_value(self, name: str, value: bytes | None) -> Durable:
        """A small value of somebody's, by name; None removes it."""
        check_name(name)
        if value is not None and len(value) > limits.EVENT_VALUE_BYTES_MAX:
            raise LimitReached(what="bytes of a value", limit=limits.EVENT_VALUE_BYTES_MAX)
        if name not in self._state.values and len(self._state.values) >= limits.EVENT_VALUES_MAX:
            raise LimitReached(what="values", limit=limits.EVENT_VALUES_MAX)
        self._log.write(Value(name, value))
        return self._written()
