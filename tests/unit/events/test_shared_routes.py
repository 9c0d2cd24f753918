"""Routes that one process writes and others read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clarion.events.routing import Route, Routes
from clarion.events.shared_routes import FILE, SharedRoutes


def test_a07_what_one_publishes_others_see_at_once(tmp_path: Path) -> None:
    writer, reader = SharedRoutes(tmp_path), SharedRoutes(tmp_path)
    assert reader.current() == Routes()
    for epoch in (1, 2):
        routes = Routes(epoch, [Route(0, "log"), Route(epoch, "pager", "severity_level >= 40")])
        writer.publish(routes)
        assert reader.current() == writer.current() == routes
    late = SharedRoutes(tmp_path)
    assert late.current().epoch == 2
    for one in (writer, reader, late):
        one.close()


def test_a07_routes_that_cannot_be_read_leave_the_known_ones(tmp_path: Path) -> None:
    writer, reader = SharedRoutes(tmp_path), SharedRoutes(tmp_path)
    first, second = Routes(1, [Route(0, "log")]), Routes(2, [Route(0, "log"), Route(1, "mail")])
    writer.publish(first)
    assert reader.current() == first
    writer.publish(second)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert reader.current() == first, "damaged: the known ones stay"
    (tmp_path / FILE).write_bytes(whole)
    assert reader.current() == second, "and it is tried again"
    writer.close()
    reader.close()


@pytest.mark.parametrize("error", [OSError(24, "too many open files"), MemoryError(), SystemError(), TypeError()])
def test_a03_what_was_known_stays_while_the_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """TypeError is what some builds of Python make of a call for which there was no memory."""
    writer, reader = SharedRoutes(tmp_path), SharedRoutes(tmp_path)
    first, second = (Routes(epoch, (Route(0, "log", ""),)) for epoch in (1, 2))
    writer.publish(first)
    assert reader.current() == first
    writer.publish(second)

    def refuse(*_: object) -> int:
        raise error

    with monkeypatch.context() as without:
        without.setattr(os, "open", refuse)
        assert reader.current() == first
    assert reader.current() == second
    writer.close()
    reader.close()
