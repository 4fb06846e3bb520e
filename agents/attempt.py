"""One attempt, as a plain async function: prompt, model and tool turns, output.

It knows its backend by protocol only, so it runs the same in a worker, inline and in tests. It judges
nothing: the output goes to the gate as the model wrote it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from .agent import Agent
from .backend import Backend
from .context import Context
from .errors import PromptFailed, TurnsExhausted
from .message import AttemptKey, Message, Sampling, Usage
from .turns import ToolCall, answer_call, describe_tools, read_turn

RETRY_TEMPERATURE = 0.7
"""least temperature of every attempt after the first: a retry shall say something else"""


class AttemptRequest(msgspec.Struct, frozen=True):
    """What makes one attempt differ from the others of its task."""

    key: AttemptKey
    feedback: tuple[str, ...] = ()
    """what the gate said of the earlier attempts, in order"""
    seed: int = 0
    """the swarm's"""


class AttemptOutput(msgspec.Struct, frozen=True):
    """What an attempt came to, for the gate."""

    text: str
    finish: Literal["stop", "length"]
    """of the last turn; "length" means that the text was cut"""
    usage: Usage
    """of all turns"""
    turns: int


async def run_attempt(
    agent: Agent[Any],
    request: AttemptRequest,
    ctx: Context,
    backend: Backend,
    on_text: Callable[[str], None] | None = None,
) -> AttemptOutput:
    """Carry out one attempt. `on_text` gets what the model writes, tool calls too, piece by piece.

    A tool that fails fails its turn: the model is told, and goes on.
    Raises: PromptFailed, TurnsExhausted, and the backend's errors; the attempt is the caller's to settle.
    """
    messages = prompt_messages(agent, ctx, request.feedback)
    sampling = attempt_sampling(agent.sampling, request.key, request.seed)
    usage = Usage()
    for turn in range(1, agent.max_turns + 1):
        generation = await backend.generate(
            request.key, messages, sampling=sampling, schema=agent.turn_schema, on_text=on_text
        )
        usage += generation.usage
        said = read_turn(generation.text) if agent.tools else generation.text
        if not isinstance(said, ToolCall):
            return AttemptOutput(said, generation.finish, usage, turn)
        answer = await answer_call(said, agent.tools, ctx)
        messages = [*messages, Message("assistant", generation.text), Message("user", answer)]
    raise TurnsExhausted(agent.name, agent.max_turns)


def prompt_messages(agent: Agent[Any], ctx: Context, feedback: tuple[str, ...]) -> list[Message]:
    """The conversation that an attempt begins with. Equal remarks stand once.

    The feedback stands last, so that all before it is reused. Raises: PromptFailed.
    """
    system = agent.instructions
    if agent.tools:
        system = f"{system}\n\n{describe_tools(agent.tools)}"
    shown = render_input(ctx.input) if agent.prompt is None else _prompted(agent, ctx)
    return [Message("system", system), Message("user", "\n\n".join([shown, *dict.fromkeys(feedback)]))]


def render_input(value: Any) -> str:
    """An input as text: a string as it is, a dict as sections, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n\n".join(f"{key}:\n{_shown(part)}" for key, part in value.items())
    return _shown(value)


def attempt_sampling(sampling: Sampling, key: AttemptKey, seed: int = 0) -> Sampling:
    """The attempt's own seed, and for a later attempt some temperature.

    The seed is a hash of the swarm's seed, the agent's, the task and the attempt. The run's id is left out: it is drawn
    for each run, and a seed is there to make a second run say what the first one said.
    """
    text = f"{seed}\0{sampling.seed}\0{key.task}\0{key.attempt}".encode()
    attempt_seed = int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")
    temperature = sampling.temperature
    if key.attempt > 1:
        temperature = max(temperature, RETRY_TEMPERATURE)
    return msgspec.structs.replace(sampling, seed=attempt_seed, temperature=temperature)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _prompted(agent: Agent[Any], ctx: Context) -> str:
    assert agent.prompt is not None
    try:
        text = agent.prompt(ctx.input, ctx)
        text.encode()
    except (Exception, SystemExit) as error:
        raise PromptFailed(agent.name, f"{type(error).__name__}: {error}") from error
    return text
