"""The settings of an event system in TOML: `[events]`, `[[events.recipients]]`, `[events.pair]`, `[events.multiplex]`.

Guarantee: a file is either understood completely or refused by `BadSetting` that names the table and the key.
Sizes and durations may have units ("16KiB", "30s"), as in the settings of a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from clarion import limits
from clarion.errors import BadArgument, BadName, BadSetting
from clarion.journal import Durability
from clarion.message import check_name
from clarion.settings import parse_address, read_tables
from clarion.units import parse_unit


class PairSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A cooperating system: where it is, where it finds us, and who grants the right to act for the other."""

    partner_name: str
    partner: str
    """HOST:PORT of the partner's link."""
    listen: str
    """HOST:PORT where the partner finds us; port 0 takes a free one."""
    witness: str | None = None
    """`clarion://…`, `file:PATH` on storage that both see, `zookeeper:HOST:PORT,…`; None: the policy decides."""
    without_witness: Literal["wait", "replay"] = "wait"
    """`wait`: nobody acts for the other, nothing doubles. `replay`: after silence, at least once."""
    lease_ms: int = limits.EVENT_LEASE_MS_DEFAULT
    stored_ms: int = limits.EVENT_PARTNER_MS_DEFAULT
    """How long `emit` waits for the partner's copy before it reports itself degraded."""


class MultiplexSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One recipient that stands for many."""

    listen: str
    confirm_early: bool = True
    """Confirm to the sender when an event is in persistent memory here, not when all recipients have it."""
    forward: bool = False
    """Tell the sender of each recipient's confirmation as it comes."""
    capacity: int | None = None
    """Events of others that are recorded whatever happens; None: as many as a process may record."""


class EventsSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Everything that `EventSystem.open` and the daemon can be told."""

    directory: str = "clarion-events"
    name: str = "events"
    """Of this system among its partners and multiplexers."""
    capacity: int = limits.EVENT_CAPACITY_DEFAULT
    """Events of `event_bytes` on average that are recorded whatever happens, per process."""
    initialisation_capacity: int = limits.EVENT_INITIALISATION_CAPACITY_DEFAULT
    event_bytes: int = limits.EVENT_BYTES_AVERAGE
    event_bytes_max: int = limits.EVENT_BYTES_MAX_DEFAULT
    durability: Durability = "power"
    wait_ms: int = 0
    """How long `emit` waits for room before it raises `Blocked`; 0: it raises at once."""
    recipients: list[dict[str, Any]] = msgspec.field(default_factory=list)
    pair: PairSettings | None = None
    multiplex: MultiplexSettings | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    events: EventsSettings


def load(path: Path) -> EventsSettings:
    """The `[events]` of a file. Raises `BadSetting` or `NoPermission`."""
    file, tables = str(path), read_tables(path)
    events = tables.get("events")
    if not isinstance(events, dict):
        raise BadSetting(file=file, detail="there is no table [events]")
    return convert(events, file)


def convert(table: dict[str, Any], file: str) -> EventsSettings:
    """Settings from a table as TOML has it."""
    plain = {key: value if key == "recipients" else _plain(key, value, file) for key, value in table.items()}
    try:
        settings = msgspec.convert(plain, EventsSettings)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        what = what.replace("Object contains unknown field", "there is no setting")
        raise BadSetting(file=file, detail=f"[events] {place.rstrip('`')}: {what}" if place else what) from None
    return check(settings, file)


def _plain(key: str, value: object, file: str) -> object:
    if isinstance(value, dict):
        return {name: _plain(name, one, file) for name, one in value.items()}
    try:
        return parse_unit(key, value)
    except ValueError as error:
        raise BadSetting(file=file, detail=f"[events] {key}: {error}") from None


def check(settings: EventsSettings, file: str = "code") -> EventsSettings:
    """What a type cannot say. Raises `BadSetting`."""
    multiplexed = settings.multiplex.capacity if settings.multiplex is not None else None
    for place, value, low, high in (
        ("capacity", settings.capacity, 1, limits.EVENT_CAPACITY_MAX),
        ("multiplex.capacity", settings.capacity if multiplexed is None else multiplexed, 1, limits.EVENT_CAPACITY_MAX),
        ("initialisation_capacity", settings.initialisation_capacity, 1, limits.EVENT_CAPACITY_MAX),
        ("event_bytes_max", settings.event_bytes_max, 256, limits.EVENT_BYTES_MAX_MAX),
        ("event_bytes", settings.event_bytes, 64, settings.event_bytes_max),
    ):
        if not low <= value <= high:
            raise BadSetting(file=file, detail=f"[events] {place}: {value} is not within {low} to {high}")
    if settings.pair is not None and settings.multiplex is not None:
        raise BadSetting(file=file, detail="[events] pair, multiplex: one system cannot be both")
    names = [("name", settings.name)]
    addresses = []
    if settings.pair is not None:
        names.append(("pair.partner_name", settings.pair.partner_name))
        addresses = [("pair.partner", settings.pair.partner), ("pair.listen", settings.pair.listen)]
    if settings.multiplex is not None:
        addresses.append(("multiplex.listen", settings.multiplex.listen))
    for texts, check_one in ((names, check_name), (addresses, parse_address)):
        for place, text in texts:
            try:
                check_one(text)
            except (ValueError, BadName, BadArgument) as error:
                raise BadSetting(file=file, detail=f"[events] {place}: {error}") from None
    return settings
