"""Memory held back for the moment when there is no other.

Theory of operation
    Python takes small objects (up to 512 bytes) from pools, one kind of pool for every 16 bytes of size. When the
    address space is used up, what is left are the free places in the pools, and another thread may take those too.
    A ballast holds objects of every size. When an allocation fails, a unit of them is dropped, and the work is done
    again at once: nobody else runs in between, unless the interpreter is passed on in just that moment. Afterwards the
    work's own garbage has the same sizes, so the unit is taken again from it before anybody else can.

    Frames of functions lie in blocks that come from the operating system, of 16 KiB, and go back there when the last
    function returns that has its frame in it. A call that begins a new block fails without memory; one that ends it in
    the wrong moment leaves it to others. So what is done without memory is done in a block of its own (`apart`), for
    which there is address space (`stack`); other blocks, for the calls until then, are in the units.

Rules
    1. To drop is to set `scraps` to None, or else to take a unit off `whole`, in line: a function would need a frame.
    2. Nothing here has more than 512 bytes: chains of pairs, not lists.
    3. Whatever gives up the interpreter while units are missing calls `refill` before: free memory is taken by others.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from clarion import limits

Function = TypeVar("Function", bound=Callable[..., Any])

_STEP_BYTES = 16
_SIZE_BYTES_MAX = 320
"""Nothing on the way of an event is larger; and what is dropped in vain is small then."""
_OVERHEAD_BYTES = 33
"""What a `bytes` object takes beside its content."""
_NUMBERS_PER_UNIT = 12
"""Objects of 32 bytes in a unit, which an int of more than 30 bits has: they are most of what is needed."""
_LARGE = 1 << 40
_BLOCK_BYTES = 16 << 10
"""Exactly what the interpreter takes for frames, so that a block that it gave back is one again."""
_BLOCKS_PER_UNIT = 1
_SIZES = (
    *(size - _OVERHEAD_BYTES for size in range(3 * _STEP_BYTES, _SIZE_BYTES_MAX + 1, _STEP_BYTES)),
    *(0 for _ in range(_NUMBERS_PER_UNIT)),
    *(-1 for _ in range(_BLOCKS_PER_UNIT)),
)
"""Of `bytes`; 0 is a number, -1 a block."""
_KINDS = tuple(range(len(_SIZES)))
_NOTHING_USED_UP = bytes(len(_SIZES))
_UNIT_BYTES = sum(size + _OVERHEAD_BYTES + 64 for size in _SIZES if size > 0) + _NUMBERS_PER_UNIT * (32 + 64)
_FRAME_SLOTS = 2_100
"""More than fit into a block of 16 KiB: such a frame begins one of 32, and has the other half for what it calls."""
STACK_BYTES = 32 << 10
_REFERENCES = 500
_UNITS_MAX = 4_000
_COUNTS = tuple(range(_UNITS_MAX + 1))
"""To count with: no number has to be made."""
_ENOUGH_BYTES = 1 << 20
NO_MEMORY = (MemoryError, SystemError)
"""A call for whose frame there is no memory raises `SystemError` in Python 3.11, where it is called directly."""
STILL_NO_MEMORY = (*NO_MEMORY, OSError)
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

Chain = tuple[object, Any] | None
"""Nested pairs: an object, and the rest."""


def apart(function: Function) -> Function:
    """The same function, with a frame so large that it, and what it calls, have a block of their own."""
    code = function.__code__
    large = code.replace(co_stacksize=code.co_stacksize + _FRAME_SLOTS)
    return FunctionType(large, function.__globals__, function.__name__)  # type: ignore[return-value]


def keep(*owners: object) -> None:
    """Hold the functions of classes and modules more than once.

    Where a call has been made often, Python 3.11 gives up one reference to the function too many if there is no memory
    for its frame. After the last one the function is gone, and the next call ends the process.
    """
    for owner in owners:
        for each in vars(owner).values():
            function = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
            if isinstance(function, FunctionType) and function.__module__.startswith("clarion."):
                _kept.append([function] * _REFERENCES)


_kept: list[list[FunctionType]] = []


@functools.cache
def of_process() -> Ballast:
    """The ballast that all sections of a process share."""
    return Ballast(limits.EVENT_BALLAST_BYTES)


class Ballast:
    """Some units. Threads that use it at the same time may lose a part, and nothing else."""

    def __init__(self, bytes_: int) -> None:
        self._full = min(_UNITS_MAX, max(4, bytes_ // _UNIT_BYTES))
        self.whole: Chain = None
        """Units."""
        self.scraps: Chain = None
        """What could be taken again while there was not enough for a unit. They are dropped first,
        and together: every retry costs time in which the interpreter may be passed on."""
        self.stack: mmap.mmap | None = mmap.mmap(-1, STACK_BYTES, PRIVATE)
        """Address space for a function that is `apart`."""
        self._used_up = bytearray(len(_SIZES))
        self.missing = True
        """There was no memory, and since then there was not enough to take everything again."""
        self.refill()

    def count(self) -> int:
        """Whole units that there are."""
        found, chain = 0, self.whole
        while chain is not None:
            found, chain = found + 1, chain[1]
        return found

    def refill(self) -> None:
        """Take again what can be taken, to the last bit: what is left free is taken by others. Never raises."""
        try:
            count, chain = 0, self.whole
            while chain is not None:
                count, chain = _COUNTS[count + 1], chain[1]
            self._used_up[:] = _NOTHING_USED_UP
            while count < self._full:
                complete = self._take_unit()
                if complete is None:
                    return
                if complete:
                    count = _COUNTS[count + 1]
            bytearray(_ENOUGH_BYTES)
            self.scraps = None
            self.missing = False
        except NO_MEMORY:
            pass

    def _take_unit(self) -> bool | None:
        """Whether one was taken, or only a scrap; None for nothing at all."""
        unit: Chain = None
        complete = True
        used_up = self._used_up
        for number in _KINDS:
            if used_up[number]:
                complete = False
                continue
            try:
                size = _SIZES[number]
                if size > 0:
                    unit = (bytes(size), unit)
                elif size == 0:
                    unit = (_LARGE + number, unit)
                else:
                    unit = (mmap.mmap(-1, _BLOCK_BYTES, PRIVATE), unit)
            except STILL_NO_MEMORY:
                used_up[number] = 1
                complete = False
        if complete:
            self.whole = (unit, self.whole)
        elif unit is not None:
            self.scraps = (unit, self.scraps)
        else:
            return None
        return complete
