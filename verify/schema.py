"""The check of an output type when it is defined: can msgspec describe it, and can it be enforced?

Found out here rather than at the first output, as a `SchemaUnsupported` that names the field.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as mi

from .errors import SchemaUnsupported

# What msgspec and the evaluation of annotations raise for a type that cannot be described.
DEFINITION_ERRORS = (TypeError, ValueError, NameError, AttributeError, SyntaxError, RecursionError)


RECORD_TYPES = (mi.StructType, mi.TypedDictType, mi.DataclassType, mi.NamedTupleType)
ITEM_TYPES = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType)
_UNHASHABLE = (mi.ListType, mi.SetType, mi.DictType, mi.TypedDictType, mi.ByteArrayType, mi.MemoryViewType)
_KEY_TYPES = (
    mi.AnyType,
    mi.StrType,
    mi.IntType,
    mi.FloatType,
    mi.BytesType,
    mi.DateTimeType,
    mi.DateType,
    mi.TimeType,
    mi.TimeDeltaType,
    mi.UUIDType,
    mi.DecimalType,
    mi.EnumType,
    mi.LiteralType,
)


def describe(type_: Any) -> mi.Type:
    """msgspec's description of an output type.

    Raises: SchemaUnsupported if outputs of this type cannot be described or cannot be judged strictly.
    """
    try:
        info = mi.type_info(type_)
        msgspec.json.Decoder(type_)
    except DEFINITION_ERRORS as error:
        path, culprit, cause = _find_culprit(type_, "$", error, [])
        raise SchemaUnsupported(path, _name(culprit), _reason(cause)) from error
    _refuse_unenforceable(info, "$", set())
    _refuse_endless(info)
    return info


def members(info: mi.Type) -> list[mi.Type]:
    """The alternatives of a type, without the wrappers that only carry metadata; Any swallows the others."""
    if isinstance(info, mi.Metadata):
        return members(info.type)
    if isinstance(info, mi.UnionType):
        found = [member for one in info.types for member in members(one)]
        any_type = next((one for one in found if isinstance(one, mi.AnyType)), None)
        return found if any_type is None else [any_type]
    return [info]


def children(info: mi.Type) -> Iterator[tuple[str, mi.Type]]:
    """The types inside one alternative, each with its step of the path: `.name`, `[0]`, `[]`."""
    if isinstance(info, RECORD_TYPES):
        yield from ((f".{field.encode_name}", field.type) for field in info.fields)
    elif isinstance(info, mi.TupleType):
        yield from ((f"[{i}]", item) for i, item in enumerate(info.item_types))
    elif isinstance(info, ITEM_TYPES):
        yield "[]", info.item_type
    elif isinstance(info, mi.DictType):
        yield "{key}", info.key_type
        yield "{}", info.value_type


def _refuse_unenforceable(info: mi.Type, path: str, seen: set[int]) -> None:
    alternatives = members(info)
    _refuse_merged_bounds(alternatives, path)
    for member in alternatives:
        if isinstance(member, (mi.CustomType, mi.ExtType)):
            reason = "it has no JSON form; use a msgspec Struct, a dataclass or a builtin type"
            raise SchemaUnsupported(path, _name(getattr(member, "cls", mi.ExtType)), reason)
        if isinstance(member, (mi.SetType, mi.FrozenSetType)):
            _refuse_unhashable(member.item_type, path)
        if isinstance(member, mi.DictType):
            _refuse_unwritable_key(member.key_type, path)
        if id(member) in seen:
            continue
        seen.add(id(member))
        for step, child in children(member):
            _refuse_unenforceable(child, path + step, seen)


def _refuse_merged_bounds(alternatives: list[mi.Type], path: str) -> None:
    """msgspec merges the bounds of alternatives of one JSON type, and then enforces neither's."""
    for kind, name in ((mi.IntType, "int"), (mi.FloatType, "float"), (mi.StrType, "str")):
        same = [member for member in alternatives if isinstance(member, kind)]
        literal = any(_has_literal(member, name) for member in alternatives)
        if len(same) > 1 or (literal and any(member != kind() for member in same)):
            reason = f"two alternatives are {name}, and bounds cannot tell them apart; keep one of them"
            raise SchemaUnsupported(path, f"a union of {name}s", reason)


