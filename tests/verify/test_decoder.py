"""CASES 1 and 4: what msgspec alone lets through is rejected, with its path."""

import dataclasses
import datetime
import enum
import sys
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from swarmkv.verify import Reject, StrictDecoder


class Item(msgspec.Struct, frozen=True):
    name: str
    price: float = 0.0


class Order(msgspec.Struct):
    id: int
    items: list[Item]
    notes: dict[str, Item] = {}


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    a: int
    b: NotRequired[Item]


class Pair(NamedTuple):
    left: int
    right: Item


class Row(msgspec.Struct, array_like=True):
    a: int
    b: int = 2


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str
    friends: list["Cat | Dog"] = []


class CatRow(msgspec.Struct, tag="cat", array_like=True):
    lives: int = 9


class DogRow(msgspec.Struct, tag="dog", array_like=True):
    name: str = ""


class Node(msgspec.Struct):
    next: "Node | None" = None


class Renamed(msgspec.Struct, rename="camel"):
    my_field: int


class Colour(enum.Enum):
    RED = "red"


class Fragile(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        if self.x == 1:
            raise ValueError("x must not be one")
        if self.x == 2:
            raise KeyError("x")


Aware = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
Whole = dict[str, Any]

ACCEPTED: list[tuple[Any, str, Any]] = [
    (Item, '{"name":"a","price":1.5}', Item("a", 1.5)),
    (Item, ' { "price" : 1 , "name" : "a:{[,\\"" } ', Item('a:{[,"', 1.0)),
    (Order, '{"id":1,"items":[{"name":"a"},{"name":"b","price":2}]}', Order(1, [Item("a"), Item("b", 2)])),
    (Order, '{"id":1,"items":[],"notes":{"k":{"name":"n"}}}', Order(1, [], {"k": Item("n")})),
    (Point, '{"y":2,"x":1}', Point(1, 2)),
    (Options, '{"a":1,"b":{"name":"x"}}', {"a": 1, "b": Item("x")}),
    (Pair, '[1,{"name":"x"}]', Pair(1, Item("x"))),
    (Row, "[1]", Row(1)),
    (Cat | Dog, '{"type":"Cat","lives":9}', Cat(9)),
    (Cat | Dog, '{"lives":9,"type":"Cat"}', Cat(9)),
    (Cat, '{"lives":9}', Cat(9)),
    (CatRow | DogRow, '["dog","Rex"]', DogRow("Rex")),
    (Node, '{"next":{"next":{}}}', Node(Node(Node()))),
    (Renamed, '{"myField":1}', Renamed(1)),
    (set[int], "[1,2]", {1, 2}),
    (frozenset[tuple[int, int]], "[[1,2],[2,1]]", frozenset({(1, 2), (2, 1)})),
    (set[bool | int], "[0,2]", {0, 2}),
    (Decimal, '"1.50"', Decimal("1.50")),
    (Decimal, "1e999", Decimal("1e999")),
    (list[Decimal], "[1e999," + "1" * 5000 + "]", [Decimal("1e999"), Decimal("1" * 5000)]),
    (Decimal | None, "null", None),
    (Any, '{"a":[1,{"b":null}]}', {"a": [1, {"b": None}]}),
    (dict[int, int], '{"1":1,"2":2}', {1: 1, 2: 2}),
    (dict[Colour, int], '{"red":1}', {Colour.RED: 1}),
    (str, '"\\ud83d\\ude00 \\\\ud800"', "😀 \\ud800"),
    (Any, '["\\ud83d\\ude00 \\\\ud800",{}]', ["😀 \\ud800", {}]),
    (Aware, '"2020-01-01T00:00:00Z"', datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)),
    (None, "null", None),
]

