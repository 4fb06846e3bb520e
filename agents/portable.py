"""Which values reach another process, or the store, as they are."""

from __future__ import annotations

import json
from typing import Any

from .errors import NotPortable

MAX_DEPTH = 64
"""nested lists and dicts, as many as a gate allows"""

_MEND = {
    "tuple": "pass a list",
    "set": "pass a list",
    "frozenset": "pass a list",
    "defaultdict": "pass dict(value)",
    "OrderedDict": "pass dict(value)",
    "Counter": "pass dict(value)",
    "deque": "pass list(value)",
    "bytearray": "pass bytes(value)",
    "datetime": "pass value.isoformat()",
    "Decimal": "pass str(value)",
}


def ensure_portable(value: Any, path: str = "$") -> None:
    """Check that a value survives the way: None, bool, int of 64 bits, float, str, bytes, list or dict.

    Exactly these types, and str keys: a tuple would come back a list, a defaultdict a dict.
    Raises: NotPortable naming the place below `path`.
    """
    fault = _first_fault(value, 0)
    if fault is not None:
        raise NotPortable(path + fault[0], fault[1])


def _first_fault(value: Any, depth: int) -> tuple[str, str] | None:
    """Place and reason of the first fault. The place is put together on the way back: few values have one."""
    kind = type(value)
    if value is None or kind in (bool, float, bytes):
        return None
    if kind is str:
        return _text_fault(value)
    if kind is int:
        fits = -(2**63) <= value < 2**64
        return None if fits else ("", "the number does not fit 64 bits; pass it as a str")
    if kind is not list and kind is not dict:
        mend = _MEND.get(kind.__name__, "use None, bool, int, float, str, bytes, list or dict")
        return "", f"it is a {kind.__qualname__}, which would not come back as one; {mend}"
    if depth == MAX_DEPTH:
        return "", f"it is nested more than {MAX_DEPTH} deep"
    if kind is list:
        for index, item in enumerate(value):
            if (fault := _first_fault(item, depth + 1)) is not None:
                return f"[{index}]{fault[0]}", fault[1]
        return None
    for key, item in value.items():
        if type(key) is not str:
            return "", f"its key {key!r} is no str"
        if (fault := _text_fault(key) or _first_fault(item, depth + 1)) is not None:
            return _step(key) + fault[0], fault[1]
    return None


def _text_fault(text: str) -> tuple[str, str] | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return "", f"the text has a lone surrogate at {error.start}, which UTF-8 cannot hold"
    return None


def _step(key: str) -> str:
    return f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]"
