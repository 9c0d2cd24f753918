"""Selectors: which messages a consumer wants, in the language of JMS 2.0 (a subset of SQL-92 conditions).

Theory of operation
    `compile_selector` parses a text (`grammar`) into a tree (`tree`) and writes a Python function for it
    (`generate`), once. `Selector.matches` calls that function for each message of a slice of a batch
    (`evaluate`). docs/reference/selectors.md is the language as a user sees it.

Rules
    1. A text that is not a selector raises `BadSelector`, which names the column; nothing else is raised,
       however large, deep or strange the text is.
    2. Evaluation never raises, whatever a sender put into headers: what cannot be decoded does not match.
    3. Evaluation never looks at bodies, and is linear in the size of the headers for any selector.
    4. Nothing of a selector's text becomes program text except as the `repr` of a string or number.
"""

from __future__ import annotations

from clarion.selector.evaluate import Selector, compile_selector

__all__ = ["Selector", "compile_selector"]
