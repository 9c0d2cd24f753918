"""The pipeline `alerts` in Spark: its conditions against the broker's selectors, its operator against the machines."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clarion.message import Headers
from clarion.pipelines.alerts import beats, conditions, machine, messages, rules, streaming, wiring
from clarion.pipelines.alerts.bucket import key_text
from clarion.pipelines.alerts.machines import new_state
from clarion.pipelines.alerts.rules import Rule
from clarion.selector import compile_selector
from clarion.spark.schema import arrow_schema, spark_ddl

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
DEADLINE_S = 240
pytestmark = pytest.mark.timeout(600)


def _message(number: int, **fields: Any) -> dict[str, Any]:
    """A row of the source; properties are texts already."""
    properties = list(fields.pop("properties", {}).items())
    row: dict[str, Any] = dict.fromkeys(streaming.COLUMNS)
    row |= {"destination": "topic:events.x", "sequence": number, "id": f"{number:032x}", "time": BEGIN, "priority": 4}
    return row | {"properties": properties} | fields


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Seen by Spark all at once: it passes over names that begin with a point."""
    hidden = path.with_name(f".{path.name}")
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema(streaming.COLUMNS)), hidden)
    hidden.rename(path)


def _stream(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(spark_ddl(streaming.COLUMNS)).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def _begin(spark: SparkSession, folder: Path, known: tuple[Rule, ...], name: str, once: bool = False) -> StreamingQuery:
    """The query of the pipeline, from files and into a table in memory or in files."""
    matches = streaming.matched(_stream(spark, folder / "in"), known).unionByName(beats.beats(spark, known))
    writer = streaming.sendable(streaming.alerts(matches, known)).writeStream.outputMode("append")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    with wiring.configured(spark, empty_batches=not once, partitions=2):
        if once:
            return writer.trigger(availableNow=True).format("parquet").start(str(folder / "out"))
        return writer.trigger(processingTime="100 milliseconds").format("memory").queryName(name).start()


# --- conditions -----------------------------------------------------------------------------------

_EQUALS = ["=", "<>"]
_COMPARISONS = [*_EQUALS, "<", "<=", ">", ">="]
_TEXTS = ["s", "JMSType", "'red'", "' '", "''", "'O''Brien'"]
_PATTERNS = ["r_d", "%", "a!%b", "x_y", "%e%", "O''%"]
_NOT = ["", "NOT "]


def _texts(properties: dict[str, Any]) -> dict[str, str]:
    """As the source gives them."""
    made = {}
    for name, value in properties.items():
        if value is not None:
            made[name] = value if isinstance(value, str) else json.dumps(value)
    return made


def _operand(chance: random.Random) -> str:
    """A number in doubles, or what is made of them: so that Java's and Spark's arithmetic are one."""
    name = chance.choice(["n", "m"])
    return chance.choice([name, "2.5", "-7.0", "1e3", f"({name} + 1.5)", f"-{name}", f"{name} * 2.0 - 1.0", "n / 4.0"])


def _selector(chance: random.Random, depth: int = 0) -> str:
    """A selector whose meaning does not hang on whether a property is a number or its text."""
    if depth < 3 and chance.random() < 0.5:
        inner = [_selector(chance, depth + 1) for _ in range(2)]
        return chance.choice(
            [f"({inner[0]} AND {inner[1]})", f"({inner[0]} OR {inner[1]})", f"NOT {inner[0]}", f"({inner[0]}) = TRUE"]
        )
    pick = chance.choice
    return pick(
        [
            f"{_operand(chance)} {pick(_COMPARISONS)} {_operand(chance)}",
            f"n {pick(_NOT)}BETWEEN -7.0 AND m",
            f"s {pick(_EQUALS)} {pick(_TEXTS)}",
            f"s {pick(_NOT)}IN ('red', 'O''Brien', 'x')",
            f"s {pick(_NOT)}LIKE '{pick(_PATTERNS)}' ESCAPE '!'",
            f"{pick(['n', 's', 't', 'JMSReplyTo'])} IS {pick(_NOT)}NULL",
            f"t {pick(_EQUALS)} {pick(['TRUE', 'FALSE', '(n > 1.0)'])}",
            "t",
            "JMSPriority > 4",
            "JMSType = 'disk.full'",
            "JMSXGroupID = 'g' OR JMSCorrelationID IS NULL",
            "JMSTimestamp >= 1772323200000",
            f"JMSMessageID = 'ID:{3:032x}'",
            "JMSDeliveryMode = 'PERSISTENT'",
            "JMSExpiration = 0",
        ]
    )


def test_d06_conditions_are_the_selectors_of_the_broker(spark: SparkSession) -> None:
    chance = random.Random(6)
    rows, expected = [], []
    for number in range(120):
        properties = {
            "n": chance.choice([3, -7, 2.5, 1e3, 0, None, True, "red"]),
            "m": chance.choice([3.0, 5, None]),
            "s": chance.choice(["red", "a%b", "O'Brien", "", "x\ny", "blue", None]),
            "t": chance.choice([True, False, None, "red", 3]),
        }
        kind = chance.choice(["disk.full", "red", None])
        headers = Headers(
            type=kind, properties={name: value for name, value in properties.items() if value is not None}
        )
        rows.append(_message(number, type=kind, priority=number % 10, properties=_texts(properties)))
        expected.append((headers, number % 10, number))
    texts = sorted({_selector(chance) for _ in range(50)})
    asked = [text for each in texts for text in (each, f"NOT ({each})")]
    table = pa.Table.from_pylist(rows, arrow_schema(streaming.COLUMNS))
    frame = spark.createDataFrame(table).orderBy("sequence")
    answers = frame.select(*(conditions.condition(text).alias(f"c{n}") for n, text in enumerate(asked))).collect()
    time_ms = int(BEGIN.timestamp() * 1000)
    seen = {True: 0, False: 0, None: 0}
    for at, text in enumerate(asked):
        compiled = compile_selector(text)
        for answer, (headers, priority, identity) in zip(answers, expected, strict=True):
            matches = compiled.matches_one(headers, priority=priority, timestamp_ms=time_ms, message_id=identity)
            assert (answer[at] is True) == matches, (text, headers)
            seen[answer[at]] += 1
    assert len(asked) > 60 and min(seen.values()) > 300, seen


def test_d06_conditions_where_columns_have_no_types(spark: SparkSession) -> None:
    row = _message(1, properties={"amount": "100", "severity": "critical", "bad": "NaN", "half": "7"})
    frame = spark.createDataFrame(pa.Table.from_pylist([row], arrow_schema(streaming.COLUMNS)))
    deep = "TRUE"
    for _ in range(40):
        deep = f"({deep}) = TRUE"
    asked: dict[str, bool | None] = {
        "amount = '100'": True,
        "amount = 100": True,
        "half / 2 = 3.5": True,
        "half / 0 > 1": None,
        "bad > 5": False,
        "severity_level >= 50": True,
        "severity_level = 40": False,
        deep: True,
        " OR ".join(f"amount = {n}" for n in range(200)): True,
        "": True,
    }
    answers = frame.select(*(conditions.condition(text).alias(f"c{n}") for n, text in enumerate(asked))).first()
    assert answers is not None
    assert dict(zip(asked, answers, strict=True)) == asked


# --- the operator ---------------------------------------------------------------------------------

_SLOW: dict[str, Any] = {"lateness_ms": HOUR_MS, "forget_ms": 30 * rules.DAY_MS}
"""Hours, so that the seconds of the test are nothing."""
_KNOWN = (
    Rule(name="count", condition=rules.Count(3, 60_000), where="JMSType = 'a'", **_SLOW),
    Rule(name="value", condition=rules.Value("load", 3.0, None, 30_000), **_SLOW),
    Rule(name="storm", condition=rules.Storm(60_000, 120_000, 2.0, 3), by=("source", "destination"), **_SLOW),
    Rule(name="silence", condition=rules.Silence(90_000), cooldown_ms=60_000, **_SLOW),
    Rule(name="flapping", condition=rules.Flapping("state", 2, 60_000), where="state IS NOT NULL", **_SLOW),
    Rule(
        name="sequence",
        condition=rules.Sequence(("JMSType = 'a'", "JMSType = 'b' AND load > 1"), 60_000, "state = 'up'"),
        **_SLOW,
    ),
    Rule(name="missing", condition=rules.Sequence(("JMSType = 'a'", "JMSType = 'b'"), 45_000, None, True), **_SLOW),
)


def _generated(chance: random.Random, sources: int) -> list[dict[str, Any]]:
    """Events in the order of time; property `time` is when they happened, and is missing in some."""
    rows = []
    happened = BEGIN
    for number in range(sources * 25):
        happened += timedelta(milliseconds=chance.choice([1, 700, 2_000]))
        properties = {"source": f"volume/{chance.randrange(sources)}", "load": chance.choice(["1", "2.5", "4", "high"])}
        if chance.random() < 0.5:
            properties["state"] = chance.choice(["up", "down"])
        is_told = chance.random() < 0.7
        if is_told:
            properties["time"] = happened.isoformat().replace("+00:00", "Z")
        rows.append(
            _message(
                number,
                type=chance.choice(["a", "b", "c", "alert.raised"]),
                time=happened + timedelta(hours=3) if is_told else happened,
                properties=properties,
            )
        )
    return rows


def _row(rule: Rule, message: dict[str, Any]) -> tuple[str, machine.Row] | None:
    """What a message is to a rule, in plain Python, with the selectors of the broker."""
    texts = dict(message["properties"])
    typed = {name: float(text) if text.replace(".", "").isdigit() else text for name, text in texts.items()}
    headers = Headers(type=message["type"], properties=typed)
    matches = [compile_selector(text).matches_one(headers) for text in rule.selectors]
    bits = sum(1 << number for number, match in enumerate(matches) if match) if rule.selectors else 1
    if message["type"] == "alert.raised" or not bits or not compile_selector(rule.where).matches_one(headers):
        return None
    happened = datetime.fromisoformat(texts["time"]) if "time" in texts else message["time"]
    key = key_text([texts["source"] if name == "source" else message["destination"] for name in rule.by])
    time_ms = (happened - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return key, machine.Row(time_ms, message["id"], bits, texts.get(rule.reported or ""))


def _expected(known: tuple[Rule, ...], rows: list[dict[str, Any]]) -> list[messages.Event]:
    found = []
    for rule in known:
        states: dict[str, machine.State] = {}
        for message in rows:
            if (taken := _row(rule, message)) is not None:
                key, row = taken
                state = states.setdefault(key, new_state(rule))
                found += [messages.event(rule, key, alert) for alert in state.row(rule, row)]
    return found


def test_d06_the_operator_is_the_machines_also_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = _generated(random.Random(17), sources=40)
    parts = [rows[:300], rows[300:310], rows[310:]]
    chance = random.Random(1)
    for number, part in enumerate(parts):  # two batches, then a stop, then the rest under the same checkpoint
        _write(tmp_path / "in" / f"{number}.parquet", chance.sample(part, len(part)))
        if number:
            query = _begin(spark, tmp_path, _KNOWN, "operator", once=True)
            assert query.awaitTermination(DEADLINE_S)
    expected = _expected(_KNOWN, rows)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(map(_sent, found)) == sorted(map(_sendable, expected))
    raised = {event.rule for event in expected if event.type == messages.RAISED}
    cleared = {event.rule for event in expected if event.type == messages.CLEARED}
    assert raised == {rule.name for rule in _KNOWN} and cleared == raised - {"sequence"}


def _sent(row: Row) -> tuple[Any, ...]:
    return (row.destination, row.type, row.correlation_id, sorted(row.properties.items()), bytes(row.body).decode())


def _sendable(event: messages.Event) -> tuple[Any, ...]:
    properties = {name: getattr(event, name) for name in ("source", "severity", "time", "rule", "key")}
    where = f"topic:events.alert.{event.rule}"
    return (where, event.type, event.correlation_id, sorted(properties.items()), event.body)


def _eventually(query: StreamingQuery, look: Callable[[], list[Row]], count: int) -> list[Row]:
    until = time.monotonic() + DEADLINE_S
    while len(found := look()) < count:
        assert time.monotonic() < until and query.isActive, (found, query.exception())
        query.awaitTermination(1)  # returns early if it fails
    return found


def test_d06_silence_is_seen_by_the_clock_and_expected_keys_from_the_start(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    known = (
        Rule(name="quiet", condition=rules.Silence(500, (("volume/7",), ("volume/8",))), lateness_ms=0),
        Rule(name="unused", condition=rules.Count(1, 1_000), where="FALSE"),
    )
    query = _begin(spark, tmp_path, known, "silence")
    try:
        _eventually(query, lambda: spark.table("silence").where("type = 'alert.raised'").collect(), 2)
        now = datetime.now(UTC)
        properties = {"source": "volume/7", "time": now.isoformat()}
        _write(tmp_path / "in" / "1.parquet", [_message(1, time=now, properties=properties)])
        (cleared,) = _eventually(query, lambda: spark.table("silence").where("type = 'alert.cleared'").collect(), 1)
        found = spark.table("silence").collect()
    finally:
        query.stop()
    bodies = [json.loads(row.body) for row in found]
    assert sorted(body["key"]["source"] for body in bodies[:2]) == ["volume/7", "volume/8"]
    assert json.loads(cleared.body)["key"] == {"source": "volume/7"}
    assert cleared.correlation_id in {row.correlation_id for row in found[:2]}


def test_d06_settings_and_rules_are_checked_before_anything_starts(tmp_path: Path) -> None:
    from clarion.errors import BadArgument, BadSetting

    with pytest.raises(BadArgument, match="to: 'events' is not topic:NAME or queue:NAME"):
        wiring.AlertsSettings(rules="x", to="events")
    with pytest.raises(BadArgument, match="to: "):
        wiring.AlertsSettings(rules="x", to="glob:a.*")
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nname = "a"\nkind = "storm"\nwithin = "1 min"\nfactor = 1\n')
    with pytest.raises(BadSetting, match=r"rules.toml: line 5, column 10: rule a: factor: it is more than 1, not 1.0"):
        rules.load(file)
