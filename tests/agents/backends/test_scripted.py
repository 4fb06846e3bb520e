from __future__ import annotations

from collections.abc import Sequence

import pytest

from swarmkv.agents import AttemptKey, Message, Sampling, Usage
from swarmkv.agents.backends import ScriptedBackend
from swarmkv.agents.errors import GenerationFailed

KEY = AttemptKey("run", "task", 1)
MESSAGES = [Message("system", "Be brief."), Message("user", "Name a colour.")]
SAMPLING = Sampling()


async def test_a_list_is_said_in_order_and_then_used_up() -> None:
    backend = ScriptedBackend(["red", "  dark\n blue \n"])
    assert (await backend.generate(KEY, MESSAGES, sampling=SAMPLING)).text == "red"
    assert (await backend.generate(KEY, MESSAGES, sampling=SAMPLING)).text == "  dark\n blue \n"
    with pytest.raises(GenerationFailed, match="2 replies are used up") as caught:
        await backend.generate(KEY, MESSAGES, sampling=SAMPLING)
    assert (caught.value.kind, caught.value.retryable) == ("ScriptEnded", False)


async def test_a_function_sees_key_and_messages() -> None:
    def script(key: AttemptKey, messages: Sequence[Message]) -> str:
        return f"{key.attempt} {messages[-1].content}"

    backend = ScriptedBackend(script)
    assert (await backend.generate(KEY, MESSAGES, sampling=SAMPLING)).text == "1 Name a colour."
    assert backend.calls == [(KEY, tuple(MESSAGES))]


async def test_what_the_function_raises_is_raised() -> None:
    def script(key: AttemptKey, messages: Sequence[Message]) -> str:
        raise MemoryError("no page")

    with pytest.raises(MemoryError, match="no page"):
        await ScriptedBackend(script).generate(KEY, MESSAGES, sampling=SAMPLING)


async def test_tokens_are_words_and_marks() -> None:
    backend = ScriptedBackend(["one two three"])
    said = await backend.generate(KEY, MESSAGES, sampling=SAMPLING)
    # Two messages of 2 and 3 words, each between two marks, and the mark of the answer.
    assert said.usage == Usage(prefilled_tokens=10, decoded_tokens=3)


async def test_another_task_reuses_the_instructions_only() -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    await backend.generate(KEY, MESSAGES, sampling=SAMPLING)
    other = await backend.generate(AttemptKey("run", "other", 1), MESSAGES, sampling=SAMPLING)
    assert (other.usage.prefilled_tokens, other.usage.reused_tokens) == (6, 4)
    strange = [Message("system", "Be long."), MESSAGES[1]]
    third = await backend.generate(AttemptKey("run", "third", 1), strange, sampling=SAMPLING)
    assert third.usage.reused_tokens == 0


async def test_the_delay_is_awaited_before_each_word() -> None:
    waits: list[None] = []

    async def delay() -> None:
        waits.append(None)

    await ScriptedBackend(["one two three"], delay=delay).generate(KEY, MESSAGES, sampling=SAMPLING)
    assert len(waits) == 3


async def test_an_empty_answer_is_an_answer() -> None:
    said = await ScriptedBackend([""]).generate(KEY, MESSAGES, sampling=SAMPLING)
    assert (said.text, said.finish, said.usage.decoded_tokens) == ("", "stop", 0)
