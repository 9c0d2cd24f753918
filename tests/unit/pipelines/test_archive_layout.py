"""Names of an archive's files (D-04)."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from clarion.pipelines.archive import layout

NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=250)


@given(NAMES)
def test_d04_a_folder_says_its_destination_or_a_digest_and_always_fits_a_file_system(name: str) -> None:
    destination = f"topic:{name}"
    folder = layout.folder("2026-11-16", destination)
    key, _, value = folder.rpartition("/")[2].partition("=")
    assert len(folder.rpartition("/")[2].encode()) <= 255
    if key == "destination":
        assert layout.unescaped(value) == destination
        assert not set(value) & set("/:*?[]{}\\\"'=# ")
    else:
        assert key == "long" and len(value) == 32 and len(destination.encode()) > layout.PLAIN_BYTES_MAX


@given(st.integers(0, 20_000_000), st.booleans())
def test_d04_names_of_the_log_sort_by_number_and_are_read_back(number: int, checkpoint: bool) -> None:
    path = layout.checkpoint_path(number) if checkpoint else layout.entry_path(number)
    assert layout.parse_log_name(path.partition("/")[2]) == (number, checkpoint)
    assert layout.entry_path(number) < layout.entry_path(number + 1)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_d04_the_date_is_that_of_utc(moment: datetime) -> None:
    micros = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    assert layout.day_of(micros) == moment.date().isoformat()


def test_d04_other_files_in_the_log_are_none_of_its_entries() -> None:
    for name in (".writing-12", "00000000000000000001.json.crc", ".00000000000000000001.json.crc", "1.json", "x"):
        assert layout.parse_log_name(name) is None
    assert layout.body_owner(layout.body_path("2026-11-16", "ab" * 16, "12")) == "ab" * 16
