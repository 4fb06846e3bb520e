"""One attempt, as a plain async function: prompt, model and tool turns, output.

It knows its backend by protocol only, so it runs the same in a worker, inline and in tests. It judges nothing:
the output goes to the gate as the model wrote it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from ..verify import extract_json
from .agent import Agent
from .backend import Backend
from .context import Context
from .errors import ToolFailed, TurnsExhausted
from .message import AttemptKey, Generation, Message, Sampling, Usage

RETRY_TEMPERATURE = 0.7
"""least temperature of a later attempt: under another seed it shall say something else"""


class AttemptRequest(msgspec.Struct, frozen=True):
    """What makes one attempt differ from the others of its task."""

    key: AttemptKey
    feedback: tuple[str, ...] = ()
    """what the gate said of the earlier attempts, in order"""


class AttemptOutput(msgspec.Struct, frozen=True):
    """What an attempt came to, for the gate."""

    text: str
    finish: str
    usage: Usage
    turns: int


async def run_attempt(
    agent: Agent[Any],
    request: AttemptRequest,
    ctx: Context,
    backend: Backend,
    on_text: Callable[[str], None] | None = None,
) -> AttemptOutput:
    """Carry out one attempt.

    Raises: TurnsExhausted, the backend's errors, and whatever the agent's prompt function raises.
    """
    messages = prompt_messages(agent, ctx, request.feedback)
    sampling = attempt_sampling(agent.sampling, request.key)
    usage = Usage()
    schema = turn_schema(agent)
    for turn in range(1, agent.max_turns + 1):
        generation = await backend.generate(
            request.key, messages, sampling=sampling, schema=schema, on_text=on_text
        )
        usage += generation.usage
        if not agent.tools:
            return AttemptOutput(generation.text, generation.finish, usage, turn)
        output, reply = await _tool_turn(agent, generation)
        if output is not None:
            return AttemptOutput(output, generation.finish, usage, turn)
        messages = [*messages, Message("assistant", generation.text), Message("user", reply)]
    raise TurnsExhausted(agent.name, agent.max_turns)


def prompt_messages(agent: Agent[Any], ctx: Context, feedback: tuple[str, ...]) -> list[Message]:
    """The conversation that an attempt begins with. The feedback stands last, so that all before it is reused."""
    system = agent.instructions
    if agent.tools:
        lines = "\n".join(
            f"- {tool.name}: {tool.description} Arguments: {tool.schema.decode()}" for tool in agent.tools
        )
        system += (
            f'\n\nYou may call these tools by answering {{"tool": NAME, "arguments": {{...}}}}:\n{lines}\n'
            'When you know the answer, answer {"output": ...}.'
        )
    shown = agent.prompt(ctx.input, ctx) if agent.prompt is not None else render_input(ctx.input)
    remarks = dict.fromkeys(feedback)
    return [Message("system", system), Message("user", "\n\n".join([shown, *remarks]))]


def render_input(value: Any) -> str:
    """An input as text: a string as it is, a dict as sections, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n\n".join(
            f"{key}:\n{part if isinstance(part, str) else msgspec.json.encode(part).decode()}"
            for key, part in value.items()
        )
    return msgspec.json.encode(value).decode()


def attempt_sampling(sampling: Sampling, key: AttemptKey) -> Sampling:
    """The attempt's own seed, and for a later attempt some temperature. The same key gives the same."""
    text = f"{sampling.seed}\0{key.task}\0{key.attempt}".encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")
    temperature = sampling.temperature if key.attempt == 1 else max(sampling.temperature, RETRY_TEMPERATURE)
    return msgspec.structs.replace(sampling, seed=seed, temperature=temperature)


def turn_schema(agent: Agent[Any]) -> bytes:
    """What one answer of the model must look like: the output, or with tools a call or the output."""
    if not agent.tools:
        return agent.schema
    definitions: dict[str, Any] = {}
    choices = [
        _choice({"tool": {"const": tool.name}, "arguments": _inlined(tool.schema, definitions)})
        for tool in agent.tools
    ]
    choices.append(_choice({"output": _inlined(agent.schema, definitions)}))
    return msgspec.json.encode({"anyOf": choices, "$defs": definitions})


def _choice(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _inlined(schema: bytes, definitions: dict[str, Any]) -> Any:
    """A schema without its definitions, which go to the common ones under names of their own."""
    text = schema.decode()
    own = msgspec.json.decode(schema).get("$defs", {})
    prefix = hashlib.blake2b(schema, digest_size=4).hexdigest()
    for name in own:
        text = text.replace(f'"#/$defs/{name}"', f'"#/$defs/{prefix}_{name}"')
    parsed: dict[str, Any] = msgspec.json.decode(text)
    for name, definition in parsed.pop("$defs", {}).items():
        definitions[f"{prefix}_{name}"] = definition
    return parsed


class _Turn(msgspec.Struct):
    """What a model with tools answers."""

    tool: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    output: msgspec.Raw | None = None


async def _tool_turn(agent: Agent[Any], generation: Generation) -> tuple[str | None, str]:
    """(output, "") if the model gave its output, else (None, what to answer it)."""
    document = extract_json(generation.text)
    try:
        if not isinstance(document, str | bytes):
            raise msgspec.DecodeError(document.message)
        turn = msgspec.json.decode(document, type=_Turn)
    except msgspec.MsgspecError:
        return generation.text, ""  # the gate says what is wrong with it
    if turn.output is not None:
        return bytes(turn.output).decode(), ""
    if turn.tool is None:
        return generation.text, ""
    called = next((tool for tool in agent.tools if tool.name == turn.tool), None)
    if called is None:
        return None, f"There is no tool {turn.tool}; there are {', '.join(tool.name for tool in agent.tools)}."
    try:
        return None, f"{called.name} returned: {await called.call(bytes(turn.arguments))}"
    except ToolFailed as error:
        return None, f"{called.name} failed: {error.reason}"
