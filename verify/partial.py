"""Views of a text that still grows: what of the JSON is certain, marked partial.

Nothing is invented: a string, number or word that is not complete yet is no part of the value. The string
that is being written is handed out beside the value, with its path, for a display. Only the gate judges,
once, on the whole text.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from .paths import render

MAX_DEPTH = 64

Awaited = Literal["value", "item or ]", "key", "key or }", ":", ", or end", "nothing"]

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rf'{_STRING}|[\[\]{{}},:]|[^\s"\[\]{{}},:]++(?=[\s"\[\]{{}},:])|[ \t\n\r]++', re.DOTALL)
_CLOSER = {"{": "}", "[": "]"}
# The beginning of a string as far as it is certain: without an escape that is cut, or half a pair of them.
_OPEN_STRING = re.compile(
    r'"(?:[^"\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*+'
)


class Partial(msgspec.Struct, frozen=True):
    """A view of a growing text.

    value:     the complete members and items so far; `msgspec.UNSET` before there is any.
    complete:  whether the document has ended; only then is it the whole value.
    open_path: where the text goes on, such as `$.name`.
    open_text: the beginning of the string that is being written there; None if it is not a string.
    """

    value: Any = msgspec.UNSET
    complete: bool = False
    open_path: str = "$"
    open_text: str | None = None


class PartialJson:
    """Follows a growing JSON text. Feeding rereads at most the token that was cut, a view reads all of it."""

    def __init__(self) -> None:
        self._text = ""
        self._read = 0  # up to here the text was read into whole tokens
        self._awaited: Awaited = "value"
        self._steps: list[str | int | None] = []  # None: inside an object, before its next key
        self._closers = ""
        self._sure = (0, "")  # where the last complete value ended, and what closes the text there
        self._is_broken = False

    def feed(self, chunk: str) -> None:
        """Append to the text. Never raises; after a fault of syntax or depth, the view stays as it is."""
        self._text += chunk
        while not self._is_broken and (match := _TOKEN.match(self._text, self._read)):
            if not match[0].isspace() and not self._take(match[0], match.end()):
                self._is_broken = True
                return
            self._read = match.end()

    def view(self) -> Partial:
        """What is certain of the text fed so far."""
        offset, closers = self._sure
        value = msgspec.json.decode(self._text[:offset] + closers) if offset else msgspec.UNSET
        path = render([step for step in self._steps if step is not None])
        complete = self._awaited == "nothing" and self._read == len(self._text)
        return Partial(value, complete, path, self._open_text())

    def _take(self, token: str, end: int) -> bool:
        """Go on by one token; False if it cannot stand here."""
        if token == "," and self._awaited == ", or end":
            return self._next()
        if token == ":" and self._awaited == ":":
            self._awaited = "value"
            return True
        if token in ("}", "]"):
            return self._close(token, end)
        if self._awaited in ("key", "key or }"):
            self._steps[-1] = _decoded_string(token)
            self._awaited = ":"
            return self._steps[-1] is not None
        if self._awaited not in ("value", "item or ]"):
            return False
        if token in ("{", "["):
            return self._open(token, end)
        return _is_scalar(token) and self._complete(end)

    def _open(self, token: str, end: int) -> bool:
        if len(self._steps) >= MAX_DEPTH:
            return False
        self._steps.append(None if token == "{" else 0)
        self._closers = _CLOSER[token] + self._closers
        self._sure = (end, self._closers)
        self._awaited = "key or }" if token == "{" else "item or ]"
        return True

    def _next(self) -> bool:
        last = self._steps[-1]
        self._steps[-1] = last + 1 if isinstance(last, int) else None
        self._awaited = "value" if isinstance(last, int) else "key"
        return True

    def _close(self, token: str, end: int) -> bool:
        may_end = self._awaited == ", or end" or self._awaited.endswith(token)
        if not may_end or self._closers[:1] != token:
            return False
        self._steps.pop()
        self._closers = self._closers[1:]
        return self._complete(end)

    def _complete(self, end: int) -> bool:
        self._sure = (end, self._closers)
        self._awaited = ", or end" if self._steps else "nothing"
        return True

    def _open_text(self) -> str | None:
        if self._is_broken or self._awaited not in ("value", "item or ]"):
            return None
        match = _OPEN_STRING.match(self._text, self._read)
        return _decoded_string(match[0] + '"') if match else None


def _decoded_string(token: str) -> str | None:
    try:
        return msgspec.json.decode(token, type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _is_scalar(token: str) -> bool:
    try:
        msgspec.json.decode(token)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True
