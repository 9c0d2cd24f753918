"""Recipients from TOML (A-12)."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from clarion.errors import BadSetting
from clarion.events.recipients import (
    ClarionServer,
    Command,
    LogFile,
    Multiplexing,
    People,
    Statistics,
    Webhook,
    from_table,
)
from clarion.events.recipients.settings import TYPES

ALL = """
[[recipients]]
type = "log"
path = "/tmp/events.log"
format = "text"
bytes_max = "10 MiB"
daily = true
keep = 3
sync = false
filter = "severity_level >= 30"

[[recipients]]
type = "statistics"
path = "/tmp/statistics.json"
batch_events_max = 10

[[recipients]]
type = "command"
command = ["page", "now"]
per = "batch"
timeout_ms = "5 s"
environment = { A = "b" }
directory = "/"

[[recipients]]
type = "webhook"
name = "hook"
url = "https://example.com/x"
mode = "binary"
headers = { Authorization = "Bearer 1" }
timeout_ms = 500

[[recipients]]
type = "people"
addresses = ["json://127.0.0.1", "json://127.0.0.2"]
interval_ms = "10 min"
title = "{type}"

[[recipients]]
type = "clarion"
url = ["clarion://a:1", "clarion://b:2"]
destination = "queue:all"
timeout_ms = "1 min"

[[recipients]]
type = "multiplexer"
address = "collector.example:7790"
timeout_ms = "10 s"
"""


def test_a12_every_type_in_toml() -> None:
    made = [from_table(table) for table in tomllib.loads(ALL)["recipients"]]
    kinds = [LogFile, Statistics, Command, Webhook, People, ClarionServer, Multiplexing]
    assert [type(one) for one in made] == kinds and len(kinds) == len(TYPES)
    assert [one.name for one in made] == [
        "events.log", "statistics", "page", "hook", "people", "clarion", "multiplexer",
    ]  # fmt: skip
    log, statistics, command, webhook, people, server, multiplexer = made
    assert log.filter == "severity_level >= 30" and vars(log)["_bytes_max"] == 10 << 20 and vars(log)["_keep"] == 3
    assert statistics.batch_events_max == 10 and statistics.path == Path("/tmp/statistics.json")  # type: ignore[attr-defined]
    assert vars(command)["_timeout_s"] == 5 and vars(webhook)["_timeout_s"] == 0.5
    assert vars(people)["_interval_s"] == 600 and vars(server)["_timeout_s"] == 60 and server.wants_records
    assert vars(multiplexer)["_timeout_s"] == 10 and multiplexer.wants_records


def test_a12_what_is_not_said_is_left_to_the_class() -> None:
    assert vars(from_table({"type": "log", "path": "x"}))["_keep"] == vars(LogFile("x"))["_keep"]
    assert from_table({"type": "statistics"}).batch_events_max == Statistics().batch_events_max


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "type: there is none; types are clarion, command,"),
        ({"type": "pigeon"}, "type: 'pigeon' is not known"),
        ({"type": ["log"]}, "is not known"),
        ({"type": "log"}, "log there must be a setting `path`"),
        ({"type": "log", "path": 7}, "log path: Expected `str`"),
        ({"type": "log", "path": "x", "colour": 1}, "log there is no setting `colour`"),
        ({"type": "log", "path": "x", "bytes_max": "much"}, "log bytes_max: a size is"),
        ({"type": "log", "path": "x", "bytes_max": 0}, "log bytes_max: 0 is less than 1"),
        ({"type": "log", "path": "x", "format": "xml"}, "log format: Invalid enum value 'xml'"),
        ({"type": "log", "path": "x", "filter": "a ="}, "log filter: CLN-216"),
        ({"type": "log", "path": "x", "name": "a b"}, "log name: 'a b'"),
        ({"type": "log", "path": "x", "batch_events_max": 0}, "log batch_events_max: Expected `int` >= 1"),
        ({"type": "command", "command": []}, "command command: Expected `array` of length >= 1"),
        ({"type": "webhook", "url": "gopher://x"}, "webhook url: it is not http"),
        ({"type": "people", "addresses": ["x"]}, "people addresses: number 1"),
        ({"type": "clarion", "url": "http://x"}, "clarion url: CLN-502"),
        ({"type": "clarion", "url": "clarion://x", "destination": "topic:a b"}, "clarion destination: 'topic:a b'"),
        ({"type": "clarion", "url": "clarion://x", "destination": "{source}"}, "there is no field 'source'"),
        ({"type": "clarion", "url": "clarion://x", "timeout_ms": 0}, "clarion timeout_ms: Expected `int` >= 1"),
    ],
)
def test_a12_what_is_wrong_is_named_with_its_place(table: dict[str, object], said: str) -> None:
    with pytest.raises(BadSetting) as caught:
        from_table(table, "events.toml", "[[events.recipients]] 2")
    assert str(caught.value).startswith("CLN-401 events.toml: [[events.recipients]] 2 ")
    assert said in str(caught.value)
