"""The names that `import clarion` promises, and that importing costs next to nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import clarion
from clarion import errors

DOCUMENTED = {
    "AuthenticationFailed",
    "BatchConsumer",
    "Blocked",
    "ClarionError",
    "ConfigurationError",
    "Connection",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "JournalError",
    "Message",
    "NoReply",
    "Prepared",
    "PreparedHandle",
    "ProtocolError",
    "ReceivedBatch",
    "ReceivedMessage",
    "RequestError",
    "Session",
    "Timeout",
    "TransactionRolledBack",
    "__version__",
    "connect",
    "errors",
    "sync",
}
SYNC = {
    "BatchConsumer",
    "Connection",
    "ConnectionState",
    "Consumer",
    "Prepared",
    "PreparedHandle",
    "ReceivedBatch",
    "ReceivedMessage",
    "Session",
    "Ticket",
    "connect",
}
HEAVY = ("numpy", "rich", "uvloop", "asyncio", "msgspec", "pyarrow", "pydantic", "zenoh")


def imported_by(code: str) -> set[str]:
    """The modules of a fresh interpreter that ran `code`."""
    script = f"{code}\nimport sys\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split())


def test_exported_names_are_exactly_the_documented_ones() -> None:
    assert set(clarion.__all__) == DOCUMENTED
    assert list(clarion.__all__) == sorted(clarion.__all__)
    assert set(dir(clarion)) >= DOCUMENTED


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(clarion, name) is not None


def test_names_of_the_blocking_twin() -> None:
    assert set(clarion.sync.__all__) == SYNC
    assert all(hasattr(clarion.sync, name) for name in SYNC)


def test_the_blocking_twin_offers_what_the_asyncio_client_offers() -> None:
    """Every public name of the one is a name of the other, with the same parameters."""
    from clarion import client

    pairs: list[tuple[type, type]] = [
        (client.Connection, clarion.sync.Connection),
        (client.Session, clarion.sync.Session),
        (client.Consumer, clarion.sync.Consumer),
        (client.BatchConsumer, clarion.sync.BatchConsumer),
        (client.ReceivedMessage, clarion.sync.ReceivedMessage),
        (client.ReceivedBatch, clarion.sync.ReceivedBatch),
    ]
    hosting = {"failure", "forget", "loop", "on_state", "register", "send", "wake", "welcome", "writable", "write"}
    for one, twin in pairs:
        names = {name for name in dir(one) if not name.startswith("_")}
        if one is client.Connection:
            names -= hosting  # for its sessions, not for applications
            names -= {"numbered"}  # for programs that have memory, and a loop, of their own
        assert names <= set(dir(twin)), (one, names - set(dir(twin)))
        for name in names:
            theirs = getattr(one, name)
            if inspect.isfunction(theirs):
                parameters = list(inspect.signature(theirs).parameters.values())
                assert [(p.name, p.kind, p.default) for p in parameters] == [
                    (p.name, p.kind, p.default) for p in inspect.signature(getattr(twin, name)).parameters.values()
                ], (one, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = clarion.nothing  # type: ignore[attr-defined]


def test_exported_errors_are_the_ones_that_are_raised() -> None:
    exported = [getattr(clarion, name) for name in DOCUMENTED if hasattr(errors, name)]
    assert len(exported) == 12
    assert all(issubclass(kind, clarion.ClarionError) and kind is getattr(errors, kind.__name__) for kind in exported)


def test_every_error_has_its_code_in_the_range_of_its_family() -> None:
    families = {
        errors.ProtocolError: "CLN-1",
        errors.RequestError: "CLN-2",
        errors.JournalError: "CLN-3",
        errors.ConfigurationError: "CLN-4",
    }
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ClarionError)]
    for kind in kinds:
        for family, prefix in families.items():
            assert issubclass(kind, family) == kind.code.startswith(prefix), kind


def test_import_clarion_pulls_nothing_heavy() -> None:
    assert not imported_by("import clarion") & {*HEAVY, "clarion.client", "clarion.errors"}


def test_an_error_class_costs_no_client() -> None:
    assert not imported_by("import clarion; clarion.ClarionError") & {*HEAVY, "clarion.client"}


def test_names_resolve_once() -> None:
    assert clarion.connect is clarion.connect
    assert "connect" in vars(clarion)
