"""Last words of real processes that die of faults: reported by the next start, once, and never lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.small_disk import mounted
from clarion import limits
from clarion.errors import Blocked, EventTooLarge
from clarion.events.capture import collect_last_words, report_last_words
from clarion.events.event import Severity, parse_time
from clarion.events.last_words import FOLDER

PRELUDE = """
import ctypes, json, os, resource, signal, sys, threading
from pathlib import Path
from clarion.events.capture import install_faulthandler
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
directory = Path(sys.argv[1])
class Noted:
    def emit(self, type, /, *, source, severity, data):
        with open(directory / "emitted", "a") as file:
            file.write(json.dumps([type, source, severity.text, data]) + "\\n")
        after_emit()
def after_emit(): pass
"""
INSTALL = PRELUDE + "words = install_faulthandler(Noted(), directory, source='shop')\n"
TICK_NS = 10_000_000
"""Times of files are those of the kernel's last tick."""
FAULTS = {
    "ctypes": ("ctypes.string_at(0)", signal.SIGSEGV, "Segmentation fault"),
    "abort": ("os.abort()", signal.SIGABRT, "Aborted"),
    "signal": ("os.kill(os.getpid(), signal.SIGABRT)", signal.SIGABRT, "Aborted"),
    "bus": ("os.kill(os.getpid(), signal.SIGBUS)", signal.SIGBUS, "Bus error"),
}


def run(directory: Path, code: str) -> int:
    """Run a program to its end; how it ended."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    done = subprocess.run([sys.executable, "-c", code, str(directory)], timeout=60, check=False, env=environment)
    return done.returncode


def emitted(directory: Path) -> list[Any]:
    path = directory / "emitted"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def files(directory: Path) -> list[Path]:
    folder = directory / FOLDER
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a02_the_next_start_reports_last_words_once(tmp_path: Path, fault: str) -> None:
    code, number, reason = FAULTS[fault]
    assert run(tmp_path, INSTALL + f"def the_culprit():\n    {code}\nthe_culprit()") == -number
    assert emitted(tmp_path) == [] and len(files(tmp_path)) == 1
    (seen,) = collect_last_words(tmp_path)
    assert run(tmp_path, INSTALL) == 0
    ((type_, source, severity, data),) = emitted(tmp_path)
    assert (type_, source, severity) == ("process.crashed", "shop", "critical")
    assert data == seen
    assert reason in data["reason"] and "the_culprit" in data["traceback"]
    assert isinstance(data["pid"], int) and str(tmp_path) in data["command"]
    assert parse_time(data["started"]) <= parse_time(data["time"]) + TICK_NS
    assert files(tmp_path) == []
    assert run(tmp_path, INSTALL) == 0
    assert len(emitted(tmp_path)) == 1


def test_a02_a_clean_exit_leaves_nothing(tmp_path: Path) -> None:
    for ending in (
        "",
        "sys.exit(3)",
        "words.close(); words.close()",
        "raise ValueError",
        "install_faulthandler(Noted(), directory)",
    ):
        run(tmp_path, INSTALL + "assert len(list((directory / 'last-words').iterdir())) == 1\n" + ending)
        assert files(tmp_path) == [], ending
    assert emitted(tmp_path) == []


def test_a02_a_process_that_is_killed_has_no_words(tmp_path: Path) -> None:
    assert run(tmp_path, INSTALL + "os.kill(os.getpid(), signal.SIGKILL)") == -signal.SIGKILL
    assert len(files(tmp_path)) == 1 and collect_last_words(tmp_path) == []
    assert run(tmp_path, INSTALL) == 0
    assert emitted(tmp_path) == [] and files(tmp_path) == []


def test_a02_killed_between_emit_and_removal_the_words_come_again_under_the_same_id(tmp_path: Path) -> None:
    run(tmp_path, INSTALL + "ctypes.string_at(0)")
    killed = (
        PRELUDE + "def after_emit(): os.kill(os.getpid(), signal.SIGKILL)\ninstall_faulthandler(Noted(), directory)"
    )
    assert run(tmp_path, killed) == -signal.SIGKILL
    assert run(tmp_path, INSTALL) == 0
    first, second = emitted(tmp_path)
    assert first == second and first[3]["crash_id"]
    assert run(tmp_path, INSTALL) == 0
    assert len(emitted(tmp_path)) == 2 and files(tmp_path) == []


def test_a02_threads_are_named_in_last_words(tmp_path: Path) -> None:
    code = "started = threading.Event()\ndef waits_here():\n    started.set()\n    threading.Event().wait()\n"
    code += "threading.Thread(target=waits_here, daemon=True).start()\nstarted.wait()\nctypes.string_at(0)"
    assert run(tmp_path, INSTALL + code) == -signal.SIGSEGV
    (data,) = collect_last_words(tmp_path)
    assert "waits_here" in data["traceback"] and "<module>" in data["traceback"]


def test_a02_a_child_has_words_of_its_own(tmp_path: Path) -> None:
    """Parent and child both die; neither's words are lost, and the living are not reported."""
    code = """
read, write = os.pipe()
child = os.fork()
if child == 0:
    assert len(list((directory / 'last-words').iterdir())) == 2
    def the_child(): ctypes.string_at(0)
    the_child()
assert os.waitpid(child, 0)[1] & 0x7f == signal.SIGSEGV
from clarion.events.capture import collect_last_words
words = collect_last_words(directory)
assert [each["pid"] for each in words] == [child], words
def the_parent(): os.abort()
the_parent()
"""
    assert run(tmp_path, INSTALL + code) == -signal.SIGABRT
    words = collect_last_words(tmp_path)
    (child,) = (each for each in words if "the_child" in each["traceback"])
    (parent,) = (each for each in words if "the_parent" in each["traceback"])
    assert len(words) == 2
    assert child["pid"] != parent["pid"] and child["crash_id"] != parent["crash_id"]


