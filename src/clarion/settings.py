"""Settings: what a node is told, typed, and checked before anything starts.

    settings = load(Path("clarion.toml"), os.environ)

Guarantees
    1. Settings that exist are valid: types, bounds, names, addresses. Anything else is `BadSetting` with the file
       and the place in it; a key that nobody knows is refused, not ignored.
    2. Every key has a default, so a missing file is a working single server.
    3. Order of precedence: arguments of the command line, then variables CLARION_<TABLE>_<KEY>, then the file.

docs/operating/settings.md lists all of them. CLARION_ARM and CLARION_URL are not settings and are read elsewhere.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from clarion import ids, limits
from clarion.core.policies import Policy, check_rule, parse_policy
from clarion.errors import BadArgument, BadName, BadPattern, BadSetting, InsecureAddress, NoPermission
from clarion.message import check_name
from clarion.units import parse_duration as parse_duration
from clarion.units import parse_size as parse_size
from clarion.units import parse_unit

_VARIABLE = "CLARION_"


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """`host:port` or `[v6]:port`. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif "://" in host:
        raise ValueError(f"{text!r}: host:port alone is wanted, without {host.partition('://')[0]}://")
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{text!r} is not host:port")
    return Address(host, int(port))


def parse_endpoint(text: str) -> Address:
    """`tcp/host:port`, as the bus writes addresses. Raises `ValueError`."""
    scheme, slash, rest = text.partition("/")
    if scheme != "tcp" or not slash:
        raise ValueError(f"{text!r} is not tcp/host:port")
    return parse_address(rest)


# --- the tables -----------------------------------------------------------------------------------

