"""Controls: instruments that show a value and let it be set while the process runs (C-01).

Guarantees
    1. `value` of a static control is an attribute: reading it on a hot path costs what an attribute costs.
    2. A control never holds a value of another type or outside its declared range; a refused `set`
       changes nothing and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from clarion.errors import ClarionError, RequestError

from .declaration import Declaration, Value

V = TypeVar("V", bool, int, float, str)


class Control(Generic[V]):
    """Static: the value is kept here; the code that obeys it reads `value` whenever it needs it."""

    __slots__ = ("declaration", "value")

    def __init__(self, declaration: Declaration, default: V) -> None:
        self.declaration = declaration
        self.value: V = cast(V, declaration.accept(default))

    def set(self, value: Value) -> None:
        self.value = cast(V, self.declaration.accept(value))

    def read(self) -> Value:
        return self.value


class DynamicControl:
    """Dynamic: procedures show and set the value, which lives somewhere else."""

    __slots__ = ("_read", "_write", "declaration")

    def __init__(self, declaration: Declaration, read: Callable[[], Value], write: Callable[[Value], None]) -> None:
        self.declaration = declaration
        self._read = read
        self._write = write

    def set(self, value: Value) -> None:
        accepted = self.declaration.accept(value)
        try:
            self._write(accepted)
        except ClarionError:
            raise
        except Exception as error:
            raise RequestError(detail=f"{self.declaration.name} could not be set: {error!r}") from error

    def read(self) -> Value:
        return self.declaration.typed(self._read())
