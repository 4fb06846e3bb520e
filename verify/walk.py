"""The exact check of a text that msgspec has accepted: unknown fields, duplicates, nesting, hidden NaN.

It walks three things side by side: the type, the JSON tree in which no member was dropped, and the value
that msgspec made. The value is needed because two texts may mean one thing (`"1"` and `"1.0"` as float keys,
two spellings of one instant): then the set or dict has fewer items than the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec.inspect as mi

from .paths import render
from .schema import ITEM_TYPES, RECORD_TYPES, members
from .verdict import Reject

_ANY = mi.AnyType()
_UNSEEN: Any = object()  # the value of an item whose place in msgspec's result is not known

MAX_NAMES = 12

Path = tuple[str | int, ...]


class Members(list[tuple[str, Any]]):
    """A JSON object as its members, in the order of the text, duplicates included."""


class _Child(NamedTuple):
    step: str | int
    type: mi.Type
    node: Any
    value: Any


def parse_tree(text: str) -> Any:
    """The JSON tree of a text; objects become `Members`, and integers of any length decimals.

    Raises: ValueError or RecursionError.
    """
    return json.loads(text, object_pairs_hook=Members, parse_int=Decimal)


def first_fault(info: mi.Type, node: Any, value: Any, max_depth: int, path: Path = ()) -> Reject | None:
    """The first thing in the tree that is not strict, or None."""
    if not isinstance(node, list):
        return _scalar_fault(info, node, path)
    if len(path) >= max_depth:
        return Reject(f"Nested more than {max_depth} levels deep; answer with flatter JSON.", render(path))
    member = _chosen(info, node)
    fault = _own_fault(member, node, value, path)
    if fault is not None:
        return fault
    for child in _children(member, node, value):
        fault = first_fault(child.type, child.node, child.value, max_depth, (*path, child.step))
        if fault is not None:
            return fault
    return None


def _scalar_fault(info: mi.Type, node: Any, path: Path) -> Reject | None:
    if not isinstance(node, (str, float)) or (isinstance(node, float) and math.isfinite(node)):
        return None
    if any(isinstance(member, mi.DecimalType) for member in members(info)):
        finite = isinstance(node, float) or Decimal(node).is_finite()  # a decimal may exceed a float
    else:
        finite = isinstance(node, str)
    if finite:
        return None
    return Reject("NaN and infinities are not allowed; give a finite number.", render(path))


def _chosen(info: mi.Type, node: list[Any]) -> mi.Type:
    """The alternative that msgspec took for this object or array."""
    is_object = isinstance(node, Members)
    fitting = [member for member in members(info) if _takes(member, is_object)]
    if len(fitting) > 1:  # several structs: msgspec insists that they are tagged
        tags = dict(node) if is_object else {None: node[0] if node else None}
        fitting = [m for m in fitting if isinstance(m, mi.StructType) and _is_tagged(m, tags, is_object)]
    return fitting[0] if fitting else _ANY


def _takes(member: mi.Type, is_object: bool) -> bool:
    if isinstance(member, mi.StructType):
        return is_object != member.array_like
    if is_object:
        return isinstance(member, (mi.DictType, mi.TypedDictType, mi.DataclassType))
    return isinstance(member, (mi.CollectionType, mi.TupleType, mi.NamedTupleType))


def _is_tagged(member: mi.StructType, tags: dict[Any, Any], is_object: bool) -> bool:
    return tags.get(member.tag_field if is_object else None) == member.tag


def _own_fault(member: mi.Type, node: list[Any], value: Any, path: Path) -> Reject | None:
    if isinstance(node, Members):
        return (
            _duplicate_key(node, path) or _unknown_field(member, node, path) or _colliding(node, value, path)
        )
    if isinstance(member, mi.StructType) and len(node) > (n := _width(member)):
        return Reject(f"Too many items: {n} are known here; remove the rest.", render((*path, n)))
    if isinstance(member, (mi.SetType, mi.FrozenSetType)):
        return _repeated_item(node, path) or _colliding(node, value, path)
    return None


def _duplicate_key(node: Members, path: Path) -> Reject | None:
    if len(dict(node)) == len(node):
        return None
    seen: set[str] = set()
    key = next(key for key, _ in node if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return Reject("This key stands twice in its object; write it once.", render((*path, key)))


def _unknown_field(member: mi.Type, node: Members, path: Path) -> Reject | None:
    if not isinstance(member, RECORD_TYPES):
        return None
    known = [field.encode_name for field in member.fields]
    if isinstance(member, mi.StructType) and member.tag_field:
        known.insert(0, member.tag_field)
    for key, _ in node:
        if key not in known:
            names = ", ".join(known[:MAX_NAMES]) + (", …" if len(known) > MAX_NAMES else "")
            return Reject(f"Unknown field; the fields are: {names}. Remove it.", render((*path, key)))
    return None


def _colliding(node: list[Any], value: Any, path: Path) -> Reject | None:
    """Different texts that mean one key or item; and NaN as a key, which msgspec reads from a string."""
    if isinstance(value, dict):
        for (text, _), key in zip(node, value, strict=False):
            if isinstance(key, (float, Decimal)) and not math.isfinite(key):
                return Reject("NaN and infinities are not allowed as a key.", render((*path, text)))
    if isinstance(value, (set, frozenset, dict)) and len(value) < len(node):
        what = "keys" if isinstance(value, dict) else "items"
        return Reject(f"Two {what} mean the same value; write each once.", render(path))
    return None


def _repeated_item(node: list[Any], path: Path) -> Reject | None:
    seen = set()
    for i, item in enumerate(node):
        frozen = _frozen(item)
        if frozen in seen:
            return Reject("This item stands twice in a set; write it once.", render((*path, i)))
        seen.add(frozen)
    return None


def _frozen(node: Any) -> Any:
    """A hashable stand-in that is equal where a set of Python would take the values for equal."""
    if isinstance(node, Members):
        return (Members, frozenset((key, _frozen(item)) for key, item in node))
    if isinstance(node, list):
        return (list, tuple(_frozen(item) for item in node))
    return node


def _width(member: mi.StructType) -> int:
    return len(member.fields) + (member.tag is not None)


def _children(member: mi.Type, node: list[Any], value: Any) -> Iterator[_Child]:
    if isinstance(node, Members):
        return _object_children(member, node, value)
    return _array_children(member, node, value)


def _object_children(member: mi.Type, node: Members, value: Any) -> Iterator[_Child]:
    if isinstance(member, RECORD_TYPES):
        fields = {field.encode_name: field for field in member.fields}
        for key, item in node:
            if (field := fields.get(key)) is not None:  # else it is the tag
                yield _Child(key, field.type, item, _attribute(value, field.name))
        return
    item_type = member.value_type if isinstance(member, mi.DictType) else _ANY
    in_step = isinstance(value, dict) and len(value) == len(node)
    values = list(value.values()) if in_step else [_UNSEEN] * len(node)
    for (key, item), item_value in zip(node, values, strict=True):
        yield _Child(key, item_type, item, item_value)


def _array_children(member: mi.Type, node: list[Any], value: Any) -> Iterator[_Child]:
    if isinstance(member, RECORD_TYPES):
        offset = int(isinstance(member, mi.StructType) and member.tag is not None)
        for i, (field, item) in enumerate(zip(member.fields, node[offset:], strict=False), offset):
            yield _Child(i, field.type, item, _attribute(value, field.name))
        return
    in_step = isinstance(value, (list, tuple)) and len(value) == len(node)
    for i, item in enumerate(node):
        yield _Child(i, _item_type(member, i), item, value[i] if in_step else _UNSEEN)


def _item_type(member: mi.Type, i: int) -> mi.Type:
    if isinstance(member, mi.TupleType):
        return member.item_types[i]
    return member.item_type if isinstance(member, ITEM_TYPES) else _ANY


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, _UNSEEN)
    return getattr(value, name, _UNSEEN)