_Site = Annotated[int, msgspec.Meta(ge=0, le=ids.SITE_MAX)]
_Node = Annotated[int, msgspec.Meta(ge=0, le=ids.NODE_MAX)]
_Heartbeat = Annotated[int, msgspec.Meta(ge=limits.HEARTBEAT_MS_MIN, le=limits.HEARTBEAT_MS_MAX)]
_Connections = Annotated[int, msgspec.Meta(ge=1, le=limits.CONNECTIONS_MAX)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
_Long = Annotated[int, msgspec.Meta(ge=1, le=limits.POLICY_MS_MAX)]
_Bytes = Annotated[int, msgspec.Meta(gt=0, lt=1 << 60)]
_Rest = Annotated[float, msgspec.Meta(ge=0, le=limits.FRAGMENT_REST_MAX)]
_Group = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class NodeSettings(_Table, frozen=True):
    name: str = "clarion"
    site: _Site = 0
    node: _Node = 0
    data: str = "clarion-data"
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def data_path(self) -> Path:
        return Path(self.data)


class ClientManagerSettings(_Table, frozen=True):
    listen: str = "127.0.0.1:7750"
    heartbeat_ms: _Heartbeat = limits.HEARTBEAT_MS_DEFAULT
    connections_max: _Connections = limits.CONNECTIONS_MAX
    batch_bytes_max: _Bytes = limits.BATCH_BYTES_MAX
    producer_window_bytes: _Bytes = limits.PRODUCER_WINDOW_BYTES
    waiting_bytes_max: _Bytes = limits.CONNECTION_WAITING_BYTES_MAX
    answer_ms: _Milliseconds = 10_000


class MessageManagerSettings(_Table, frozen=True):
    group: _Group = 0
    publish_pending_bytes_max: _Bytes = limits.PUBLISH_PENDING_BYTES_MAX
    read_cache_bytes: _Bytes = limits.READ_CACHE_BYTES
    transaction_ms: _Milliseconds = limits.TRANSACTION_MS_DEFAULT
    stream_idle_ms: _Long = limits.STREAM_IDLE_MS_DEFAULT
    stream_rest: _Rest = limits.FRAGMENT_REST_DEFAULT


class JournalSettings(_Table, frozen=True):
    durability: Literal["power", "process"] = "power"
    bytes_max: _Bytes = limits.JOURNAL_BYTES_MAX_DEFAULT
    segment_bytes: _Bytes | None = None
    lone_in_place: bool = False
    """A lone commit to a quick disk is made by the event loop itself, while nobody else wants it."""


class DestinationsSettings(_Table, frozen=True):
    quota_bytes: _Bytes | None = None
    rules: list[tuple[str, Policy]] = []
    """Policies of destinations: a name or pattern with what it says, in the order of the file."""


class BusSettings(_Table, frozen=True):
    kind: Literal["loopback", "zenoh"] = "loopback"
    listen: list[str] = []
    connect: list[str] = []


class InstrumentsSettings(_Table, frozen=True):
    arm: list[str] = []


class Settings(_Table, frozen=True):
    """All of them. `file` is where they came from, for error texts."""

    node: NodeSettings = NodeSettings()
    client_manager: ClientManagerSettings = ClientManagerSettings()
    message_manager: MessageManagerSettings = MessageManagerSettings()
    journal: JournalSettings = JournalSettings()
    destinations: DestinationsSettings = DestinationsSettings()
    bus: BusSettings = BusSettings()
    instruments: InstrumentsSettings = InstrumentsSettings()
    file: str = "defaults"


# --- reading --------------------------------------------------------------------------------------


def load(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    data: str | None = None,
    listen: str | None = None,
) -> Settings:
    """Settings from a file, variables and the command line. Raises `BadSetting` or `NoPermission`."""
    file = str(path) if path is not None else "defaults"
    tables = _read(path) if path is not None else {}
    settings = _convert(tables, file)
    variables = _from_environment(environment or {})
    if variables:
        _check(_convert(variables, "environment", strict=False), "environment")  # an error names its true source
        settings = _convert(_merged(tables, variables), file, strict=False)
    arguments: dict[str, dict[str, Any]] = {}
    if data is not None:
        arguments["node"] = {"data": data}
    if listen is not None:
        arguments["client_manager"] = {"listen": listen}
    if arguments:
        _check(_convert(arguments, "command line"), "command line")
        settings = _convert(_merged(_merged(tables, variables), arguments), file, strict=False)
    return _check(settings, file)


def check_secure(settings: Settings, insecure: bool) -> None:
    """Raises `InsecureAddress` for an address that others can reach: there are no users yet."""
    addresses = [parse_address(settings.client_manager.listen)]
    addresses += map(parse_endpoint, settings.bus.listen)
    for address in addresses:
        if not insecure and not address.is_loopback:
            raise InsecureAddress(address=str(address))


def read_tables(path: Path) -> dict[str, Any]:
    """A file of TOML. Raises `NoPermission`, or `BadSetting` that says what cannot be read, with line and column."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except PermissionError:
        raise NoPermission(path=str(path)) from None
    except OSError as error:
        raise BadSetting(file=str(path), detail=f"it cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML, with line and column, or UTF-8
        raise BadSetting(file=str(path), detail=str(error)) from None


def _read(path: Path) -> dict[str, Any]:
    tables = read_tables(path)
    if "file" in tables:
        raise BadSetting(file=str(path), detail="there is no setting `file`")
    return tables


def _from_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """CLARION_JOURNAL_BYTES_MAX is `bytes_max` of [journal]; lists have commas between."""
    tables: dict[str, dict[str, Any]] = {}
    for table in (field.name for field in msgspec.structs.fields(Settings) if field.name != "file"):
        prefix = f"{_VARIABLE}{table.upper()}_"
        for variable in environment:
            if variable.startswith(prefix):
                key = variable[len(prefix) :].lower()
                text = environment[variable]
                is_list = (table, key) in {("bus", "listen"), ("bus", "connect"), ("instruments", "arm")}
                value = [part.strip() for part in text.split(",") if part.strip()] if is_list else text
                tables.setdefault(table, {})[key] = value
    return tables


def _merged(below: Mapping[str, Any], above: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {**below, **{table: {**below.get(table, {}), **keys} for table, keys in above.items()}}


def _convert(tables: Mapping[str, Any], file: str, strict: bool = True) -> Settings:
    plain = {name: _plain(name, table, file) for name, table in tables.items()}
    try:
        return msgspec.convert({**plain, "file": file}, Settings, strict=strict)
    except msgspec.ValidationError as error:
        raise BadSetting(file=file, detail=_placed(str(error))) from None


def _plain(name: str, table: object, file: str) -> object:
    """A table with its sizes and durations as numbers, and its rules as policies."""
    if not isinstance(table, dict):
        return table
    plain: dict[str, object] = {}
    for key, value in table.items():
        if name == "destinations" and key == "rules" and isinstance(value, list):
            plain[key] = [_rule(f"[[destinations.rules]] {number}", rule, file) for number, rule in enumerate(value, 1)]
            continue
        try:
            plain[key] = parse_unit(key, value)
        except ValueError as error:
            raise BadSetting(file=file, detail=f"[{name}] {key}: {error}") from None
    return plain


def _rule(place: str, rule: object, file: str) -> tuple[str, Policy]:
    """One of [[destinations.rules]]: a pattern and the fields of a policy."""
    if not isinstance(rule, dict) or not isinstance(rule.get("pattern"), str):
        raise BadSetting(file=file, detail=f"{place}: a rule is a table with a `pattern`, a text")
    fields = {field: value for field, value in rule.items() if field != "pattern"}
    try:
        check_rule(rule["pattern"])
        return rule["pattern"], parse_policy(fields)
    except (BadName, BadPattern) as error:
        raise BadSetting(file=file, detail=f"{place} pattern: {error}") from None
    except BadArgument as error:
        raise BadSetting(file=file, detail=f"{place} {error.facts['argument']}: {error.facts['detail']}") from None


def _placed(text: str) -> str:
    """msgspec's "… - at `$.journal.bytes_max`" as "[journal] bytes_max: …"."""
    what, _, place = text.partition(" - at `$.")
    what = what.replace("Object contains unknown field", "there is no setting")
    if not place:
        return what
    table, _, key = place.rstrip("`").partition(".")
    return f"[{table}] {key}: {what}" if key else f"[{table}]: {what}"


def _check(settings: Settings, file: str) -> Settings:
    """What a type cannot say."""
    client_manager, journal, bus = settings.client_manager, settings.journal, settings.bus
    place = ""
    try:
        place = "[node] name"
        check_name(settings.node.name)
        place = "[node] data"
        if not settings.node.data or "\0" in settings.node.data:
            raise ValueError("it is not a path")
        place = "[client_manager] listen"
        parse_address(client_manager.listen)
        place = "[bus] listen"
        for endpoint in bus.listen:
            parse_endpoint(endpoint)
        place = "[bus] connect"
        for endpoint in bus.connect:
            parse_endpoint(endpoint)
        for key, value, low, high in _bounds(client_manager, journal):
            place = key
            if not low <= value <= high:
                raise ValueError(f"{value} bytes are not within {low} to {high}")
    except (ValueError, BadName) as error:
        raise BadSetting(file=file, detail=f"{place}: {error}") from None
    return settings


def _bounds(manager: ClientManagerSettings, journal: JournalSettings) -> list[tuple[str, int, int, int]]:
    """Sizes, with the least and the most that each may be."""
    segment, segment_min = journal.segment_bytes, limits.SEGMENT_BYTES_MIN
    return [
        ("[client_manager] batch_bytes_max", manager.batch_bytes_max, limits.KIB, limits.BATCH_BYTES_MAX),
        (
            "[client_manager] producer_window_bytes",
            manager.producer_window_bytes,
            limits.KIB,
            limits.PUBLISH_PENDING_BYTES_MAX,
        ),
        ("[client_manager] waiting_bytes_max", manager.waiting_bytes_max, limits.FRAME_BYTES_MAX, limits.GIB),
        ("[journal] segment_bytes", segment or segment_min, segment_min, limits.SEGMENT_BYTES_MAX),
        ("[journal] bytes_max", journal.bytes_max, limits.SEGMENTS_MIN * (segment or segment_min), 1 << 60),
    ]
