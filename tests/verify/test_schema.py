"""CASES 3: a type works, or its definition fails with an error that names the field."""

import collections
import dataclasses
import enum
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from swarmkv.verify import SchemaUnsupported, StrictDecoder, VerifyError, json_schema

Small = Annotated[int, msgspec.Meta(le=-5)]
Large = Annotated[int, msgspec.Meta(ge=5)]


class A(msgspec.Struct):
    x: int


class B(msgspec.Struct):
    y: int


class Tagged(msgspec.Struct, tag=True):
    x: int = 0


class TaggedToo(msgspec.Struct, tag=True):
    items: list["Tagged | TaggedToo"]
    more: dict[str, int] = {}


class Bounds(msgspec.Struct):
    name: str
    size: Small | Large


class Untagged(msgspec.Struct):
    rows: list[A | B]


class Priced(msgspec.Struct):
    inner: "Price"


class Price(msgspec.Struct):
    amount: Annotated[Decimal, msgspec.Meta(ge=0)]


class Custom(msgspec.Struct):
    parts: dict[str, list[Fraction]]


@dataclasses.dataclass
class Record:
    queue: collections.deque  # type: ignore[type-arg]


class Missing(msgspec.Struct):
    other: "NoSuchType"  # type: ignore[name-defined]  # noqa: F821


class HoldsMissing(msgspec.Struct):
    inner: list[Missing]


class Endless(msgspec.Struct):
    name: str
    again: "Endless"


class EndlessA(msgspec.Struct):
    b: "tuple[EndlessB, int]"


class EndlessB(msgspec.Struct):
    a: "Annotated[list[EndlessA], msgspec.Meta(min_length=1)]"


class Twin(enum.Enum):
    A = "a"


class Holder(TypedDict):
    value: Twin | str


class Frozen(msgspec.Struct, frozen=True):
    x: int


REFUSED: list[tuple[Any, str]] = [
    (A | B, "$"),
    (Untagged, "$.rows[]"),
    (Bounds, "$.size"),
    (Small | Large, "$"),
    (list[Annotated[str, msgspec.Meta(min_length=3)] | Annotated[str, msgspec.Meta(max_length=1)]], "$[]"),
    (Priced, "$.inner.amount"),
    (Custom, "$.parts{}[]"),
    (Record, "$.queue"),
    (Missing, "$.other"),
    (HoldsMissing, "$.inner[].other"),
    (Endless, "Endless.again"),
    (EndlessA, "EndlessA.b"),
    (Holder, "$.value"),
    (set[list[int]], "$[]"),
    (set[A], "$[]"),
    (dict[tuple[int, int], int], "${key}"),
    (dict[str, complex], "${}"),
    (object, "$"),
    ("nonsense", "$"),
]


@pytest.mark.parametrize(("type_", "path"), REFUSED)
def test_what_cannot_be_enforced_is_refused_with_its_field(type_: Any, path: str) -> None:
    with pytest.raises(SchemaUnsupported) as caught:
        StrictDecoder(type_)
    assert caught.value.path == path
    assert path in str(caught.value)
    assert caught.value.reason
    assert isinstance(caught.value, VerifyError)
    assert not caught.value.retryable
    with pytest.raises(SchemaUnsupported):
        json_schema(type_)


@pytest.mark.parametrize(
    ("type_", "raw"),
    [
        (list[Tagged | TaggedToo], '[{"type":"TaggedToo","items":[{"type":"Tagged","x":1}],"more":{"a":1}}]'),
        (Tagged | TaggedToo | None, "null"),
        (int | float, "1.5"),
        (int | bool | None, "true"),
        (Large | str, '"x"'),
        (set[Frozen], '[{"x":1},{"x":2}]'),
        (Annotated[list[int], msgspec.Meta(max_length=2)] | None, "[1,2]"),
        (Any | None, "{}"),
    ],
)
def test_what_can_be_enforced_works(type_: Any, raw: str) -> None:
    value = StrictDecoder(type_).decode(raw)
    assert value == msgspec.json.decode(raw, type=type_)
    assert json_schema(type_)


def test_a_type_used_very_often_is_compiled_quickly() -> None:
    type_: Any = Frozen
    for i in range(40):  # as a tree it would have 2**40 leaves
        type_ = msgspec.defstruct(f"Level{i}", [("a", type_), ("b", type_)])
    decoder = StrictDecoder(type_)
    assert "missing required field" in str(decoder.decode("{}"))
