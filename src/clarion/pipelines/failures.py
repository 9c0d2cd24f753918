"""Why a query failed, in one line: exceptions of Spark are pages of Java and Python frames. Pure.

What is looked for, in this order: an error of Clarion with its code; the last line of a Python traceback; the first
line that says something.
"""

from __future__ import annotations

import re

_CLARION = re.compile(r"\bCLN-\d{3} [^\n]*")
_RAISED = re.compile(r"(?:^|: |\] )(CLN-\d{3} [^\n]*)", re.MULTILINE)
"""One that somebody raised: plans of queries, which Spark prints as well, have texts of errors that nobody did."""
_PYTHON = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Za-z_]\w*(?:Error|Exception|Interrupt|Warning)): (.*)$", re.MULTILINE)
_NOISE = re.compile(
    r"StreamingQueryException: |\[STREAM_FAILED\] |Query [\w.-]* ?\[id = [^\]]*\] terminated with exception:\s+|"
    r"Job aborted due to stage failure: [\s\S]*?\(TID \d+\) \(.*?\):\s+|(?:[a-z]\w*\.)+[A-Z]\w*: "
)
"""What Spark puts before the reason."""
_STATE = re.compile(r" SQLSTATE: \w+$")
CHARACTERS_MAX = 400


def reason(text: str) -> str:
    """What went wrong, of the text of an exception."""
    own = _RAISED.findall(text) or _CLARION.findall(text)
    if own:
        return _short(own[-1])
    rest = text.strip()
    while (noise := _NOISE.match(rest)) is not None and rest[noise.end() :].strip():
        rest = rest[noise.end() :].strip()
    python = list(_PYTHON.finditer(rest))
    if python and not python[-1][0].startswith(("org.", "java.", "py4j.")):
        return _short(f"{python[-1][1]}: {python[-1][2]}")
    lines = [line.strip() for line in rest.splitlines() if line.strip()]
    return _short(_STATE.sub("", lines[0])) if lines else "it does not say why"


def _short(text: str) -> str:
    text = "".join(one if one.isprintable() else " " for one in text)
    text = " ".join(text.split()).rstrip("'\"")
    return text if len(text) <= CHARACTERS_MAX else f"{text[:CHARACTERS_MAX]}…"
