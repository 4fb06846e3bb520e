"""The strict gate against an independent oracle, and against arbitrary bytes."""

import datetime
import json
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmkv.verify import Reject, StrictDecoder


class Leaf(msgspec.Struct, frozen=True):
    a: int
    b: str = ""


class Tree(msgspec.Struct):
    a: int
    leaf: Leaf | None = None
    many: list[Leaf] = []
    trees: list["Tree"] = []
    named: dict[str, Leaf] = {}


class Left(msgspec.Struct, tag=True):
    a: Decimal


class Right(msgspec.Struct, tag=True):
    b: set[int]


TYPES: list[Any] = [
    Any,
    msgspec.Raw,
    str,
    Leaf,
    Tree,
    Left | Right | None,
    dict[float, Any],
    list[frozenset[Leaf]],
    dict[str, Annotated[datetime.datetime, msgspec.Meta(tz=True)]],
    tuple[int, Leaf, Any],
]
DECODERS = [StrictDecoder(one) for one in TYPES]

keys = st.sampled_from(
    ["a", "b", "leaf", "many", "trees", "named", "type", "x", "\\u0061", "nan", "1", "1.0"]
)
scalars = st.sampled_from(
    [
        *("0", "1", "1.0", "-7", "null", "true", "NaN", "1e999"),
        *('""', '"a"', '"NaN"', '"Left"', '"Right"', '"{:,"', '"2020-01-01T00:00:00Z"'),
        *('"\\ud83d"', '"\\ud83d\\ude00"', '"\\\\ud83d"'),
    ]
)


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{key}":{value}' for key, value in members) + "}"


documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]")
        | st.lists(st.tuples(keys, inner), max_size=4).map(_object)
    ),
    max_leaves=8,
)
shaped = st.builds(
    lambda b, extra, many: _object([("a", "1"), ("leaf", _object([("a", "1"), *b])), ("many", many), *extra]),
    st.lists(st.tuples(keys, scalars), max_size=2),
    st.lists(st.tuples(keys, documents), max_size=2),
    st.sampled_from(["[]", '[{"a":1}]', '[{"a":1,"b":"x"},{"b":"y","a":2}]']),
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise(raw: bytes) -> None:
    for decoder in DECODERS:
        verdict = decoder.decode(raw)
        assert not isinstance(verdict, Reject) or (verdict.message and verdict.path.startswith("$"))


@settings(max_examples=300, deadline=None)
@given(documents | shaped, st.data())
def test_no_mutated_json_raises(text: str, data: st.DataObject) -> None:
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
            st.sampled_from(b'{}[],:"\\u\xed\xff0aN \x00')
        )
    for decoder in DECODERS:
        verdict = decoder.decode(bytes(raw))
        assert not isinstance(verdict, Reject) or (verdict.message and verdict.path.startswith("$"))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_no_text_raises(text: str) -> None:
    for decoder in DECODERS:
        verdict = decoder.decode(text)
        assert not isinstance(verdict, Reject) or verdict.message


@settings(max_examples=500, deadline=None)
@given(documents | shaped)
@pytest.mark.parametrize("i", range(len(TYPES)))
def test_the_quick_proof_never_hides_what_the_exact_walk_finds(i: int, text: str) -> None:
    decoder = DECODERS[i]
    raw = text.encode()
    try:
        value = msgspec.json.decode(raw, type=TYPES[i])
    except msgspec.DecodeError:
        assert isinstance(decoder.decode(raw), Reject)
        return
    fault = decoder._exact_fault(raw, value)
    answer = decoder.decode(raw)
    assert isinstance(answer, Reject) == (fault is not None)
    if fault is None and TYPES[i] is not msgspec.Raw:
        assert answer == value


@settings(max_examples=500, deadline=None)
@given(documents)
def test_untyped_json_against_the_standard_library(text: str) -> None:
    assert isinstance(DECODERS[0].decode(text), Reject) == (not _is_strict(text))


def _is_strict(text: str) -> bool:
    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(members)) < len(members):
            raise ValueError("duplicate")
        return dict(members)

    try:
        json.dumps(json.loads(text, object_pairs_hook=pairs), allow_nan=False, ensure_ascii=False).encode()
    except ValueError:  # a UnicodeEncodeError is one, too
        return False
    return True


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        Tree,
        a=st.integers(-(2**60), 2**60),
        leaf=st.none() | st.builds(Leaf, a=st.integers(0, 9), b=st.text()),
        many=st.lists(st.builds(Leaf, a=st.integers(0, 9), b=st.text()), max_size=3),
        named=st.dictionaries(st.text(max_size=3), st.builds(Leaf, a=st.integers(0, 9)), max_size=3),
    )
)
def test_what_msgspec_writes_is_accepted(tree: Tree) -> None:
    assert StrictDecoder(Tree).decode(msgspec.json.encode(tree)) == tree
