"""A server keeps some of the memory that it has freed, and not more than that (B-12)."""

from __future__ import annotations

import json
import subprocess
import sys

from clarion import limits

_CHILD = """
import json, os, resource, sys
from clarion import limits
from clarion.nodes.memory import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

statm = os.open("/proc/self/statm", os.O_RDONLY)

def resident():  # without a large buffer of its own, which would come to lie above all others and hold them
    return int(os.pread(statm, 200, 0).split()[1]) * resource.getpagesize()

if sys.argv[1] == "keep":
    keep_freed()
size = limits.FRAGMENT_BYTES_MAX
for _ in range(4):
    held = [b"x" * size for _ in range(4)]
    del held
before = faults()
for _ in range(100):
    held = [b"x" * size for _ in range(4)]
    del held
again = faults() - before
before = resident()
held = [b"x" * size for _ in range(400)]
peak = resident() - before
del held
print(json.dumps({"again": again, "peak": peak, "kept": resident() - before}))
"""


def _seen(how: str) -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", _CHILD, how], capture_output=True, check=True, timeout=60)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_b12_buffers_of_fragments_are_not_fetched_from_the_kernel_again_and_again() -> None:
    usual, kept = _seen("usual"), _seen("keep")
    assert kept["again"] * 10 < usual["again"]


def test_b12_what_is_kept_is_bounded() -> None:
    seen = _seen("keep")
    assert seen["peak"] > 64 * limits.MIB
    assert seen["kept"] <= limits.MEMORY_KEPT_BYTES + limits.MIB
