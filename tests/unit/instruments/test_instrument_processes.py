"""Row C-01: kill, stop and delay, in a real child process armed from its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

CHILD = """
import os, sys, threading
from clarion.instruments import Registry

registry = Registry()
registry.arm_from(os.environ)
point = registry.test_point("journal.before_sync", meaning="the group is written, not yet synced")
registry.check_all_armed()

def write():
    for number in range(1, 6):
        point()
        os.write(1, b"%d\\n" % number)

writer = threading.Thread(target=write)
writer.start()
writer.join()
"""


def child(arm: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "CLARION_ARM": arm},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_c01_kill_leaves_what_sigkill_leaves() -> None:
    with child("journal.before_sync=kill@3") as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert (output, errors) == (b"1\n2\n", b"")


def test_c01_stop_halts_the_whole_process_until_it_is_continued() -> None:
    with child("journal.before_sync=stop@2") as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert os.WSTOPSIG(status) == signal.SIGSTOP
            assert process.stdout is not None
            assert os.read(process.stdout.fileno(), 100) == b"1\n"
            os.kill(process.pid, signal.SIGCONT)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert output == b"2\n3\n4\n5\n"
    assert process.returncode == 0


def test_c01_a_point_that_the_process_does_not_have_is_refused_at_start() -> None:
    with child("journal.before_sink=kill") as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == b""
    assert b"CLN-401 CLARION_ARM: there is no test point journal.before_sink" in errors
