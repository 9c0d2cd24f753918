"""Verbs of administrators without a server: what is refused before anybody is asked, and values as text."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from clarion import limits
from clarion.cli import admin, connecting, dmq, show
from clarion.cli.main import main
from clarion.cli.policy import value_text
from clarion.core.policies import FIELDS, parse_policy
from clarion.units import parse_duration, parse_size

NOBODY = "clarion://127.0.0.1:1"
HANDLE = f"{1 << 64:032x}-1"


def run(capture: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(status, stdout, stderr) of one command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capture.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, said.out, said.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["dmq", "nothing"], "No such command"),
        (["dmq", "list", "--count", "0"], "--count"),
        (["dmq", "list", "--destination", "two words"], "CLN-201"),
        (["dmq", "show"], "SEQUENCE"),
        (["dmq", "show", "0"], "SEQUENCE"),
        (["dmq", "show", "x"], "SEQUENCE"),
        (["dmq", "resend"], "either sequences or --all"),
        (["dmq", "resend", "7", "--all"], "either sequences or --all"),
        (["dmq", "resend", "9-7"], "9-7"),
        (["dmq", "resend", "--all", "--to", "heap:x"], "CLN-201"),
        (["dmq", "resend", "--all", "--destination", ""], "CLN-201"),
        (["dmq", "purge"], "either sequences or --all"),
        (["dmq", "purge", "7", "--all"], "either sequences or --all"),
        (["dmq", "purge", "0"], "count from 1"),
        (["admin", "policy", "set", "jobs"], "FIELD=VALUE"),
        (["admin", "policy", "set", "jobs", "deliveries_max"], "'deliveries_max' is not FIELD=VALUE"),
        (["admin", "policy", "set", "jobs", "=5"], "'=5' is not FIELD=VALUE"),
        (["admin", "policy", "set", "jobs", "retain_ms=1", "retain_ms=2"], "retain_ms: it is given twice"),
        (["admin", "policy", "set", "jobs", "tries=5"], "tries: there is no such field"),
        (["admin", "policy", "set", "jobs", "retain_ms=5 m"], "retain_ms: a duration is"),
        (["admin", "policy", "set", "jobs", "quota_bytes=5 MB"], "quota_bytes: a size is"),
        (["admin", "policy", "set", "jobs", "deliveries_max=often"], "deliveries_max: "),
        (["admin", "policy", "set", "jobs", "deliveries_max=-1"], "deliveries_max: "),
        (["admin", "policy", "set", "jobs", "expired=maybe"], "expired: "),
        (["admin", "policy", "set", "two words", "retain_ms=1"], "CLN-201"),
        (["admin", "policy", "set", "regex:(", "retain_ms=1"], "CLN-217"),
        (["admin", "policy", "remove"], "PATTERN"),
        (["admin", "prepared", "nothing"], "No such command"),
        (["admin", "resolve", HANDLE], "one of --commit and --rollback"),
        (["admin", "resolve", HANDLE, "--commit", "--rollback"], "one of --commit and --rollback"),
        (["admin", "resolve"], "HANDLE"),
        (["admin", "consumers"], "DEST"),
        (["admin", "unsubscribe", "heap:x", "name"], "CLN-201"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLARION_URL", NOBODY)  # a server that was asked would be status 69
    status, out, error = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1 and text in error


@pytest.mark.parametrize(
    "arguments",
    [["dmq", "list"], ["admin", "policy", "list"], ["admin", "prepared"], ["admin", "resolve", HANDLE, "--commit"]],
)
def test_no_server_is_status_69(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "CONNECT_S", 0.2)
    status, out, error = run(capsys, *arguments, "--url", NOBODY)
    assert (status, out) == (69, "") and error.startswith("error: CLN-500 ")


@pytest.mark.parametrize(
    ("group", "verbs"),
    [
        (["dmq"], ["list", "show", "resend", "purge"]),
        (["admin"], ["status", "destinations", "consumers", "policy", "prepared", "resolve"]),
        (["admin", "policy"], ["list", "set", "remove"]),
    ],
)
def test_every_verb_has_help_and_json(group: list[str], verbs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert all(f"  {verb} " in run(capsys, *group, "--help")[1] for verb in verbs)
    for verb in set(verbs) - {"policy"}:
        status, out, _ = run(capsys, *group, verb, "--help")
        assert status == 0 and "--json" in out and "--url" in out, verb


# --- values as text -------------------------------------------------------------------------------

_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "when_full": st.sampled_from(["block", "fail"]),
    "expired": st.sampled_from(["dead", "drop"]),
    "redelivery_factor": st.floats(1, limits.POLICY_FACTOR_MAX),
    "pause_for_slowest": st.booleans(),
}
_ROUND = st.sampled_from([1, 1_000, 1024, 60_000, 86_400_000, 1 << 20, 1 << 30, 1 << 40])


@given(st.data(), st.sampled_from(FIELDS))
def test_what_a_policy_is_shown_as_can_be_set_again(data: st.DataObject, field: str) -> None:
    number = st.integers(0, 1_000) if "max" in field and "ms" not in field else st.integers(0, 100_000)
    many = _ROUND if "bytes" in field else st.just(1)
    value = data.draw(_STRATEGIES.get(field, st.builds(lambda count, unit: count * unit, number, many)))
    assert parse_policy({field: value_text(field, value)}).said() == {field: value}


@given(st.integers(0, 1 << 50), _ROUND)
def test_sizes_and_durations_lose_nothing(count: int, unit: int) -> None:
    assert parse_size(show.exact_size(count * unit)) == count * unit
    assert parse_duration(show.duration(count * unit)) == count * unit


@pytest.mark.parametrize(("ms", "text"), [(0, "0 ms"), (999, "999 ms"), (90_000, "90 s"), (86_400_000, "1 d")])
def test_durations_have_the_largest_whole_unit(ms: int, text: str) -> None:
    assert show.duration(ms) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1500, "1500 B"), (64 << 20, "64 MiB"), (3 << 50, "3072 TiB")])
def test_sizes_have_the_largest_whole_unit(count: int, text: str) -> None:
    assert show.exact_size(count) == text


@given(st.text(max_size=40), st.text(max_size=40))
def test_what_others_wrote_does_not_steer_a_terminal(name: str, value: str) -> None:
    assert show._cell(f"{name}\x1b[2J{value}").isprintable()
    assert show._cell(name) == name or not name.isprintable()


def test_whole_columns_are_not_cut_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    show.table((">handle", "to", ">size", "~reason"), [(HANDLE, "queue:" + "n" * 50, "12.5 MiB", "r" * 90)])
    said = capsys.readouterr().out
    assert HANDLE in said and "12.5 MiB" in said and "…" in said
    assert all(len(line) <= 60 for line in said.splitlines())


# --- arguments that are understood ----------------------------------------------------------------


def test_what_is_named_becomes_ranges() -> None:
    assert dmq._ranges(["7", "9-11"], False, None) == [(7, 8), (9, 12)]
    assert dmq._ranges(["7"], False, "jobs") == [(7, 8)]
    (everything,) = dmq._ranges(None, True, None)
    assert everything == dmq._ranges(None, False, "jobs")[0] and everything[0] <= 1 and everything[1] > 1 << 60
    with pytest.raises(typer.BadParameter):
        dmq._ranges([], False, None)


@pytest.mark.parametrize(
    ("retained_from", "next_sequence", "depth", "retained"), [(None, 9, 0, 0), (1, 9, 0, 8), (4, 9, 2, 3), (9, 9, 0, 0)]
)
def test_retained_messages_are_counted(
    retained_from: int | None, next_sequence: int, depth: int, retained: int
) -> None:
    described = {"retained_from": retained_from, "next_sequence": next_sequence, "depth": depth}
    assert admin._retained(described) == retained
