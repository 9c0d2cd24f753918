"""How a `for` or `async for` loop was left: by `break` or `return`, or by an exception.

An iterator is dropped by the loop that used it, and is not told why. But it is dropped at once, and by the very
frame that runs the loop: while that executes POP_TOP after a `break` or `return`, or any other instruction
when an exception unwinds it. So the iterator notes the frame that asks it for the next item, and looks, when
it is dropped, at where that frame is.

Rule: whatever is not certainly a `break` or `return` counts as an exception (another frame, an unknown
instruction, an interpreter that works otherwise): then a message comes once more than it would have to.
"""

from __future__ import annotations

import dis
from types import FrameType

_CLEAN = frozenset(dis.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in dis.opmap)
"""The second is that of Python 3.14."""


def left_cleanly(dropper: FrameType | None, user: int) -> bool:
    """Whether `dropper`, which drops the iterator now, is the frame with the id `user`, and not unwound."""
    if dropper is None or id(dropper) != user:
        return False
    return dropper.f_lasti >= 0 and dropper.f_code.co_code[dropper.f_lasti] in _CLEAN
