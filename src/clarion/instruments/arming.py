"""The text that arms test points when a process starts.

    arming  =  NAME "=" action [ "@" AFTER ] [ "*" TIMES ]
    action  =  "kill" | "stop" | "delay:" SECONDS | "fail" [ ":" REASON ] | "log:" PATH
    AFTER   =  the passing, counted from 1, at which it acts first; 1 if not given
    TIMES   =  how many passings it acts on from there, or "always"; 1 if not given

The setting `[instruments] arm` is a list of armings; the variable CLARION_ARM holds them with commas between
(so a path in it has no comma). Guarantee: text is either understood completely or refused by `BadSetting`
that names where it came from, the arming and what is wrong with it.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clarion.errors import BadName, BadSetting

from .actions import Action, Delay, Fail, Kill, Log, Stop
from .declaration import check_name

VARIABLE = "CLARION_ARM"
_SUFFIX = re.compile(r"(?P<action>.*?)(?:@(?P<after>[^@*/]*))?(?:\*(?P<times>[^@*/]*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Arming:
    """One action at one point: at its passings `after`, `after` + 1, … , `times` of them (None: for ever)."""

    name: str
    action: Action
    after: int = 1
    times: int | None = 1
    file: str = "code"
    """Where it was written, for error texts."""

    def __post_init__(self) -> None:
        if self.after < 1 or (self.times is not None and self.times < 1):
            raise BadSetting(file=self.file, detail=f"{self.name}: passings and times are counted from 1")

    def __str__(self) -> str:
        after = f"@{self.after}" if self.after != 1 else ""
        times = "*always" if self.times is None else f"*{self.times}" if self.times != 1 else ""
        return f"{self.name}={self.action}{after}{times}"


def parse(text: str, file: str = "code") -> Arming:
    """One arming. `file` is where it was written."""
    try:
        name, equals, rest = text.strip().partition("=")
        if not equals:
            raise ValueError("NAME=ACTION is needed")
        check_name(name)
        parts = _SUFFIX.fullmatch(rest)
        if parts is None:
            raise ValueError("ACTION[@AFTER][*TIMES] is needed")
        after = _count(parts["after"], "@")
        times = None if parts["times"] == "always" else _count(parts["times"], "*")
        return Arming(name, _action(parts["action"]), after, times, file)
    except (ValueError, BadName) as error:
        raise BadSetting(file=file, detail=f"cannot arm {text.strip()!r}: {error}") from None


def parse_environment(environment: Mapping[str, str]) -> list[Arming]:
    """The armings in CLARION_ARM; none if it is not set or empty."""
    return [parse(text, VARIABLE) for text in environment.get(VARIABLE, "").split(",") if text.strip()]


def _count(text: str | None, mark: str) -> int:
    if text is None:
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"after {mark} comes a count from 1, not {text!r}")
    return int(text)


def _action(text: str) -> Action:
    verb, colon, argument = text.partition(":")
    if colon and not argument:
        raise ValueError(f"nothing follows {text!r}")
    match verb:
        case "kill" | "stop" if not colon:
            return Kill() if verb == "kill" else Stop()
        case "kill" | "stop":
            raise ValueError(f"{verb} takes no argument")
        case "delay":
            return Delay(_seconds(argument))
        case "fail":
            return Fail(_reason(argument)) if colon else Fail()
        case "log":
            return Log(_path(argument))
        case "call":
            raise ValueError("call is for tests in the same process, not for text")
    raise ValueError(f"there is no action {verb!r}: kill, stop, delay, fail and log are known")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"delay takes seconds, not {text!r}")
    return seconds


def _reason(text: str) -> str:
    # A name that looks like an errno and is none is a slip of the pen, not a new reason.
    if re.fullmatch(r"E[A-Z0-9]+", text) and not hasattr(errno, text):
        raise ValueError(f"{text} is not an errno of this system")
    return text


def _path(text: str) -> str:
    if not text or not Path(text).parent.is_dir():
        raise ValueError(f"log takes a file in a directory that exists, not {text!r}")
    return text
