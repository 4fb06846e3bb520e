from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarmkv.agents import (
    Agent,
    AttemptKey,
    AttemptOutput,
    AttemptRequest,
    Context,
    Message,
    Sampling,
    run_attempt,
    tool,
)
from swarmkv.agents.attempt import RETRY_TEMPERATURE, attempt_sampling, render_input
from swarmkv.agents.backends.scripted import ScriptedBackend
from swarmkv.agents.errors import GenerationFailed, PromptFailed, TurnsExhausted

SHORT = Sampling(max_tokens=4)


class Finding(msgspec.Struct):
    symbol: str


def ask(input: Any, ctx: Context) -> str:
    return f"{ctx.agent}, attempt {ctx.attempt}: {input}"


@tool
def grep(pattern: str, ctx: Context) -> list[str]:
    return [word for word in ctx.input.split() if pattern in word]


reader = Agent("reader", "Read.", output=Finding)
searcher = Agent("searcher", "Search.", output=Finding, tools=[grep], max_turns=3)


async def run(
    agent: Agent[Any], backend: ScriptedBackend, *feedback: str, input: Any = "a lamp", attempt: int = 1
) -> AttemptOutput:
    key = AttemptKey("run", "task", attempt)
    ctx = Context(input=input, run_id="run", task_id="task", agent=agent.name, attempt=attempt)
    return await run_attempt(agent, AttemptRequest(key, feedback), ctx, backend)


async def test_an_attempt_asks_once_and_gives_the_text_to_the_gate() -> None:
    backend = ScriptedBackend(['Sure: {"symbol": "Lamp"}'])
    output = await run(reader, backend)
    assert (output.text, output.finish, output.turns) == ('Sure: {"symbol": "Lamp"}', "stop", 1)
    assert output.usage.decoded_tokens == 3
    key, messages = backend.calls[0]
    assert key == AttemptKey("run", "task", 1)
    assert messages == (Message("system", "Read."), Message("user", "a lamp"))


async def test_feedback_stands_last_in_order_and_once() -> None:
    backend = ScriptedBackend(["{}"])
    await run(reader, backend, "Too short.", "No such name.", "Too short.", attempt=4)
    assert [message.role for message in backend.calls[0][1]] == ["system", "user"]
    assert backend.calls[0][1][1].content == "a lamp\n\nToo short.\n\nNo such name."


async def test_the_backend_gets_schema_seed_and_listener() -> None:
    seen: dict[str, Any] = {}

    class Spy(ScriptedBackend):
        async def generate(self, key: AttemptKey, messages: Any, **options: Any) -> Any:
            seen.update(options)
            return await super().generate(key, messages, **options)

    pieces: list[str] = []
    request = AttemptRequest(AttemptKey("run", "task", 1))
    await run_attempt(reader, request, Context(input=""), Spy(["a b"]), pieces.append)
    assert seen["schema"] == reader.schema
    assert seen["sampling"] == attempt_sampling(reader.sampling, request.key)
    assert "".join(pieces) == "a b"


async def test_an_output_that_was_cut_says_so() -> None:
    agent = Agent("reader", "Read.", output=Finding, sampling=SHORT)
    output = await run(agent, ScriptedBackend(["one two three four five"]))
    assert (output.text, output.finish) == ("one two three four", "length")
    cut = await run(
        Agent("searcher", "Search.", output=Finding, tools=[grep], sampling=SHORT),
        ScriptedBackend(['{"output": {"symbol": "Lamp", "more": 1}}']),
    )
    assert (cut.text, cut.finish) == ('{"output": {"symbol": "Lamp", "more":', "length")


