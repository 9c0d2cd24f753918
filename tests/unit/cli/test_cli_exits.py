"""Every error ends as one line and the right exit status."""

from __future__ import annotations

import inspect

import pytest

from clarion import errors
from clarion.cli import exits

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.ClarionError) and kind is not errors.ClarionError
]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.BadName(name="x", detail="y"), 2),
        (errors.BadUrl(url="x", detail="y"), 2),
        (errors.ConnectionFailed(url="x", detail="y"), 69),
        (errors.ConnectionLost(detail="y"), 69),
        (errors.InternalFault(detail="y"), 70),
        (errors.JournalFailed(operation="fdatasync", detail="y"), 70),
        (errors.Blocked(destination="x", detail="y"), 75),
        (errors.JournalFull(wanted=1, room=0), 75),
        (errors.NotReady(detail="y"), 75),
        (errors.Timeout(limit_ms=1, detail="y"), 75),
        (errors.NoSuchDestination(destination="x"), 1),
        (errors.BadSetting(file="x", detail="y"), 1),
        (errors.AuthenticationFailed(detail="y"), 1),
        (KeyboardInterrupt(), 130),
        (ExceptionGroup("tasks", [errors.Blocked(destination="x", detail="y"), ValueError()]), 75),
    ],
)
def test_statuses(error: BaseException, status: int) -> None:
    assert exits.fail(error) == status


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_one_line_with_its_code(
    kind: type[errors.ClarionError], capsys: pytest.CaptureFixture[str]
) -> None:
    status = exits.fail(kind(detail="two\nlines \x1b[31m"))
    said = capsys.readouterr().err
    assert status > 0
    assert said.startswith(f"error: {kind.code} ") and said.count("\n") == 1 and "\x1b" not in said


def test_a_bug_is_one_line_that_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError("by\nzero")
    except ZeroDivisionError as error:
        assert exits.fail(error) == 70
    said = capsys.readouterr().err
    assert said.startswith("error: CLN-002 internal fault: ZeroDivisionError: by zero (")
    assert "test_cli_exits.py:" in said and said.count("\n") == 1


def test_an_operating_system_error_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.fail(PermissionError(13, "Permission denied", "/a/file")) == 1
    assert capsys.readouterr().err == "error: /a/file: Permission denied\n"