def test_a02_a_child_without_a_file_uses_its_parent_s(tmp_path: Path) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
child = os.fork()
if child == 0:
    ctypes.string_at(0)
os.waitpid(child, 0)
os._exit(0)
"""
    assert run(tmp_path, INSTALL + code) == 0
    (data,) = collect_last_words(tmp_path)
    assert "Segmentation fault" in data["reason"]


def test_a02_a_child_that_ends_well_does_not_take_its_parent_s_file(tmp_path: Path) -> None:
    code = "child = os.fork()\nif child == 0: sys.exit(0)\nos.waitpid(child, 0)\nos.abort()"
    assert run(tmp_path, INSTALL + code) == -signal.SIGABRT
    assert len(files(tmp_path)) == len(collect_last_words(tmp_path)) == 1


@contextlib.contextmanager
def living(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its file, that lives."""
    code = INSTALL + "print('up', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"up\n"
            yield process
        finally:
            process.kill()


def test_a02_the_words_of_several_processes_are_each_reported_once(tmp_path: Path) -> None:
    with living(tmp_path) as alive:
        for _ in range(3):
            run(tmp_path, PRELUDE.replace("def after_emit", "def unused") + CRASH)
        assert len(files(tmp_path)) == 4
        starters = [
            subprocess.Popen([sys.executable, "-c", INSTALL, str(tmp_path)], stdin=subprocess.DEVNULL) for _ in range(4)
        ]
        assert [starter.wait(60) for starter in starters] == [0] * 4
        assert len(files(tmp_path)) == 1
        assert files(tmp_path)[0].name.startswith(f"{alive.pid}-")
        assert alive.poll() is None
    identities = [data["crash_id"] for _, _, _, data in emitted(tmp_path)]
    assert len(identities) == len(set(identities)) == 3


CRASH = """
class Silent:
    def emit(self, *_, **__): raise RuntimeError("not now")
install_faulthandler(Silent(), directory)
os.abort()
"""


# --- files made by hand ---------------------------------------------------------------------------