def _has_literal(member: mi.Type, name: str) -> bool:
    return isinstance(member, mi.LiteralType) and any(type(v).__name__ == name for v in member.values)


def _refuse_unhashable(item: mi.Type, path: str) -> None:
    for member in members(item):
        mutable = isinstance(member, (mi.StructType, mi.DataclassType)) and not _hashable(member.cls)
        if mutable or isinstance(member, _UNHASHABLE):
            reason = "the items of a set must be hashable; use a frozen Struct, a tuple, or a list as a whole"
            raise SchemaUnsupported(f"{path}[]", type(member).__name__, reason)


def _hashable(cls: type) -> bool:
    config = getattr(cls, "__struct_config__", None)
    if config is not None:
        return bool(config.frozen or not config.eq)
    return cls.__hash__ is not None


def _refuse_unwritable_key(key: mi.Type, path: str) -> None:
    for member in members(key):
        if not isinstance(member, _KEY_TYPES):
            reason = "the key of a dict is a JSON string; use str, int, an enum or another scalar"
            raise SchemaUnsupported(f"{path}{{key}}", type(member).__name__, reason)


def _refuse_endless(root: mi.Type) -> None:
    """Refuse a type that requires itself, of which no finite value exists."""
    todo, finite = _reachable(root), set[int]()
    while True:
        ended = [info for info in todo if _is_finite(info, finite)]
        if not ended:
            break
        finite.update(map(id, ended))
        todo = [info for info in todo if id(info) not in finite]
    for info in todo:
        if isinstance(info, RECORD_TYPES):
            step = next(f for f in info.fields if f.required and not _has_finite(f.type, finite))
            reason = "the type requires itself without end; make the field optional (`| None`) or a list"
            raise SchemaUnsupported(f"{info.cls.__name__}.{step.encode_name}", _name(info.cls), reason)


def _reachable(root: mi.Type) -> list[mi.Type]:
    found: dict[int, mi.Type] = {}
    stack = members(root)
    while stack:
        info = stack.pop()
        if id(info) not in found:
            found[id(info)] = info
            stack.extend(member for _, child in children(info) for member in members(child))
    return list(found.values())


def _is_finite(info: mi.Type, finite: set[int]) -> bool:
    if isinstance(info, RECORD_TYPES):
        return all(_has_finite(field.type, finite) for field in info.fields if field.required)
    if isinstance(info, mi.TupleType):
        return all(_has_finite(item, finite) for item in info.item_types)
    if isinstance(info, ITEM_TYPES) and info.min_length:
        return _has_finite(info.item_type, finite)
    if isinstance(info, mi.DictType) and info.min_length:
        return _has_finite(info.value_type, finite)
    return True


def _has_finite(info: mi.Type, finite: set[int]) -> bool:
    return any(id(member) in finite for member in members(info))


def _find_culprit(
    type_: Any, path: str, cause: BaseException, seen: list[Any]
) -> tuple[str, Any, BaseException]:
    """Follow the failure down to the innermost field or item type that fails on its own."""
    seen.append(type_)
    if isinstance(cause, NameError) and (step := _field_that_names(type_, cause)):
        return path + step, type_, cause
    for step, child in _parts(type_):
        if any(child is one for one in seen):
            continue
        try:
            msgspec.json.Decoder(child)
        except DEFINITION_ERRORS as error:
            return _find_culprit(child, path + step, error, seen)
    return path, type_, cause


def _parts(type_: Any) -> Iterator[tuple[str, Any]]:
    try:
        hints = typing.get_type_hints(type_, include_extras=True) if isinstance(type_, type) else {}
    except DEFINITION_ERRORS:
        hints = {}
    origin, args = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        yield "", args[0]
    else:
        is_container = isinstance(origin, type) and origin is not types.UnionType
        yield from (("[]" if is_container else "", arg) for arg in args)
    yield from ((f".{name}", hint) for name, hint in hints.items())


def _field_that_names(type_: Any, error: NameError) -> str:
    for name, hint in getattr(type_, "__annotations__", {}).items():
        if error.name and error.name in str(hint):
            return f".{name}"
    return ""


def _name(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)


def _reason(cause: BaseException) -> str:
    return str(cause).split("\n", 1)[0] or type(cause).__name__
