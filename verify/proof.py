"""A quick proof that a text which msgspec has accepted hides nothing that msgspec lets through.

From a type, a regular expression is made that matches the plain way of writing its values: known keys,
each at most once, in the order of their declaration, and nothing whose meaning could collide (a dict or a
set of more than one item). If it matches, unknown fields, duplicates and excessive nesting are excluded,
and the exact walk is not needed. If it does not match, nothing is said: the exact walk decides.

It only excludes: that the text is JSON of the right types was proven by msgspec before. All repetitions are
possessive, so that matching takes linear time.
"""

from __future__ import annotations

import re

import msgspec
import msgspec.inspect as mi

from .schema import RECORD_TYPES, members

MAX_PATTERN_CHARS = 20_000

_NEVER = "(?!)"
_WS = r"[ \t\n\r]*+"
_GAP = r"[ \t\n\r,]*+"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_UNQUOTED = r'[^"\[\]{},:\s]++'
_SCALAR = f"(?:{_STRING}|{_UNQUOTED})"
_FINITE_DECIMAL = r'"?[^"\\nN\[\]{},:\s]++"?'  # every spelling of NaN and of infinity has an n


def compile_proof(info: mi.Type, max_depth: int) -> re.Pattern[bytes]:
    """The pattern whose full match proves that a text accepted by msgspec is strict, too."""
    pattern = _Compiler(max_depth).value(info)
    if len(pattern) > MAX_PATTERN_CHARS:
        pattern = _NEVER
    return re.compile(f"{_WS}{pattern}{_WS}".encode(), re.DOTALL)


class _Compiler:
    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._around: list[mi.Type] = []  # the types around the current one: a recursive one ends the proof
        self._done: dict[tuple[int, int], str] = {}  # by type and depth, for types that are used many times

    def value(self, info: mi.Type) -> str:
        key = (id(info), len(self._around))
        if key not in self._done:
            self._done[key] = self._choice(members(info))
        return self._done[key]

    def _choice(self, alternatives: list[mi.Type]) -> str:
        if any(isinstance(member, mi.DecimalType) for member in alternatives):
            scalar = f"(?:{_FINITE_DECIMAL}|{_UNQUOTED})"  # then no other alternative is a string
        else:
            scalar = _SCALAR
        choices = dict.fromkeys(self._member(member, scalar) for member in alternatives)
        pattern = "(?:" + "|".join(choices) + ")"
        return pattern if len(pattern) <= MAX_PATTERN_CHARS else _NEVER

    def _member(self, info: mi.Type, scalar: str) -> str:
        if isinstance(info, mi.RawType):
            return _NEVER
        if not isinstance(info, (*RECORD_TYPES, mi.CollectionType, mi.TupleType, mi.DictType)):
            return scalar  # of an Any, too: what it holds beyond a scalar is for the exact walk
        if len(self._around) >= self._max_depth or any(info is one for one in self._around):
            return _NEVER
        self._around.append(info)
        try:
            return self._container(info)
        finally:
            self._around.pop()

    def _container(self, info: mi.Type) -> str:
        if isinstance(info, mi.DictType):
            simple = isinstance(info.key_type, mi.StrType)
            return _object(rf"(?:{_STRING}{_WS}:{_WS}{self.value(info.value_type)})?+" if simple else "")
        if isinstance(info, mi.TupleType):
            return _array("".join(self.value(item) + _GAP for item in info.item_types))
        if isinstance(info, (mi.SetType, mi.FrozenSetType)):
            return _array(f"(?:{self.value(info.item_type)}{_GAP})?+")
        if isinstance(info, mi.CollectionType):
            return _array(f"(?:{self.value(info.item_type)}{_GAP})*+")
        assert isinstance(info, RECORD_TYPES)
        if isinstance(info, mi.NamedTupleType) or (isinstance(info, mi.StructType) and info.array_like):
            tagged = isinstance(info, mi.StructType) and info.tag is not None
            items = [_SCALAR] * tagged + [self.value(field.type) for field in info.fields]
            return _array("".join(f"(?:{item}{_GAP})?+" for item in items))
        return self._fields(info)

    def _fields(self, info: mi.StructType | mi.TypedDictType | mi.DataclassType) -> str:
        tag = info.tag_field if isinstance(info, mi.StructType) else None
        fields = [(tag, _SCALAR)] if tag else []
        fields += [(field.encode_name, self.value(field.type)) for field in info.fields]
        return _object("".join(f"(?:{_key(key)}{_WS}:{_WS}{value}{_GAP})?+" for key, value in fields))


def _key(name: str) -> str:
    return re.escape(msgspec.json.encode(name).decode())


def _object(inside: str) -> str:
    return rf"\{{{_WS}{inside}{_WS}\}}"


def _array(inside: str) -> str:
    return rf"\[{_WS}{inside}{_WS}\]"
