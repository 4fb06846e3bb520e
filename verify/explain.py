"""Why a text was not decoded: the place and a sentence, from whatever the decoder raised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from .paths import lone_surrogate, place_of, render
from .verdict import Reject

Decode = Callable[[bytes], Any]

MAX_TRIED_KEYS = 64

_AT_PATH = re.compile(r"(.*) - at (`key` in )?`(\$.*)`", re.DOTALL)
_AT_BYTE = re.compile(r"(.*) \(byte (\d+)\)", re.DOTALL)
_NON_NUMBER = re.compile(rb"-?(?:NaN|Infinity)")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")


def failure(data: bytes, error: BaseException, decode: Decode, max_depth: int) -> Reject:
    """The reason why `decode(data)` raised `error`."""
    if data.count(b"{") + data.count(b"[") > max_depth:
        place = place_of(data, len(data), max_depth)
        if place.too_deep:
            return Reject(f"Nested more than {max_depth} levels deep; answer with flatter JSON.", place.path)
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        return _at(data, fault.start, max_depth, "The text is not valid UTF-8.")
    if isinstance(error, msgspec.ValidationError):
        return _wrong_type(data, error, decode)
    if isinstance(error, msgspec.DecodeError):
        return _malformed(data, error, max_depth)
    return Reject(f"The value could not be built ({type(error).__name__}: {error}).", "$")


def _at(data: bytes, offset: int, max_depth: int, message: str) -> Reject:
    return Reject(message, place_of(data, offset, max_depth).path)


def _malformed(data: bytes, error: msgspec.DecodeError, max_depth: int) -> Reject:
    half = lone_surrogate(data)
    if half is not None:
        return _at(data, half, max_depth, "A lone surrogate (\\ud800 to \\udfff) is no character.")
    match = _AT_BYTE.fullmatch(str(error))
    if match is None:  # msgspec names no byte only if the text ends too early
        message = "The JSON ends too early; write it to its end." if data.strip() else "The text is empty."
        return _at(data, len(data), max_depth, message)
    offset = int(match[2])
    if _NON_NUMBER.match(data, offset):
        return _at(data, offset, max_depth, "NaN and Infinity are not JSON; give a finite number or null.")
    return _at(data, offset, max_depth, f"{match[1]} at byte {offset}.")


def _wrong_type(data: bytes, error: msgspec.ValidationError, decode: Decode) -> Reject:
    match = _AT_PATH.fullmatch(str(error))
    if match is None:
        return Reject(f"{error}.", "$")
    message, at_key, path = match.groups()
    if at_key:
        message, path = f"The key is wrong: {message}", f"{path}[...]"
    if "[...]" in path:
        path = _name_keys(data, path, str(error), decode)
    return Reject(f"{message}.", path)


def _name_keys(data: bytes, path: str, message: str, decode: Decode) -> str:
    """Replace each `[...]`, which is how msgspec writes any key of a dict, by the key at fault.

    The key is found by decoding the text again with one member at a time.
    """
    try:
        root = {"$": json.loads(data)}
    except (ValueError, RecursionError):
        return path
    steps: list[str | int] = []
    parent: Any = root
    last: str | int = "$"
    for name, index, any_key in _STEP.findall(path):
        step: str | int | None = int(index) if index else name
        if any_key:
            step = _failing_key(root, parent, last, message, decode)
        parent = parent[last]
        if step is None or not _has(parent, step):
            return path
        steps.append(step)
        last = step
    return render(steps)


def _has(node: Any, step: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(step, int) and step < len(node)
    return isinstance(node, dict) and step in node


def _failing_key(root: Any, parent: Any, last: Any, message: str, decode: Decode) -> str | None:
    whole = parent[last]
    if not isinstance(whole, dict) or len(whole) > MAX_TRIED_KEYS:
        return None
    for key, item in whole.items():
        parent[last] = {key: item}
        try:
            decode(json.dumps(root["$"]).encode())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - compared, not swallowed: it may be of a __post_init__
            if str(error) == message:
                return str(key)
    parent[last] = whole
    return None