class Kept:
    def __init__(self, failures: int = 0, bytes_max: int = 1 << 20) -> None:
        self.data: list[Any] = []
        self.failures = failures
        self.bytes_max = bytes_max

    def emit(self, type: str, /, *, source: str, severity: Severity, data: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise Blocked(destination="events", detail="full")
        if len(json.dumps(data)) > self.bytes_max:
            raise EventTooLarge(size=1, limit=0)
        self.data.append(data)


def put(directory: Path, name: str, content: bytes) -> Path:
    path = directory / FOLDER / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def test_a03_what_cannot_be_emitted_stays_for_the_next_start(tmp_path: Path) -> None:
    for n in range(3):
        put(tmp_path, f"{n}-a", b'{"pid": %d}\nFatal\n' % n)
    events = Kept(failures=2)
    assert report_last_words(events, tmp_path) == 1
    assert len(files(tmp_path)) == 2
    assert report_last_words(events, tmp_path) == 2
    assert sorted(data["pid"] for data in events.data) == [0, 1, 2] and files(tmp_path) == []


def test_a03_words_that_are_too_large_are_cut_or_left_out(tmp_path: Path) -> None:
    put(tmp_path, "1-a", b'{"pid": 1}\nFatal\n' + b"x" * 1_000_000)
    put(tmp_path, "2-a", b'{"pid": 2}\nFatal\n' + b"x" * 1_000_000)
    (large, _) = collect_last_words(tmp_path)
    assert len(large["traceback"]) < limits.EVENT_TEXT_BYTES_MAX + 100
    events = Kept(bytes_max=500)
    assert report_last_words(events, tmp_path) == 2
    assert [data["reason"] for data in events.data] == ["Fatal", "Fatal"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", None),
        (bytes(1000), None),
        (b'{"pid": 1}\n', None),
        (b'{"pid": 1}\n' + bytes(1000), None),
        (b"[1]\nFatal", "[1]"),
        (b'{"pid": "\xff\nFatal', '{"pid": "\ufffd'),
        (b'{"pid": {}, "source": [], "command": 5, "started": {}}\nFatal\xff', "Fatal\ufffd"),
        (b"[" * 60_000, "["),
    ],
)
def test_a05_whatever_a_file_holds_no_words_are_lost(tmp_path: Path, content: bytes, said: str | None) -> None:
    put(tmp_path, "strange name", content)
    events = Kept()
    assert report_last_words(events, tmp_path) == (said is not None)
    assert [data["reason"][: len(said or "")] for data in events.data] == ([] if said is None else [said])
    assert files(tmp_path) == []


def test_a02_other_things_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    assert collect_last_words(tmp_path) == [] and report_last_words(Kept(), tmp_path) == 0
    target = tmp_path / "target"
    target.write_bytes(b"{}\nFatal")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "link").symlink_to(target)
    (tmp_path / FOLDER / "folder").mkdir()
    assert report_last_words(Kept(), tmp_path) == 0
    assert target.exists() and len(files(tmp_path)) == 2


# --- without resources ----------------------------------------------------------------------------


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    with mounted(tmp_path, 2 << 20 if request.param == "tmpfs" else 8 << 20, request.param) as point:
        yield point


@pytest.mark.root
def test_a03_last_words_are_heard_from_a_process_that_has_nothing_left(small_disk: Path) -> None:
    code = """
with open(directory / "filler", "wb", buffering=0) as filler:
    try:
        while True: filler.write(bytes(4096))
    except OSError as error:
        assert error.errno == 28, error
try:
    (directory / "more").write_bytes(bytes(65536))
except OSError: pass
else: raise AssertionError("there is room")
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
def the_culprit(): ctypes.string_at(0)
def NAME(depth): NAME(depth - 1) if depth else the_culprit()
NAME(60)
""".replace("NAME", "a_long_name" * 20)
    assert run(small_disk, INSTALL + code) == -signal.SIGSEGV
    assert files(small_disk)[0].read_bytes().count(b"a_long_name" * 20) == 61  # far more than one block
    (data,) = collect_last_words(small_disk)
    assert "the_culprit" in data["traceback"] and "<module>" in data["traceback"] and data["source"] == "shop"
