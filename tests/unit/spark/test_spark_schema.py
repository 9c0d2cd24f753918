"""The list of columns, and references of large bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from clarion.errors import BadArgument
from clarion.spark.references import Reference, format_reference, parse_reference
from clarion.spark.schema import BY_NAME, COLUMNS, DEFAULT, arrow_schema, spark_ddl


def test_d01_spark_reads_both_forms_of_the_schema_as_the_same() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    names = [column.name for column in COLUMNS]
    arrow = arrow_schema(names)
    wanted = StructType()
    for field in from_arrow_schema(arrow).fields:
        wanted.add(field)
    assert to_arrow_schema(wanted, timezone="UTC").equals(arrow)
    assert [f"{field.name} {field.dataType.simpleString()}" for field in wanted.fields] == spark_ddl(names).split(", ")


def test_d01_headers_are_read_only_by_who_names_them() -> None:
    assert set(BY_NAME) - set(DEFAULT) == {"headers"}
    assert arrow_schema().names == list(DEFAULT)


@pytest.mark.parametrize("names", [[], ["body", "body"], ["bodies"], ["body", "Body"]])
def test_d01_columns_that_cannot_be_are_refused(names: list[str]) -> None:
    for make in (arrow_schema, spark_ddl):
        with pytest.raises(BadArgument, match="columns"):
            make(names)


@given(
    st.builds(
        Reference,
        st.sampled_from(["topic:films", "queue:ü.x-1", "queue:_DMQ", "topic:_temp.a"]),
        st.integers(0, (1 << 63) - 1),
        st.binary(min_size=24, max_size=24),
        st.integers(0, (1 << 63) - 1),
        st.integers(0, (1 << 32) - 1),
    )
)
def test_d01_a_reference_is_read_as_it_was_written(reference: Reference) -> None:
    assert parse_reference(format_reference(reference)) == reference


GOOD = format_reference(Reference("topic:films", 42, bytes(24), 7, 9))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clarion-body:",
        GOOD[:-1],
        GOOD + "0",
        GOOD + "\n",
        GOOD.replace(":1/", ":2/"),
        GOOD.replace("topic:films", "topic:fi lms"),
        GOOD.replace("topic:films", "topic:_LOG"),
        GOOD.replace("topic:films", "pipe:films"),
        GOOD.replace("/42/", "/-42/"),
        GOOD.replace("/42/", "/٤٢/"),
        None,
        7,
    ],
)
def test_d01_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="reference"):
        parse_reference(text)
