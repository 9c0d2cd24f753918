"""Arguments of requests: taken out, checked, and what is wrong with them said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clarion.core.destination import Destination
from clarion.core.state import State
from clarion.errors import BadArgument, NoSuchDestination, RequestError
from clarion.message import parse_destination

Arguments = dict[str, Any]


@contextmanager
def told() -> Iterator[None]:
    """What is wrong with arguments, as an error of the request."""
    try:
        yield
    except KeyError as error:
        raise BadArgument(argument=str(error.args[0]), detail="it is missing") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(detail=str(error)) from None


def text(arguments: Arguments, name: str) -> str:
    value = arguments[name]
    if not isinstance(value, str):
        raise BadArgument(argument=name, detail="it is not text")
    return value


def number(arguments: Arguments, name: str, default: int) -> int:
    """A count or a sequence; absent, nil and 0 are the default."""
    return counted(name, arguments.get(name) or default)


def counted(name: str, value: object) -> int:
    """A count or a sequence as it is."""
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise BadArgument(argument=name, detail="it is not a number from 0 to 2 to the power of 63")
    return value


def find(state: State, arguments: Arguments) -> Destination:
    """The destination that is named. Raises `NoSuchDestination`."""
    _kind, name = parse_destination(text(arguments, "destination"), system=True)
    found = state.find(name)
    if found is None:
        raise NoSuchDestination(destination=name)
    return found