REJECTED: list[tuple[Any, str | bytes, str, str]] = [
    # unknown fields
    (Item, '{"name":"a","colour":1}', "$.colour", "Unknown field"),
    (Order, '{"id":1,"items":[{"name":"a"},{"name":"b","x":1}]}', "$.items[1].x", "Unknown field"),
    (Order, '{"id":1,"items":[],"notes":{"the key":{"name":"n","x":1}}}', '$.notes["the key"].x', "Unknown"),
    (Point, '{"x":1,"z":1}', "$.z", "the fields are: x, y"),
    (Options, '{"a":1,"c":1}', "$.c", "Unknown field"),
    (Options, '{"a":1,"b":{"name":"x","y":1}}', "$.b.y", "Unknown field"),
    (Pair, '[1,{"name":"x","y":1}]', "$[1].y", "Unknown field"),
    (tuple[int, Item], '[1,{"name":"x","y":1}]', "$[1].y", "Unknown field"),
    (Item | None, '{"name":"x","y":1}', "$.y", "Unknown field"),
    (Cat | Dog, '{"type":"Cat","lives":1,"name":"x"}', "$.name", "the fields are: type, lives"),
    (list[Cat | Dog], '[{"type":"Dog","name":"x","friends":[{"type":"Cat","lives":1,"q":0}]}]',
     "$[0].friends[0].q", "Unknown field"),
    (Node, '{"next":{"next":{"x":1}}}', "$.next.next.x", "Unknown field"),
    (Renamed, '{"myField":1,"my_field":1}', "$.my_field", "the fields are: myField"),
    (Row, "[1,2,3]", "$[2]", "Too many items"),
    (CatRow | DogRow, '["dog","Rex",1]', "$[2]", "Too many items"),
    # duplicate keys
    (Item, '{"name":"a","name":"a"}', "$.name", "stands twice"),
    (Item, '{"name":"a","n\\u0061me":"a"}', "$.name", "stands twice"),
    (Cat | Dog, '{"type":"Cat","lives":1,"type":"Cat"}', "$.type", "stands twice"),
    (Order, '{"id":1,"items":[{"name":"a","price":1,"price":1}]}', "$.items[0].price", "stands twice"),
    (Whole, '{"a":1,"a":1}', "$.a", "stands twice"),
    (Any, '[{"x":{"a":1,"a":1}}]', "$[0].x.a", "stands twice"),
    (msgspec.Raw, '{"x":{"a":1,"a":1}}', "$.x.a", "stands twice"),
    (dict[float, int], '{"1":1,"1.0":1}', "$", "Two keys mean the same"),
    # wrong types
    (Item, '{"name":"a","price":"1"}', "$.price", "Expected `float`, got `str`"),
    (Order, '{"id":1,"items":null}', "$.items", "Expected `array`, got `null`"),
    (Order, '{"id":1.0,"items":[]}', "$.id", "Expected `int`, got `float`"),
    (Order, '{"id":true,"items":[]}', "$.id", "Expected `int`, got `bool`"),
    (Order, '{"items":[]}', "$", "missing required field `id`"),
    (Fragile, '{"x":1}', "$", "x must not be one"),
    (Fragile, '{"x":2}', "$", "KeyError"),
    (dict[str, int], '{"a":1,"b c":"x"}', '$["b c"]', "Expected `int`"),
    (dict[str, dict[str, list[int]]], '{"a":{},"b":{"c":[1],"d":[1,"x"]}}', "$.b.d[1]", "Expected `int`"),
    (dict[int, int], '{"1":1,"x":2}', "$.x", "The key is wrong"),
    (list[dict[Colour, int]], '[{"red":1},{"blue":2}]', "$[1].blue", "The key is wrong"),
    # numbers that are none
    (float, "NaN", "$", "NaN and Infinity are not JSON"),
    (list[float], "[1,-Infinity]", "$[1]", "NaN and Infinity are not JSON"),
    (Item, '{"name":"a","price":1e999}', "$.price", "out of range"),
    (Any, "[-1e999]", "$[0]", "out of range"),
    (msgspec.Raw, "[-1e999]", "$[0]", "finite"),
    (Decimal, '"NaN"', "$", "finite"),
    (Decimal | None, '"NaN"', "$", "finite"),
    (list[Decimal | int], '["1","-Infinity"]', "$[1]", "finite"),
    (Decimal, '"\\u004eaN"', "$", "finite"),
    (dict[float, int], '{"nan":1}', "$.nan", "as a key"),
    (dict[float, int], '{"1":1,"inf":1}', "$.inf", "as a key"),
    # text
    (str, '"\\ud800"', "$", "lone surrogate"),
    (Item, '{"name":"\\ud83d\\\\ude00"}', "$.name", "lone surrogate"),
    (Any, '{"a":["x","\\ude00\\ud83d"]}', "$.a[1]", "lone surrogate"),
    (list[str], '["\\ud83d","\\ud83d\\ude00"]', "$[0]", "lone surrogate"),
    (set[bool | int], "[1,true]", "$[1]", "stands twice"),
    (msgspec.Raw, '{"a":"\\ud83d"}', "$.a", "lone surrogate"),
    (str, '"\ud800"', "$", "not valid UTF-8"),
    (Item, b'{"name":"\xff"}', "$.name", "not valid UTF-8"),
    (msgspec.Raw, b'{"a":[1,"\xed\xa0\x80"]}', "$.a[1]", "not valid UTF-8"),
    # sets
    (set[int], "[1,2,1]", "$[2]", "stands twice"),
    (list[frozenset[tuple[int, int]]], "[[[1,2],[1,2]]]", "$[0][1]", "stands twice"),
    (set[Item], '[{"name":"a","price":1},{"price":1,"name":"a"}]', "$[1]", "stands twice"),
    (set[Item], '[{"name":"a","x":1}]', "$[0].x", "Unknown field"),
    (set[Item], '[{"name":"a"},{"name":"a","price":0}]', "$", "Two items mean the same"),
    (set[Aware], '["2020-01-01T00:00:00Z","2020-01-01T01:00:00+01:00"]', "$", "Two items mean the same"),
    # times
    (Aware, '"2020-01-01T00:00:00"', "$", "timezone"),
    (dict[str, Aware], '{"at":"2020-01-01T00:00:00"}', "$.at", "timezone"),
    # no JSON
    (Item, "", "$", "empty"),
    (Item, "  \n", "$", "empty"),
    (Item, '{"name":"a"', "$.name", "ends too early"),
    (Order, '{"id":1,"items":[{"name":"a","pri', "$.items[0]", "ends too early"),
    (Item, '{"name":"a",}', "$", "trailing comma"),
    (Item, '{"name":"a"} {}', "$", "trailing characters"),
    (Item, "{'name':'a'}", "$", "malformed"),
    (Item, b"\x00\xff\x00", "$", "UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "raw", "value"), ACCEPTED)
def test_strict_json_is_accepted(type_: Any, raw: str, value: Any) -> None:
    decoder = StrictDecoder(type_)
    assert decoder.decode(raw) == value
    assert decoder.decode(raw.encode()) == value
    assert type(decoder.decode(raw)) is type(value)


@pytest.mark.parametrize(("type_", "raw", "path", "words"), REJECTED)
def test_the_rest_is_rejected_with_its_path(type_: Any, raw: str | bytes, path: str, words: str) -> None:
    verdict = StrictDecoder(type_).decode(raw)
    assert isinstance(verdict, Reject)
    assert words in verdict.message
    assert verdict.path == path
    assert verdict.message.endswith(".")


@pytest.mark.parametrize("type_", [Any, Node, msgspec.Raw, list[Any], int], ids=str)
@pytest.mark.parametrize("depth", [65, 900, 5_000, 100_000])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"next":', "}")])
def test_deep_nesting_is_a_reject(type_: Any, depth: int, closed: bool, opening: str, closing: str) -> None:
    verdict = StrictDecoder(type_).decode(opening * depth + ("null" + closing * depth if closed else ""))
    assert isinstance(verdict, Reject)
    assert len(verdict.path) < 2_000
    if type_ is Any:
        assert "64 levels" in verdict.message
        assert verdict.path == "$" + ("[0]" if opening == "[" else ".next") * 64


def test_the_depth_limit_is_exact() -> None:
    decoder = StrictDecoder(Any, max_depth=3)
    assert decoder.decode("[[[]]]") == [[[]]]
    assert decoder.decode('["[[[[",[[]],"]]"]') == ["[[[[", [[]], "]]"]
    assert decoder.decode('{"a":[{"b":{}}]}') == Reject(
        "Nested more than 3 levels deep; answer with flatter JSON.", "$.a[0].b"
    )
    assert isinstance(StrictDecoder(list[list[int]], max_depth=1).decode("[[1]]"), Reject)


def test_a_shallow_stack_is_a_reject_and_no_recursion_error() -> None:
    decoder = StrictDecoder(Any)
    raw = "[" * 60 + "]" * 60

    def descend() -> Any:
        try:
            return descend()
        except RecursionError:
            return decoder.decode(raw)

    assert decoder.decode(raw) == descend() or isinstance(descend(), Reject)
    assert sys.getrecursionlimit() > 100


def test_the_size_limit_counts_bytes() -> None:
    decoder = StrictDecoder(str, max_bytes=6)
    assert decoder.decode('"éé"') == "éé"
    verdict = decoder.decode('"ééé"')
    assert isinstance(verdict, Reject)
    assert "at most 6" in verdict.message


@pytest.mark.parametrize("limits", [{"max_depth": 0}, {"max_depth": 1000}, {"max_bytes": 0}])
def test_bad_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="max_"):
        StrictDecoder(int, **limits)


def test_a_long_key_does_not_make_a_long_path() -> None:
    verdict = StrictDecoder(Item).decode('{"name":"a","' + "k" * 100_000 + '":1}')
    assert isinstance(verdict, Reject)
    assert len(verdict.path) < 100
