"""Memory held back for the moment when there is no other.

Theory of operation
    Python takes small objects (up to 512 bytes) from pools, one kind of pool for every 16 bytes of size. When the
    address space is used up, what is left are the free places in the pools, and another thread may take those too.
    A ballast holds objects of every size. When an allocation fails, a unit of them is dropped, and the work is done
    again at once: nobody else runs in between, unless the interpreter is passed on in just that moment. Afterwards the
    work's own garbage has the same sizes, so the unit is taken again from it before anybody else can.

    Frames of functions lie in blocks that come from the operating system, of 16 KiB, and go back there when the last
    function returns that has its frame in it. A call that begins a new block fails without memory; one that ends it in
    the wrong moment leaves it to others. So what is done without memory is done in a block of its own (`apart`). The
    address space for it, and for blocks of the calls until then, is one map (`blocks`), which is made shorter and
    longer again. To drop a map instead would give up the interpreter (`mmap`'s deallocation does), just when all that
    was dropped with it is free: that is one way in which a long want of memory once used up a ballast.

Rules
    1. To drop is to set `scraps` to None, or else to take a unit off `whole`, in line: a function would need a frame.
       A call that may begin a block needs one too: `blocks` moves to what is smaller, and `resize` makes it so.
    2. Nothing here has more than 512 bytes: chains, not lists of all.
    3. Whatever gives up the interpreter while units are missing calls `refill` before: free memory is taken by others.
       Between that and the end of what waits nothing is allocated.
    4. No object here gives up the interpreter when it is dropped.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from clarion import limits, threads

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
_SIZES = (
    *(size - _OVERHEAD_BYTES for size in range(3 * _STEP_BYTES, _SIZE_BYTES_MAX + 1, _STEP_BYTES)),
    *(0 for _ in range(_NUMBERS_PER_UNIT)),
)
"""Of `bytes`; 0 is a number."""
_NOTHING_USED_UP = bytes(len(_SIZES))
_CONTENT = bytes(_SIZE_BYTES_MAX)
_UNIT_BYTES = sum(size + _OVERHEAD_BYTES + 64 for size in _SIZES if size > 0) + _NUMBERS_PER_UNIT * (32 + 64)
_FRAME_SLOTS = 2_100
"""More than fit into a block of 16 KiB: such a frame begins one of 32, and has the other half for what it calls."""
_REFERENCES = 500
_UNITS_MAX = 4_000
_SCRAPS_MAX = 256
"""More would only cost time: where so much is free, nobody takes the small pieces."""
_ENOUGH_BYTES = 1 << 20
NO_MEMORY = threads.NO_MEMORY
STILL_NO_MEMORY = (*NO_MEMORY, OSError)
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

Chain = tuple[object, Any] | None
"""Nested pairs: an object, and the rest."""
Units = tuple[Chain, Any, Any] | None
"""The last that was taken, the rest, and the number of all as one of `_NUMBERS`."""
Blocks = list[Any]
"""Arguments of `resize` for so many blocks; one block less; one more. At the ends these are the same again.

What is `apart` takes two.
"""


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
        self.whole: Units = None
        self.scraps: Units = None
        """What could be taken again while there was not enough for a unit. They are dropped first,
        and together: every retry costs time in which the interpreter may be passed on."""
        self.blocks = _blocks(self._full)
        """How many there are."""
        self.wanted = self.blocks
        """How many there should be: fewer while something is `apart`, or when others have taken some."""
        self.resize = mmap.mmap(-1, self.blocks[0][0], PRIVATE).resize
        """Needs no memory when it is called as `resize(*blocks[0])`, and does not give up the interpreter."""
        self._used_up = bytearray(len(_SIZES))
        self.final: BaseException | None = None
        """Raised when nothing was left, though all was dropped: to try again would be in vain, and without end."""
        self.missing = True
        """There was no memory, and since then there was not enough to take everything again."""
        self.refill()

    def count(self) -> int:
        """Whole units that there are."""
        return 0 if self.whole is None else int(self.whole[2][0])

    def make_whole(self) -> None:
        """`refill`, if something is missing."""
        if self.missing:
            self.refill()

    def refill(self) -> None:
        """Take again what can be taken, a bounded amount: what is left free is taken by others. Never raises.

        Needs nothing beside what it takes. It once counted with new numbers; where there was none left for that, it
        took nothing, and all that a unit had was lost.
        """
        try:
            if self.blocks is not self.wanted:
                self._restore()
            self._used_up[:] = _NOTHING_USED_UP
            if not self._take_units():
                return
            bytearray(_ENOUGH_BYTES)
            self.scraps = None
            self._lengthen()
            self.missing = self.whole is None or self.whole[2][0] < self._full or self.blocks is not self.blocks[2]
        except NO_MEMORY:
            pass

    def _take_units(self) -> bool:
        """Whether there was enough for all that are wanted."""
        while (self.whole is None or self.whole[2][0] < self._full) and (
            self.scraps is None or self.scraps[2][0] < _SCRAPS_MAX
        ):
            if not self._take_unit():
                return False
        return True

    def _restore(self) -> None:
        try:
            self.resize(*self.wanted[0])
            self.blocks = self.wanted
        except STILL_NO_MEMORY:
            self.wanted = self.blocks

    def _lengthen(self) -> None:
        try:
            while self.blocks is not self.blocks[2]:
                self.resize(*self.blocks[2][0])
                self.wanted = self.blocks = self.blocks[2]
        except STILL_NO_MEMORY:
            pass

    def _take_unit(self) -> bool:
        """Whether anything was taken, a unit or only a scrap."""
        unit: Chain = None
        complete = True
        used_up = self._used_up
        kind = _KINDS
        while kind is not None:
            number, piece, kind = kind
            if used_up[number]:
                complete = False
                continue
            try:
                unit = (_LARGE + number if piece is None else _CONTENT[piece], unit)
            except NO_MEMORY:
                used_up[number] = 1
                complete = False
        if complete:
            rest = self.whole
            self.whole = (unit, rest, _NUMBERS[1] if rest is None else rest[2][1])
        elif unit is not None:
            rest = self.scraps
            self.scraps = (unit, rest, _NUMBERS[1] if rest is None else rest[2][1])
        return unit is not None


def _numbers(count: int) -> tuple[int, Any]:
    """0 and the rest, each with what follows: to count with, for no number has to be made."""
    following: Any = None
    for number in range(count, -1, -1):
        following = (number, following)
    return following  # type: ignore[no-any-return]


def _kinds() -> tuple[int, slice | None, Any]:
    """Number, slice of `_CONTENT` (None for a number), and the next, of all objects of a unit."""
    following: Any = None
    for number, size in enumerate(_SIZES):
        following = (number, slice(size) if size else None, following)
    return following  # type: ignore[no-any-return]


def _blocks(count: int) -> Blocks:
    """So many, with one page more: a map has a length."""
    smallest: Blocks = [(mmap.PAGESIZE,), None, None]
    smallest[1] = found = smallest
    for number in range(1, count + 1):
        found[2] = [(mmap.PAGESIZE + number * _BLOCK_BYTES,), found, None]
        found = found[2]
    found[2] = found
    return found


_NUMBERS = _numbers(_UNITS_MAX + 1)
_KINDS: tuple[int, slice | None, Any] | None = _kinds()
