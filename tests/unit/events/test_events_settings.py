"""[events] in TOML: understood completely, or refused with the place of the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from clarion.errors import BadSetting
from clarion.events.daemon import recipients_of
from clarion.events.settings import load

GOOD = """
[events]
directory = "ev"
name = "host-7"
capacity = 5000
event_bytes_max = "4 KiB"
durability = "process"
wait_ms = "2 s"

[[events.recipients]]
type = "log"
path = "out.jsonl"
filter = "severity_level >= 40"
retry = { first_ms = "1 s", give_up_attempts = 5 }

[events.pair]
partner_name = "host-8"
partner = "10.0.0.8:7755"
listen = "10.0.0.7:7755"
witness = "clarion://10.0.0.9:7750"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "events.toml"
    path.write_text(text)
    return path


def test_a12_a_file_says_everything_that_a_system_can_be_told(tmp_path: Path) -> None:
    settings = load(written(tmp_path, GOOD))
    assert (settings.name, settings.capacity, settings.event_bytes_max) == ("host-7", 5000, 4096)
    assert settings.wait_ms == 2000
    assert settings.pair is not None and settings.pair.without_witness == "wait"
    recipients, policies = recipients_of(settings, "events.toml")
    assert [one.filter for one in recipients] == ["severity_level >= 40"]
    (policy,) = policies.values()
    assert (policy.first_ms, policy.give_up_attempts) == (1_000, 5)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "no table [events]"),
        ("[events]\ncapacity = 0", "capacity"),
        ("[events]\ncapacity = 'many'", "capacity"),
        ("[events]\nspeed = 3", "speed"),
        ("[events]\nname = 'a b'", "name"),
        ("[events]\nevent_bytes_max = '5 parsecs'", "event_bytes_max"),
        ("[events]\nevent_bytes = 5000\nevent_bytes_max = 4000", "event_bytes"),
        ("[events]\n[events.pair]\npartner_name = 'b'\npartner = 'nowhere'\nlisten = '1.2.3.4:5'", "pair.partner"),
        ("[events]\n[events.pair]\npartner = 'a:1'\nlisten = 'b:2'", "partner_name"),
        ("[events]\n[events.multiplex]\nlisten = 'x'", "multiplex.listen"),
        ("[events\nname = 1", "line 1"),
    ],
)
def test_a12_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(BadSetting) as raised:
        load(written(tmp_path, text))
    assert place in str(raised.value)


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ("type = 'log'\npath = 'x'\nretry = 3", "retry"),
        ("type = 'log'\npath = 'x'\nretry = { first_ms = 0 }", "retry"),
        ("type = 'log'\npath = 'x'\nretry = { often = 1 }", "often"),
        ("type = 'pigeon'", "pigeon"),
    ],
)
def test_a12_a_recipient_that_cannot_be_is_refused(tmp_path: Path, table: str, place: str) -> None:
    settings = load(written(tmp_path, f"[events]\n[[events.recipients]]\n{table}"))
    with pytest.raises(BadSetting) as raised:
        recipients_of(settings, "events.toml")
    assert place in str(raised.value)


def test_a12_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        load(tmp_path / "none.toml")
