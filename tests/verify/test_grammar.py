"""CASES 3 for the grammar: every type that the gate takes gives a schema that compiles."""

import dataclasses
import datetime
import enum
import hashlib
import json
import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from swarmkv.verify import GrammarUnsupported, compile_grammar, json_schema


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Leaf(msgspec.Struct, tag=True):
    """A leaf."""

    name: Annotated[str, msgspec.Meta(min_length=2, max_length=5)]
    size: int = 3


class Branch(msgspec.Struct, tag=True):
    children: list["Leaf | Branch"]


class Everything(msgspec.Struct):
    tree: Leaf | Branch
    required: Literal["x", "y"]
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    tags: set[str] = set()
    amounts: dict[Kind, Decimal] = {}
    free: dict[str, int] = {}
    blob: bytes = b""
    at: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None
    pair: tuple[int, str] = (1, "a")
    absent: int | msgspec.UnsetType = msgspec.UNSET
    id: uuid.UUID = msgspec.field(default_factory=uuid.uuid4)


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Options(TypedDict):
    a: NotRequired[int]
    properties: str


@dataclasses.dataclass
class Record:
    default: int = 1
    items: list[Pair] = dataclasses.field(default_factory=list)


class Node(msgspec.Struct):
    next: "Node | None" = None


TYPES: list[Any] = [
    Everything, Options, Record, Node, Any, int, str, None, Pair, Decimal, list[Leaf | Branch],
    dict[str, int], bytes, Kind, dict[Literal["a", "b"], int],
    datetime.timedelta, frozenset[int], Leaf | Branch | None,
]  # fmt: skip


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_every_type_compiles(type_: Any) -> None:
    assert compile_grammar(json_schema(type_))


def test_a_struct_is_strict_in_the_order_of_its_fields() -> None:
    schema = json.loads(json_schema(Everything))
    everything = schema["$defs"]["Everything"]
    assert everything["additionalProperties"] is False
    assert list(everything["properties"])[:3] == ["tree", "required", "ratio"]
    assert everything["required"] == [
        "tree", "required", "ratio", "tags", "amounts", "free", "blob", "at", "pair",
    ]  # fmt: skip
    assert schema["$defs"]["Leaf"]["required"] == ["type", "name", "size"]
    assert schema["$defs"]["Branch"]["properties"]["children"]["items"]["anyOf"] == [
        {"$ref": "#/$defs/Leaf"},
        {"$ref": "#/$defs/Branch"},
    ]
    amounts = everything["properties"]["amounts"]
    assert set(amounts["properties"]) == {"a", "b"}
    assert amounts["additionalProperties"] is False
    assert everything["properties"]["free"]["additionalProperties"] == {"type": "integer"}


def test_names_of_fields_are_no_keywords() -> None:
    options = json.loads(json_schema(Options))["$defs"]["Options"]
    assert set(options["properties"]) == {"a", "properties"}
    assert options["required"] == ["properties"]
    record = json.loads(json_schema(Record))["$defs"]["Record"]
    assert record["required"] == ["default", "items"]


DIGEST_IN_A_FRESH_PROCESS = """
import hashlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("types_under_test", sys.argv[1])
module = sys.modules["types_under_test"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(hashlib.sha256(b"".join(map(module.json_schema, module.TYPES))).hexdigest())
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_text_is_the_same_in_every_process(seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIGEST_IN_A_FRESH_PROCESS, __file__],
        env={"PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
        text=True,
    )
    here = hashlib.sha256(b"".join(map(json_schema, TYPES))).hexdigest()
    assert done.stdout.strip() == here


@pytest.mark.parametrize(
    "schema", [b"[1", b'{"type":"string","pattern":"(?=a)b"}', b'{"type":"array","uniqueItems":true}']
)
def test_what_the_engine_cannot_enforce_is_a_typed_error(schema: bytes) -> None:
    with pytest.raises(GrammarUnsupported, match="no grammar"):
        compile_grammar(schema)
