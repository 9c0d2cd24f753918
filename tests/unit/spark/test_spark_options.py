"""Options of the Spark source and sink: what is taken, and what is said of what is not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from clarion.errors import ClarionError
from clarion.spark import schema
from clarion.spark.options import SinkOptions, SourceOptions, sink_options, source_options

TOPIC = {"url": "clarion://h:1", "destination": "topic:orders", "subscription": "report"}
SINK = {"url": "clarion://h:1", "destination": "orders"}


def test_d01_defaults_of_a_source() -> None:
    assert source_options(TOPIC, streaming=True) == SourceOptions(
        url="clarion://h:1", destination="topic:orders", subscription="report", columns=schema.DEFAULT
    )


def test_d01_every_option_of_a_source_in_any_case() -> None:
    made = source_options(
        TOPIC
        | {
            "SELECTOR": "JMSType = 'a'",
            "startingtime": "2026-01-31T12:00:00Z",
            "MaxRowsPerBatch": "10",
            "partitions": "3",
            "columns": "body, sequence",
            "format": "JSON",
            "mode": "failfast",
            "newCheckpoint": "continue",
            "reconnectTimeout": "2.5",
        },
        streaming=True,
    )
    assert made == SourceOptions(
        url="clarion://h:1",
        destination="topic:orders",
        subscription="report",
        selector="JMSType = 'a'",
        starting_time=datetime(2026, 1, 31, 12, tzinfo=UTC),
        rows_max=10,
        partitions=3,
        columns=("body", "sequence"),
        format="json",
        failfast=True,
        continue_without_checkpoint=True,
        reconnect_s=2.5,
    )


def test_d01_a_time_may_be_unix_seconds() -> None:
    made = source_options(TOPIC | {"startingTime": "1769860800.5"}, streaming=True)
    assert made.starting_time == datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)


def test_d01_a_queue_has_no_subscription() -> None:
    assert source_options(TOPIC | {"destination": "queue:q"}, streaming=True).subscription is None
    with pytest.raises(ClarionError, match="CLN-210 subscription: a batch reads what is kept"):
        source_options(TOPIC, streaming=False)


def test_d01_offsets_do_not_carry_a_password() -> None:
    made = source_options(TOPIC | {"url": "clarion://me:secret@h:1,i:2"}, streaming=True)
    assert made.described() == {
        "url": "clarion://me@h:1,i:2",
        "destination": "topic:orders",
        "subscription": "report",
    }


def test_d03_a_batch_reader_needs_no_subscription() -> None:
    made = source_options({"url": "clarion://h:1", "path": "glob:a.*", "filters": "push"}, streaming=False)
    assert (made.destination, made.subscription, made.push_filters) == ("glob:a.*", None, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"destination": ""}, "CLN-210 destination: it is missing"),
        ({"destination": "a b"}, "CLN-201 'a b' is not a valid name"),
        ({"destination": "regex:("}, "CLN-217 'regex:\\('"),
        ({"url": ""}, "CLN-210 url: it is missing"),
        ({"url": "http://h"}, "CLN-502 'http://h' is not a Clarion address"),
        ({"subscription": ""}, "CLN-210 subscription: a stream of topic:orders needs"),
        ({"subscription": "", "destination": "queue:q", "startingSequence": "3"}, "CLN-210 startingSequence: a stream"),
        ({"selector": "a ="}, "CLN-216 the selector 'a ='"),
        ({"maxRowsPerBatch": "0"}, "CLN-210 maxRowsPerBatch: 0 is not between 1 and"),
        ({"partitions": "two"}, "CLN-210 partitions: 'two' is not a whole number"),
        ({"startingTime": "yesterday"}, "CLN-210 startingTime: 'yesterday' is neither"),
        ({"startingTime": "2026-01-31T12:00:00"}, "CLN-210 startingTime: .* does not say its offset from UTC"),
        ({"startingTime": "1", "startingSequence": "1"}, "CLN-210 startingTime: give it or startingSequence"),
        ({"destination": "glob:a.*", "startingSequence": "1"}, "CLN-210 startingSequence: each topic"),
        ({"columns": "body,head"}, "CLN-210 columns: there is no column head"),
        ({"columns": "body,body"}, "CLN-210 columns: one is named twice"),
        ({"format": "avro"}, "CLN-210 format: 'avro' is none of messages, json, cloudevents"),
        ({"mode": "drop"}, "CLN-210 mode: 'drop' is none of permissive, failfast"),
        ({"newCheckpoint": "yes"}, "CLN-210 newCheckpoint: 'yes' is none of refuse, continue"),
        ({"filters": "push"}, "CLN-210 filters: Spark pushes filters to batch readers only"),
        ({"reconnectTimeout": "-1"}, "CLN-210 reconnectTimeout: -1 is not between 0 and"),
        ({"maxRowPerBatch": "1"}, "CLN-210 maxrowperbatch: there is no such option here; did you mean maxRowsPerBatch"),
        ({"expires": "1"}, "CLN-210 expires: there is no such option here"),
    ],
)
def test_d01_a_bad_option_is_one_line_with_a_code(options: dict[str, str], said: str) -> None:
    with pytest.raises(ClarionError, match=said) as caught:
        source_options(TOPIC | options, streaming=True)
    assert "\n" not in str(caught.value)


def test_d02_options_of_a_sink() -> None:
    assert sink_options({**SINK, "checkpointLocation": "/c"}) == SinkOptions(url="clarion://h:1", destination="orders")
    made = sink_options(
        SINK | {"expires": "60", "sinkKey": "k", "sinkVersion": "3", "contentType": "text/plain", "priority": "9"}
    )
    assert made == SinkOptions(
        url="clarion://h:1",
        destination="orders",
        expires_s=60.0,
        key="k",
        version=3,
        headers={"content_type": "text/plain", "priority": 9},
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"destination": "glob:*"}, "CLN-201"),
        ({"priority": "10"}, "CLN-210 priority: 10 is not between 0 and 9"),
        ({"expires": "1e99"}, "CLN-210 expires: 1e99 is not between 0 and 2592000 seconds"),
        ({"sinkVersion": "1"}, "CLN-210 sinkVersion: it is a version of sinkKey"),
        ({"subscription": "s"}, "CLN-210 subscription: there is no such option here"),
    ],
)
def test_d02_a_bad_option_of_a_sink_is_one_line_with_a_code(options: dict[str, str], said: str) -> None:
    with pytest.raises(ClarionError, match=said):
        sink_options(SINK | options)
