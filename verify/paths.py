"""JSON paths: how they are written, and which one an offset of a text lies in.

This reads broken and hostile texts too, so it is iterative and keeps at most `max_depth` levels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from .verdict import shorten

MAX_KEY_CHARS = 60

_PLAIN_KEY = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},:]|[^\s"\[\]{},:]++', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class PlaceInText(msgspec.Struct, frozen=True):
    """Where a scan stopped: the path, and whether it stopped because the text is nested too deeply."""

    path: str
    too_deep: bool


def render(steps: Sequence[str | int]) -> str:
    """Write keys and indexes as a path: `$.items[2].name`; a key that is no identifier is quoted."""
    parts = ["$"]
    for step in steps:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_KEY.fullmatch(step):
            parts.append(f".{shorten(step, MAX_KEY_CHARS)}")
        else:
            key = step.encode("utf-8", "replace").decode()  # a path is always text that can be encoded
            parts.append(f"[{msgspec.json.encode(shorten(key, MAX_KEY_CHARS)).decode()}]")
    return "".join(parts)


def place_of(data: bytes, stop: int, max_depth: int) -> PlaceInText:
    """The path of the value (or member) in which offset `stop` lies, or of the first one that is too deep."""
    steps: list[str | int | None] = []  # None: inside an object, before its next key
    awaits_key = False
    for match in _TOKEN.finditer(data):
        if match.start() >= stop:
            break
        token = match[0]
        if token in (b"{", b"["):
            if len(steps) >= max_depth:
                return PlaceInText(render(_known(steps)), too_deep=True)
            awaits_key = token == b"{"
            steps.append(None if awaits_key else 0)
        elif token in (b"}", b"]"):
            if steps:
                steps.pop()
            awaits_key = False
        elif token == b"," and steps:
            last = steps[-1]
            awaits_key = not isinstance(last, int)
            steps[-1] = last + 1 if isinstance(last, int) else None
        elif awaits_key and match.end() <= stop and _is_whole(token):
            steps[-1] = _key(token)
            awaits_key = False
    return PlaceInText(render(_known(steps)), too_deep=False)


def lone_surrogate(data: bytes) -> int | None:
    """The offset of the first escape that is half of a surrogate pair, or None."""
    high_at, high_end = -1, -1
    for match in _ESCAPE.finditer(data):
        code = int(match[1], 16) if match[1] else 0
        is_low = 0xDC00 <= code < 0xE000
        if is_low and high_end == match.start():
            high_at = high_end = -1
            continue
        if high_at >= 0:
            return high_at
        if is_low:
            return match.start()
        if 0xD800 <= code < 0xDC00:
            high_at, high_end = match.start(), match.end()
    return high_at if high_at >= 0 else None


def _known(steps: Sequence[str | int | None]) -> list[str | int]:
    return [step for step in steps if step is not None]


def _is_whole(token: bytes) -> bool:
    return not token.startswith(b'"') or (len(token) > 1 and token.endswith(b'"'))


def _key(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)
    except msgspec.DecodeError:
        return token.decode("utf-8", "replace").strip('"')
