"""CASES 6: partial values are marked partial, and nothing is invented."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmkv.verify import Partial, PartialJson

UNSET = msgspec.UNSET


def view(*chunks: str) -> Partial:
    partial = PartialJson()
    for chunk in chunks:
        partial.feed(chunk)
    return partial.view()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Partial()),
        ("{", Partial({}, False, "$")),
        ('{"na', Partial({}, False, "$")),
        ('{"name"', Partial({}, False, "$.name")),
        ('{"name":"Al', Partial({}, False, "$.name", "Al")),
        ('{"name":"Al"', Partial({"name": "Al"}, False, "$.name")),
        ('{"name":"Al","n', Partial({"name": "Al"}, False, "$")),
        ('{"n":12', Partial({}, False, "$.n")),
        ('{"n":12,', Partial({"n": 12}, False, "$")),
        ('{"n":tru', Partial({}, False, "$.n")),
        ('{"n":true}', Partial({"n": True}, True, "$")),
        ('[1, 2, "x', Partial([1, 2], False, "$[2]", "x")),
        ('[{"a":[1', Partial([{"a": []}], False, "$[0].a[0]")),
        ("[12", Partial([], False, "$[0]")),
        ("12", Partial()),
        ('"abc', Partial(UNSET, False, "$", "abc")),
        ('"abc"', Partial("abc", True, "$")),
        ('["a\\', Partial([], False, "$[0]", "a")),
        ('["a\\\\', Partial([], False, "$[0]", "a\\")),
        ('["a\\u00', Partial([], False, "$[0]", "a")),
        ('["a\\ud83d', Partial([], False, "$[0]", "a")),
        ('["a\\ud83d\\ude', Partial([], False, "$[0]", "a")),
        ('["a\\ud83d\\ude00', Partial([], False, "$[0]", "a😀")),
    ],
)
def test_what_is_certain_of_a_cut_text(text: str, expected: Partial) -> None:
    assert view(text) == expected
    assert view(*text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[1 2",
        "[,",
        "[1,]",
        '{"a" 1',
        '{"a":1,}',
        "[1}",
        "{1",
        "]",
        '{"a":}',
        "[tru,",
        '["\\q"',
        "[1] 2",
        "[1e999,",
    ],
)
def test_a_fault_ends_the_view_where_it_was(text: str) -> None:
    partial = PartialJson()
    partial.feed(text)
    before = partial.view()
    partial.feed(' , "more": [{"a":1}]}')
    assert partial.view() == before
    assert not before.complete


def test_depth_is_bounded() -> None:
    partial = PartialJson()
    partial.feed("[" * 100_000)
    assert not partial.view().complete


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(json_values, st.booleans(), st.data())
def test_a_view_never_holds_what_the_whole_does_not(
    value: Any, ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    cut = data.draw(st.integers(0, len(text)))
    partial = view(text[:cut], "")
    assert partial.value is UNSET or _is_part(partial.value, value)
    assert not partial.complete or partial.value == value
    if partial.open_text is not None:
        assert json.dumps(partial.open_text)[1:-1] in json.dumps(value)
    if isinstance(value, (dict, list, str)):
        assert view(text) == Partial(value, True)


def _is_part(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(k in whole and _is_part(v, whole[k]) for k, v in part.items())
    if isinstance(part, list):
        pairs = zip(part, whole, strict=False)
        return isinstance(whole, list) and len(part) <= len(whole) and all(_is_part(a, b) for a, b in pairs)
    return type(part) is type(whole) and part == whole
