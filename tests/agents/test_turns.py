from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarmkv.agents import Agent, Context, tool
from swarmkv.agents.turns import ToolCall, answer_call, describe_tools, read_turn, turn_schema
from swarmkv.verify import compile_grammar, json_schema


class Node(msgspec.Struct):
    name: str
    children: list[Node] = []


@tool
def walk(root: Node) -> str:
    """Walk a tree."""
    return root.name


@tool
def fail(reason: str) -> str:
    raise ValueError(reason)


CTX = Context(input=None)


def test_without_tools_a_turn_is_the_output() -> None:
    assert turn_schema(b'{"type":"integer"}', ()) == b'{"type":"integer"}'


def test_with_tools_a_turn_is_a_call_or_the_output() -> None:
    schema = msgspec.json.decode(turn_schema(json_schema(Node), [walk, fail]))
    first, second, output = schema["anyOf"]
    assert first["properties"]["tool"] == {"const": "walk"}
    assert list(second["properties"]) == second["required"] == ["tool", "arguments"]
    assert output["properties"]["output"] == {"$ref": "#/$defs/output.Node"}
    # One name of two owners: each refers to its own.
    nodes = schema["$defs"]["tool0.Node"], schema["$defs"]["output.Node"]
    assert [node["properties"]["children"]["items"]["$ref"] for node in nodes] == [
        "#/$defs/tool0.Node",
        "#/$defs/output.Node",
    ]


def test_every_reference_has_its_definition() -> None:
    schema = msgspec.json.decode(turn_schema(json_schema(list[Node]), [walk, fail]))

    def references(node: Any) -> set[str]:
        if isinstance(node, list):
            return set().union(*map(references, node))
        if not isinstance(node, dict):
            return set()
        return {node["$ref"]} if "$ref" in node else references(list(node.values()))

    assert references(schema) <= {f"#/$defs/{name}" for name in schema["$defs"]}


def test_a_grammar_can_be_made_of_it() -> None:
    agent = Agent("walker", "Walk.", output=Node, tools=[walk, fail])
    assert agent.turn_schema == turn_schema(agent.schema, agent.tools)
    assert compile_grammar(agent.turn_schema)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"output": {"name": "a",  "name": "b"}}', '{"name": "a",  "name": "b"}'),
        ('```json\n{"output": 7}\n```', "7"),
        ('{"output": null}', "null"),
        ('{"output": 7, "more": 8}', '{"output": 7, "more": 8}'),
        ('{"name": "a"}', '{"name": "a"}'),
        ('{"output": {"na', '{"output": {"na'),
        ("I do not know.", "I do not know."),
        ('{"tool": 7}', '{"tool": 7}'),
        ("", ""),
    ],
)
def test_an_output_is_taken_out_as_it_was_written(text: str, read: str) -> None:
    assert read_turn(text) == read


def test_a_call_is_read() -> None:
    call = read_turn('Let me look. {"tool": "walk", "arguments": {"root": {"name": "a"}}}')
    assert isinstance(call, ToolCall)
    assert (call.tool, bytes(call.arguments)) == ("walk", b'{"root": {"name": "a"}}')


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ('{"tool": "walk", "arguments": {"root": {"name": "a"}}}', 'walk returned: "a"'),
        ('{"tool": "fail", "arguments": {"reason": "no tree"}}', "fail failed: ValueError: no tree"),
        ('{"tool": "fly", "arguments": {}}', "There is no tool fly; there are walk, fail."),
    ],
)
async def test_a_call_is_answered_whatever_happens(call: str, answer: str) -> None:
    said = read_turn(call)
    assert isinstance(said, ToolCall)
    assert await answer_call(said, [walk, fail], CTX) == answer


async def test_a_call_without_arguments_is_told_what_is_missing() -> None:
    said = read_turn('{"tool": "fail", "args": {"reason": "x"}}')
    assert isinstance(said, ToolCall)
    assert "reason" in await answer_call(said, [fail], CTX)


def test_the_tools_are_described_a_line_each() -> None:
    lines = describe_tools([walk, fail]).splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("- walk: Walk a tree. Arguments: {")
