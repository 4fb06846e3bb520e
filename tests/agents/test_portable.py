from __future__ import annotations

import enum
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkv.agents import NotPortable, ensure_portable


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Point(msgspec.Struct):
    x: int


class Words(str):
    pass


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary()
    | st.text(st.characters())
    | st.tuples(st.integers())
    | st.frozensets(st.integers()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**63),
        2**64 - 1,
        1.5,
        float("inf"),
        "Grüße 🙂",
        b"\x00\xff",
        [],
        {"a": [{"b": None}, [1, 2]], "": "x", "not a name": b""},
    ],
)
def test_what_is_portable_passes_and_arrives(value: Any) -> None:
    ensure_portable(value)
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((1, 2), "it is a tuple, which would not come back as one; pass a list"),
        ({1, 2}, "a set"),
        (frozenset(), "a frozenset"),
        (defaultdict(list), "pass dict(value)"),
        (OrderedDict(), "pass dict(value)"),
        (Counter("ab"), "pass dict(value)"),
        (deque([1], maxlen=3), "pass list(value)"),
        (Fraction(1, 3), "a Fraction"),
        (Decimal("1.5"), "pass str(value)"),
        (PurePosixPath("a"), "a PurePosixPath"),
        (datetime.now(UTC), "pass value.isoformat()"),
        (bytearray(b"a"), "pass bytes(value)"),
        (2**70, "does not fit 64 bits"),
        (-(2**63) - 1, "does not fit 64 bits"),
        ("a\ud800", "a lone surrogate at 1"),
        (Colour.RED, "a Colour"),
        (Number.ONE, "a Number"),
        (Words("a"), "a Words"),
        (Point(1), "a Point"),
        (threading.Lock(), "a lock"),
        (object, "a type"),
        ({1: "a"}, "its key 1 is no str"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_place(value: Any, reason: str) -> None:
    for held, path in [
        (value, "$"),
        ({"items": [0, {"name": value}]}, "$.items[1].name"),
        ({"two words": value}, '$["two words"]'),
    ]:
        with pytest.raises(NotPortable) as caught:
            ensure_portable(held)
        assert caught.value.path == path
        assert reason in str(caught.value)


def test_a_place_may_begin_elsewhere() -> None:
    with pytest.raises(NotPortable, match=r"inputs\[3\]\.a"):
        ensure_portable({"a": ()}, "inputs[3]")


def test_a_key_with_a_lone_surrogate_is_named_by_its_escape() -> None:
    with pytest.raises(NotPortable) as caught:
        ensure_portable({"\ud800": 1})
    assert caught.value.path == '$["\\ud800"]'


def test_a_circle_and_a_deep_nest_are_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotPortable, match="nested more than 64 deep"):
        ensure_portable(circle)
    nest: Any = 1
    for _ in range(64):
        nest = [nest]
    ensure_portable(nest)
    with pytest.raises(NotPortable):
        ensure_portable([nest])


@given(anything)
def test_what_passes_arrives_with_value_and_types(value: Any) -> None:
    try:
        ensure_portable(value)
    except NotPortable:
        return
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    assert repr(arrived) == repr(value)
