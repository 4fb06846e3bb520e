"""Which values reach another process, or the store, as they are."""

from __future__ import annotations

from typing import Any

from .errors import NotPortable

MAX_DEPTH = 100


def ensure_portable(value: Any, path: str = "$", depth: int = 0) -> None:
    """Check that a value survives the way unchanged: None, bool, int of 64 bits, float, str, bytes, list, dict.

    Exactly these types: a tuple would come back a list, a defaultdict a dict, an enum its value.
    Raises: NotPortable naming the place.
    """
    kind = type(value)
    if value is None or kind in (bool, float, bytes):
        return
    if depth > MAX_DEPTH:
        raise NotPortable(path, f"it is nested more than {MAX_DEPTH} deep")
    if kind is int:
        if not -(2**63) <= value < 2**64:
            raise NotPortable(path, "the number does not fit 64 bits")
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotPortable(path, f"the text has a lone surrogate at {error.start}") from error
    elif kind is list:
        for index, item in enumerate(value):
            ensure_portable(item, f"{path}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise NotPortable(path, f"the key {key!r} is no str")
            ensure_portable(key, f"{path}.{key!r}", depth + 1)
            ensure_portable(item, f"{path}.{key}", depth + 1)
    else:
        raise NotPortable(path, f"it is a {kind.__qualname__}; use None, bool, int, float, str, bytes, list or dict")