async def test_tool_turns_go_on_until_the_output() -> None:
    call = '{"tool": "grep", "arguments": {"pattern": "la"}}'
    backend = ScriptedBackend([call, '{"tool": "grep", "arguments": {}}', '{"output": {"symbol": "Lamp"}}'])
    output = await run(searcher, backend)
    assert (output.text, output.turns) == ('{"symbol": "Lamp"}', 3)
    said = backend.calls[2][1]
    assert [message.role for message in said] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert said[2].content == call
    assert said[3].content == 'grep returned: ["lamp"]'
    assert said[5].content.startswith("grep failed: wrong arguments:")
    assert said[0].content.startswith("Search.\n\nYou may call these tools")
    assert output.usage.reused_tokens > 0
    usage = await backend.settle(AttemptKey("run", "task", 1), False)
    assert usage.rolled_back_tokens >= output.usage.decoded_tokens


async def test_an_attempt_that_only_calls_tools_ends() -> None:
    call = '{"tool": "grep", "arguments": {"pattern": "la"}}'
    backend = ScriptedBackend(lambda key, messages: call)
    with pytest.raises(TurnsExhausted) as caught:
        await run(searcher, backend)
    assert len(backend.calls) == caught.value.max_turns == 3
    assert caught.value.retryable


async def test_a_prompt_function_makes_the_user_message() -> None:
    backend = ScriptedBackend(["{}"])
    await run(Agent("reader", "Read.", output=Finding, prompt=ask), backend, "Again.", attempt=2)
    assert backend.calls[0][1][1].content == "reader, attempt 2: a lamp\n\nAgain."


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (lambda input, ctx: input["text"], "TypeError"),
        (lambda input, ctx: None, "AttributeError"),
        (lambda input, ctx: "a\ud800", "UnicodeEncodeError"),
    ],
)
async def test_a_failing_prompt_function_fails_the_attempt(prompt: Any, reason: str) -> None:
    backend = ScriptedBackend(["{}"])
    with pytest.raises(PromptFailed, match=reason) as caught:
        await run(Agent("reader", "Read.", output=Finding, prompt=prompt), backend)
    assert caught.value.agent == "reader"
    assert backend.calls == []


async def test_an_error_of_the_backend_passes_through() -> None:
    with pytest.raises(GenerationFailed, match="used up"):
        await run(reader, ScriptedBackend([]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain\ntext", "plain\ntext"),
        ({"module": "json", "lines": [1, 2]}, "module:\njson\n\nlines:\n[1,2]"),
        ([1, "a", None], '[1,"a",null]'),
        (7, "7"),
        (None, "null"),
        ({}, ""),
    ],
)
def test_an_input_is_shown(value: Any, text: str) -> None:
    assert render_input(value) == text


def test_the_first_attempt_samples_as_the_agent_says_and_later_ones_with_some_temperature() -> None:
    def temperature(first: float, attempt: int) -> float:
        return attempt_sampling(Sampling(temperature=first), AttemptKey("r", "t", attempt)).temperature

    assert [temperature(0.0, attempt) for attempt in (1, 2, 9)] == [0.0, RETRY_TEMPERATURE, RETRY_TEMPERATURE]
    assert [temperature(2.0, attempt) for attempt in (1, 2, 9)] == [2.0, 2.0, 2.0]


def test_a_seed_belongs_to_its_attempt() -> None:
    def seed(seed: int, run: str, task: str, attempt: int) -> int:
        return attempt_sampling(Sampling(seed=seed), AttemptKey(run, task, attempt)).seed

    assert seed(1, "r", "t", 1) == seed(1, "another run", "t", 1)
    different = [seed(1, "r", "t", 1), seed(2, "r", "t", 1), seed(1, "r", "u", 1), seed(1, "r", "t", 2)]
    assert len(set(different)) == 4
    assert seed(1, "r", "t", 1) == 170_881_564_787_166  # a run must sample alike in every version


def test_the_swarms_seed_changes_every_attempts_seed() -> None:
    key = AttemptKey("r", "t", 1)
    seeds = [
        attempt_sampling(Sampling(seed=agents), key, swarms).seed for agents in (0, 1) for swarms in (0, 1)
    ]
    assert len(set(seeds)) == 4
    assert attempt_sampling(Sampling(), key).seed == seeds[0]
