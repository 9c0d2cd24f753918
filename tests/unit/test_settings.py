"""Settings: every mistake is found before anything starts, and says where it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from clarion import limits
from clarion.core.policies import DEFAULTS, Policy, PolicyTable
from clarion.errors import BadSetting, InsecureAddress, NoPermission
from clarion.settings import Settings, check_secure, load, parse_address, parse_duration, parse_size


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "clarion.toml"
    path.write_text(text)
    return path


def test_a_missing_file_is_a_working_single_server() -> None:
    settings = load()
    assert settings == Settings()
    assert settings.client_manager.listen == "127.0.0.1:7750"
    assert settings.journal.durability == "power"
    assert settings.destinations.quota_bytes is None
    check_secure(settings, insecure=False)
    msgspec.json.encode(settings)  # nothing in it that cannot be shown


def test_every_table_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [node]
        name = "a1"
        site = 3
        node = 5
        data = "/var/lib/clarion"
        log_format = "json"
        log_level = "debug"
        [client_manager]
        listen = "[::1]:0"
        heartbeat_ms = 500
        connections_max = 10
        [message_manager]
        group = 2
        publish_pending_bytes_max = "16 MiB"
        read_cache_bytes = 1048576
        [journal]
        durability = "process"
        bytes_max = "2 gib"
        segment_bytes = "1MiB"
        [destinations]
        quota_bytes = "10 MiB"
        [bus]
        kind = "zenoh"
        listen = ["tcp/127.0.0.1:7751"]
        connect = ["tcp/127.0.0.1:7752"]
        [instruments]
        arm = ["cm.before_relay=kill@3"]
        """,
    )
    settings = load(path)
    assert settings.node.data_path == Path("/var/lib/clarion")
    assert settings.journal.bytes_max == 2 * limits.GIB
    assert settings.journal.segment_bytes == limits.MIB
    assert type(settings.journal.bytes_max) is int
    assert settings.destinations.quota_bytes == 10 * limits.MIB
    assert settings.instruments.arm == ["cm.before_relay=kill@3"]
    assert settings.file == str(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[journal\n", "line 1"),
        ("x = \n", "line 1"),
        ("[jornal]\n", "there is no setting `jornal`"),
        ("[journal]\nbyte_max = 1\n", "[journal]: there is no setting `byte_max`"),
        ("[journal]\nbytes_max = '64 Megabytes'\n", "[journal] bytes_max: a size is"),
        ("[journal]\nbytes_max = true\n", "[journal] bytes_max: a size is"),
        ("[journal]\nbytes_max = 5\n", "[journal] bytes_max: 5 bytes are not within"),
        ("[journal]\nsegment_bytes = '1 GiB'\n", "[journal] segment_bytes"),
        ("[journal]\ndurability = 'none'\n", "[journal] durability"),
        ("[client_manager]\nheartbeat_ms = 1\n", "[client_manager] heartbeat_ms"),
        ("[client_manager]\nconnections_max = '7'\n", "[client_manager] connections_max"),
        ("[client_manager]\nconnections_max = 30000\n", "[client_manager] connections_max"),
        ("[client_manager]\nlisten = 'here'\n", "[client_manager] listen: 'here' is not host:port"),
        ("[client_manager]\nlisten = '::1:7750'\n", "brackets"),
        ("[client_manager]\nlisten = 'clarion://127.0.0.1:7750'\n", "without clarion://"),
        ("[client_manager]\nlisten = 'a:70000'\n", "is not host:port"),
        ("[client_manager]\nbatch_bytes_max = '8 MiB'\n", "[client_manager] batch_bytes_max"),
        ("[node]\nsite = 1024\n", "[node] site"),
        ("[node]\nname = 'a b'\n", "[node] name"),
        ("[node]\ndata = ''\n", "[node] data"),
        ("[bus]\nlisten = ['udp/127.0.0.1:1']\n", "[bus] listen"),
        ("[bus]\nconnect = 'tcp/127.0.0.1:1'\n", "[bus] connect"),
        ("[client_manager]\nheartbeat_ms = '1 m'\n", "[client_manager] heartbeat_ms: a duration is"),
        ("[client_manager]\nheartbeat_ms = '1 h'\n", "[client_manager] heartbeat_ms: Expected"),
        ("[destinations]\nrules = 5\n", "[destinations] rules: Expected `array`"),
        ("[destinations]\nrules = [5]\n", "[[destinations.rules]] 1: a rule is a table"),
        ("[[destinations.rules]]\nquota_bytes = 1\n", "[[destinations.rules]] 1: a rule is a table with a `pattern`"),
        ("[[destinations.rules]]\npattern = 5\n", "[[destinations.rules]] 1: a rule is a table with a `pattern`"),
        ("[[destinations.rules]]\npattern = 'queue:a'\n", "[[destinations.rules]] 1 pattern: CLN-201"),
        (
            "[[destinations.rules]]\npattern = 'a'\n[[destinations.rules]]\npattern = 'regex:('\n",
            "[[destinations.rules]] 2 pattern: CLN-217",
        ),
        (
            "[[destinations.rules]]\npattern = 'a'\nttl_ms_max = '10 m'\n",
            "[[destinations.rules]] 1 ttl_ms_max: a duration is",
        ),
        (
            "[[destinations.rules]]\npattern = 'a'\ncolour = 'red'\n",
            "[[destinations.rules]] 1 colour: there is no such field",
        ),
        (
            "[[destinations.rules]]\npattern = 'a'\ndeliveries_max = -1\n",
            "[[destinations.rules]] 1 deliveries_max: Expected `int` >= 0",
        ),
        ("node = 3\n", "[node]"),
        ("file = 'x'\n", "there is no setting `file`"),
    ],
)
def test_a_mistake_is_refused_with_its_file_and_place(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadSetting) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert says in str(raised.value)


