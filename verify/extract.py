"""One tolerant extraction: the JSON that a model wrapped into something else.

Tolerated are a byte-order mark, white space, a Markdown fence, prose around the JSON, and a whole document
that was encoded twice. Nothing is repaired, and nothing is made up in the place of JSON that is missing or
broken: what looks like broken JSON is handed on, for the strict gate to say what is wrong with it.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import msgspec

from .verdict import Reject

MAX_ATTEMPTS = 64

_BOM = "\ufeff"
_WS = " \t\n\r"
_document = msgspec.json.Decoder(msgspec.Raw).decode
_FENCE = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\r?\n\s*")
_FENCE_END = re.compile(r"\s*(?:```|\Z)")
_FENCE_LANGUAGES = ("", "json", "jsonc", "json5")
_OPENING = re.compile(r"[{\[]")
_BROKEN_START = re.compile(r"""\{\s*(?:["'}]|\w+\s*:)|\[\s*[{\["'\]]""")
_EMPTY = re.compile(r"[{\[]\s*[}\]]")
_SCANNER = json.JSONDecoder(strict=False)


class _Found(NamedTuple):
    text: str
    end: int
    is_broken: bool


def extract_json(raw: str | bytes) -> str | bytes | Reject:
    """The one JSON document in a model's text.

    A text that is exactly one document is returned as it is, at the cost of a scan in C; only one that was
    encoded twice (a JSON string that holds an object or array) is unwrapped. So do not extract for a type
    that is itself a string.

    Returns: the document, or what looks like a broken one; or a Reject if there is none, or more than one.
    """
    if _is_document(raw):
        return _unwrapped(raw)
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
    except UnicodeDecodeError:
        return raw  # the strict gate says where
    text = text.lstrip(_BOM + _WS)
    if _is_document(text):
        return _unwrapped(text)
    found = _fenced(text) or _in_prose(text)
    if not found and text[:1] in ("{", "["):
        return text
    if not found:
        return Reject("The output holds no JSON; answer with one JSON document and nothing else.")
    if len(found) > 1:
        return Reject(f"The output holds {len(found)} JSON documents; answer with exactly one.")
    return _unwrapped(found[0].text)


def _is_document(raw: str | bytes) -> bool:
    try:
        _document(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _unwrapped(text: str | bytes) -> str | bytes:
    quote = '"' if isinstance(text, str) else b'"'
    if text.lstrip()[:1] != quote:
        return text
    try:
        inner = msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    return inner if inner.lstrip(_WS)[:1] in ("{", "[") else text


def _fenced(text: str) -> list[_Found]:
    """The documents that stand alone in a Markdown fence."""
    found: list[_Found] = []
    match = _FENCE.search(text)
    while match is not None and len(found) < MAX_ATTEMPTS:
        start = match.end()
        close = text.find("```", start)
        end = close if close >= 0 else len(text)
        if match[1].lower() in _FENCE_LANGUAGES and text[start : start + 1] in ("{", "[", '"'):
            one = _value_at(text, start)
            closing = _FENCE_END.match(text, one.end) if one is not None and not one.is_broken else None
            if one is None or closing is None:
                one = _Found(text[start:end], end, is_broken=True)
            else:
                end = closing.start()
            found.append(one)
        close = text.find("```", end)
        match = _FENCE.search(text, close + 3) if close >= 0 else None
    return found


def _in_prose(text: str) -> list[_Found]:
    """The outermost objects and arrays in prose; if only one is an object, the arrays are taken for prose.

    An empty object or array is prose, too: "nothing found in {}" is no answer.
    """
    found: list[_Found] = []
    match = _OPENING.search(text)
    attempts = 0
    while match is not None and attempts < MAX_ATTEMPTS:
        attempts += 1
        one = _value_at(text, match.start())
        if one is not None and not _EMPTY.fullmatch(one.text):
            found.append(one)
        match = _OPENING.search(text, one.end if one is not None else match.end())
    objects = [one for one in found if one.text.startswith("{")]
    return objects if len(objects) == 1 else found


def _value_at(text: str, start: int) -> _Found | None:
    """The value that begins here; if it is broken, all the rest of the text; None if this is prose."""
    try:
        _, end = _SCANNER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip())
        if not is_cut and not _BROKEN_START.match(text, start):
            return None
        return _Found(text[start:], len(text), is_broken=True)
    except (RecursionError, ValueError):  # too deep, or an integer too long for Python
        return _Found(text[start:], len(text), is_broken=True)
    return _Found(text[start:end], end, is_broken=False)
