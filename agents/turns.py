"""Turns of an agent with tools: the model either calls a tool or gives the output, as one JSON object.

{"tool": "grep", "arguments": {"pattern": "def "}}        {"output": …}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..verify import Reject, extract_json
from .context import Context
from .errors import ToolFailed
from .tool import Tool


class ToolCall(msgspec.Struct, frozen=True):
    """The model asks for a tool. Its arguments are JSON, not verified yet."""

    tool: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    output: msgspec.Raw


def turn_schema(output: bytes, tools: Sequence[Tool[..., Any]]) -> bytes:
    """The JSON schema of one turn; without tools, the output's own."""
    if not tools:
        return output
    definitions: dict[str, Any] = {}
    choices = []
    for number, tool in enumerate(tools):
        arguments = _moved(tool.schema, f"tool{number}", definitions)
        choices.append(_choice({"tool": {"const": tool.name}, "arguments": arguments}))
    choices.append(_choice({"output": _moved(output, "output", definitions)}))
    return msgspec.json.encode({"anyOf": choices, "$defs": definitions})


def describe_tools(tools: Sequence[Tool[..., Any]]) -> str:
    """What the system message says of the tools."""
    lines = [f"- {tool.name}: {tool.description} Arguments: {tool.schema.decode()}" for tool in tools]
    return "\n".join(
        [
            'You may call these tools by answering {"tool": NAME, "arguments": {...}}:',
            *lines,
            'When you know the answer, answer {"output": ...}.',
        ]
    )


def read_turn(text: str) -> ToolCall | str:
    """A tool call, or the text of the output.

    What is neither is given back as it is, for the gate to say what is wrong with it.
    """
    document = extract_json(text)
    if isinstance(document, Reject):
        return text
    try:
        return bytes(msgspec.json.decode(document, type=_Answer).output).decode()
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return msgspec.json.decode(document, type=ToolCall)
    except (msgspec.MsgspecError, RecursionError):
        return text


async def answer_call(call: ToolCall, tools: Sequence[Tool[..., Any]], ctx: Context) -> str:
    """Carry out a call; the message that answers it, also if the tool failed."""
    for tool in tools:
        if tool.name == call.tool:
            try:
                return f"{tool.name} returned: {await tool.call(bytes(call.arguments), ctx)}"
            except ToolFailed as error:
                return f"{tool.name} failed: {error.reason}"
    return f"There is no tool {call.tool}; there are {', '.join(tool.name for tool in tools)}."


def _choice(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _moved(schema: bytes, owner: str, definitions: dict[str, Any]) -> Any:
    """A schema whose definitions have moved to the common ones, under names of their owner."""
    parsed = _renamed(msgspec.json.decode(schema), owner)
    for name, definition in parsed.pop("$defs", {}).items():
        definitions[f"{owner}.{name}"] = definition
    return parsed


def _renamed(node: Any, owner: str) -> Any:
    if isinstance(node, list):
        return [_renamed(one, owner) for one in node]
    if not isinstance(node, dict):
        return node
    renamed = {key: _renamed(value, owner) for key, value in node.items()}
    reference = node.get("$ref")
    if isinstance(reference, str):
        renamed["$ref"] = reference.replace("#/$defs/", f"#/$defs/{owner}.", 1)
    return renamed