def test_b04_rules_of_the_file_are_policies_in_their_order(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [destinations]
        quota_bytes = "10 MiB"
        [[destinations.rules]]
        pattern = "glob:*"
        deliveries_max = 20
        redelivery_ms = "1 s"
        [[destinations.rules]]
        pattern = "telemetry"
        quota_bytes = "1 GiB"
        ttl_ms_max = 600000
        expired = "drop"
        pause_for_slowest = true
        redelivery_factor = 3
        """,
    )
    wanted = [
        ("glob:*", Policy(deliveries_max=20, redelivery_ms=1_000)),
        (
            "telemetry",
            Policy(
                quota_bytes=limits.GIB,
                ttl_ms_max=600_000,
                expired="drop",
                pause_for_slowest=True,
                redelivery_factor=3.0,
            ),
        ),
    ]
    settings = load(path)
    assert settings.destinations.rules == wanted
    assert settings.destinations.quota_bytes == 10 * limits.MIB
    assert load(path, {"CLARION_JOURNAL_BYTES_MAX": "1 GiB"}, data="x").destinations == settings.destinations
    table = PolicyTable(settings.destinations.rules)
    assert table.effective("telemetry").deliveries_max == 20
    assert table.effective("telemetry").expired == "drop"
    assert table.effective("other").ttl_ms_max == DEFAULTS.ttl_ms_max
    msgspec.json.encode(settings)


def test_b04_the_examples_of_the_page_of_policies_are_read(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/operating/policies.md").read_text()
    text = page.split("```toml\n")[1].split("```")[0]
    table = PolicyTable(load(written(tmp_path, text)).destinations.rules)
    table.set("glob:orders.*", Policy(deliveries_max=5, redelivery_ms=1_000))
    assert table.effective("orders.eu").deliveries_max == 5
    probe = table.effective("telemetry.probe")
    assert (probe.deliveries_max, probe.expired, probe.retain_bytes) == (20, "drop", limits.GIB)


def test_rules_cannot_be_a_variable() -> None:
    with pytest.raises(BadSetting, match=r"environment: \[destinations\] rules"):
        load(None, {"CLARION_DESTINATIONS_RULES": "glob:*"})


def test_durations_may_be_text_in_every_table(tmp_path: Path) -> None:
    settings = load(written(tmp_path, "[client_manager]\nheartbeat_ms = '5 s'\nanswer_ms = '1 min'\n"))
    assert (settings.client_manager.heartbeat_ms, settings.client_manager.answer_ms) == (5_000, 60_000)
    assert load(None, {"CLARION_CLIENT_MANAGER_HEARTBEAT_MS": "500"}).client_manager.heartbeat_ms == 500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        load(tmp_path / "missing.toml")
    with pytest.raises(BadSetting):
        load(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(BadSetting):
        load(tmp_path / "binary")


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(NoPermission):
        load(tmp_path / "secret.toml")


def test_variables_stand_over_the_file_and_arguments_over_both(tmp_path: Path) -> None:
    path = written(tmp_path, "[client_manager]\nlisten = '127.0.0.1:1'\nheartbeat_ms = 700\n[node]\ndata = 'file'\n")
    environment = {
        "CLARION_CLIENT_MANAGER_LISTEN": "127.0.0.1:2",
        "CLARION_CLIENT_MANAGER_CONNECTIONS_MAX": "7",
        "CLARION_JOURNAL_BYTES_MAX": "1 GiB",
        "CLARION_BUS_CONNECT": "tcp/127.0.0.1:5, tcp/[::1]:6",
        "CLARION_NODE_DATA": "environment",
        "CLARION_URL": "not a setting",
        "CLARION_ARM": "not a setting",
        "PATH": "/bin",
    }
    settings = load(path, environment, data="argument")
    assert settings.client_manager.listen == "127.0.0.1:2"
    assert settings.client_manager.connections_max == 7
    assert settings.client_manager.heartbeat_ms == 700
    assert settings.journal.bytes_max == limits.GIB
    assert settings.bus.connect == ["tcp/127.0.0.1:5", "tcp/[::1]:6"]
    assert settings.node.data == "argument"
    assert load(path, environment, listen="127.0.0.1:3").client_manager.listen == "127.0.0.1:3"


@pytest.mark.parametrize(
    ("environment", "listen", "says"),
    [
        ({"CLARION_JOURNAL_DURABLITY": "process"}, None, "environment: [journal]: there is no setting"),
        ({"CLARION_NODE_SITE": "x"}, None, "environment: [node] site"),
        ({"CLARION_CLIENT_MANAGER_LISTEN": "x"}, None, "environment: [client_manager] listen"),
        ({}, "x", "command line: [client_manager] listen"),
    ],
)
def test_a_mistake_outside_the_file_says_so(environment: dict[str, str], listen: str | None, says: str) -> None:
    with pytest.raises(BadSetting) as raised:
        load(None, environment, listen=listen)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.1.1:1", False),
        ("example.org:1", False),
    ],
)
def test_without_users_only_loopback_is_listened_on(listen: str, loopback: bool) -> None:
    settings = load(listen=listen)
    assert parse_address(listen).is_loopback is loopback
    check_secure(settings, insecure=True)
    if loopback:
        check_secure(settings, insecure=False)
    else:
        with pytest.raises(InsecureAddress):
            check_secure(settings, insecure=False)


def test_the_bus_is_held_to_the_same_rule() -> None:
    settings = load(None, {"CLARION_BUS_LISTEN": "tcp/0.0.0.0:7751"})
    with pytest.raises(InsecureAddress):
        check_secure(settings, insecure=False)


@pytest.mark.parametrize(
    ("text", "size"), [(5, 5), ("5", 5), ("5B", 5), (" 64 MiB ", 64 * limits.MIB), ("1tib", 1 << 40)]
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1.5 MiB", "1 MB", "-1", None, [], True])
def test_what_is_not_a_size(text: object) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        (5, 5),
        (0, 0),
        ("5", 5),
        ("250 ms", 250),
        ("10s", 10_000),
        (" 5 min ", 300_000),
        ("12 H", 43_200_000),
        ("7 d", 604_800_000),
    ],
)
def test_durations(text: object, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "s", "1.5 s", "5 m", "5 M", "-1 s", "1 s 5 ms", "٣ s", "1" * 101, 1.5, None, [], True]
)
def test_what_is_not_a_duration(text: object) -> None:
    with pytest.raises(ValueError) as raised:
        parse_duration(text)
    assert len(str(raised.value)) < 250
