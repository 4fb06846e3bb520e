"""From an output type to a grammar for constrained decoding.

The grammar narrows, the gate judges. The grammar is stricter than the type where that helps a small model:
a field with a written default must be given, so that the model fills it, the properties stand in the order
of their declaration, and no white space is written (small models loop on it). It is wider than the gate
where a grammar cannot follow: duplicate keys of a dict, duplicates in a set, the 29th of February, the
form of a datetime without a time zone, numbers too large for a float, nesting without end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .errors import GrammarUnsupported
from .schema import describe

Schema = dict[str, Any]

# How strings of these forms are written; of the formats, the engine knows some not at all, and of others
# more than Python's types can hold (a leap second, the year 0).
_DATE = (
    r"[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_FORMATS = {
    "decimal": r"^-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?$",
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
}
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

_DROPPED = ("discriminator", "uniqueItems", "propertyNames", "contentEncoding")
_ONE = ("items", "additionalProperties")
_MANY = ("anyOf", "prefixItems")
_NAMED = ("properties", "$defs")


def json_schema(type_: Any) -> bytes:
    """The JSON schema, as JSON text, that constrains decoding to the type.

    The same type gives the same text in every process, so that its digest may be a key.
    Fields that may be absent and have no written default (`msgspec.UNSET`, `NotRequired`, a factory) stay
    optional; all others are required.

    Raises: SchemaUnsupported if the type cannot be gated.
    """
    describe(type_)
    schema = msgspec.json.schema(type_)
    return msgspec.json.encode(_strict(schema, schema.get("$defs", {})))


def compile_grammar(schema: bytes) -> str:
    """The token grammar of a JSON schema, in the text form of llguidance.

    Raises: GrammarUnsupported if the schema uses what the engine cannot enforce.
    Source: llguidance, https://github.com/guidance-ai/llguidance
    """
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(
            schema.decode(), overrides={"whitespace_flexible": False}
        )
    except ValueError as error:
        raise GrammarUnsupported(str(error)) from error
    fault = LLMatcher.validate_grammar(grammar)
    if fault and not fault.startswith("WARNING"):
        raise GrammarUnsupported(fault.split("\n<", 1)[0])
    return grammar


def _strict(schema: Schema, defs: Schema) -> Schema:
    """One level of a schema, with what stands in it made strict, too."""

    def inner(one: Any) -> Any:
        return _strict(one, defs) if isinstance(one, dict) else one

    out = {key: _rewritten(key, value, inner) for key, value in schema.items() if key not in _DROPPED}
    _fix_object(out, schema, defs)
    _fix_array(out)
    _fix_string(out, schema)
    return out


def _rewritten(key: str, value: Any, inner: Callable[[Any], Any]) -> Any:
    if key in _ONE:
        return inner(value)
    if key in _MANY:
        return [inner(one) for one in value]
    if key in _NAMED:
        return {name: inner(one) for name, one in value.items()}
    return value


def _fix_object(out: Schema, schema: Schema, defs: Schema) -> None:
    names = _enumerated_keys(schema, defs)
    if names:  # a dict with an enum as its key: the engine knows fixed properties, but no propertyNames
        out["properties"] = dict.fromkeys(names, out.get("additionalProperties", {}))
    elif "properties" in out:
        required = set(out.get("required", ()))
        out["required"] = [
            name for name, one in out["properties"].items() if name in required or "default" in one
        ]
    elif out.get("type") != "object" or "additionalProperties" in out:
        return
    out["additionalProperties"] = False


def _enumerated_keys(schema: Schema, defs: Schema) -> list[str]:
    names = schema.get("propertyNames", {})
    if "$ref" in names:
        names = defs[names["$ref"].rsplit("/", 1)[1]]
    return [name for name in names.get("enum", ()) if isinstance(name, str)]


def _fix_array(out: Schema) -> None:
    if "prefixItems" in out:  # a named tuple or an array-like struct: every place is filled
        out["items"] = False
        out["minItems"] = out["maxItems"] = len(out["prefixItems"])


def _fix_string(out: Schema, schema: Schema) -> None:
    pattern = _FORMATS.get(schema.get("format", ""))
    if pattern is not None:
        del out["format"]
        out["pattern"] = pattern
    if schema.get("contentEncoding") == "base64":
        out["pattern"] = _BASE64
