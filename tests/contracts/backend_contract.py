"""What every backend must do. Subclass it as `Test…`, give `open_backend`, and pytest runs it all.

Token counts are compared with some slack: a chat template puts marks between messages, and a tokenizer may
join the characters at a border. The model may say what it likes, but not nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import anyio

from swarmkv.agents import AttemptKey, Backend, Generation, Message, Sampling, Usage

SLACK_TOKENS = 16
SAMPLING = Sampling(max_tokens=6)
SYSTEM = "You are a careful reader of stories. " * 6
STORY = "The old harbour lay quiet in the morning, and three boats came home from the sea. " * 6
FEEDBACK = "Your answer was rejected. Name the harbour."


def key(task: str, attempt: int = 1, run: str = "run") -> AttemptKey:
    return AttemptKey(run, task, attempt)


def conversation(*feedback: str, story: str = STORY) -> list[Message]:
    return [Message("system", SYSTEM), Message("user", "\n\n".join([story, *feedback]))]


def prompt_tokens(generation: Generation) -> int:
    return generation.usage.prefilled_tokens + generation.usage.reused_tokens


class BackendContract:
    def open_backend(self) -> AbstractAsyncContextManager[Backend]:
        """A fresh backend, closed afterwards."""
        raise NotImplementedError

    async def test_the_first_call_prefills_its_whole_prompt(self) -> None:
        async with self.open_backend() as backend:
            said = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            assert said.usage.prefilled_tokens > 4 * SLACK_TOKENS
            assert said.usage.reused_tokens == 0
            assert 0 < said.usage.decoded_tokens <= SAMPLING.max_tokens
            assert said.usage.rolled_back_tokens == 0

    async def test_a_second_task_counts_the_same_prompt(self) -> None:
        async with self.open_backend() as backend:
            first = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            second = await backend.generate(key("b"), conversation(), sampling=SAMPLING)
            assert prompt_tokens(second) == prompt_tokens(first)
            assert second.usage.prefilled_tokens > 0

    async def test_a_rejection_takes_back_what_was_decoded(self) -> None:
        async with self.open_backend() as backend:
            said = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            usage = await backend.settle(key("a"), False)
            assert usage == Usage(rolled_back_tokens=said.usage.decoded_tokens)
            assert await backend.settle(key("a"), False) == Usage()

    async def test_a_retry_prefills_the_feedback_only(self) -> None:
        async with self.open_backend() as backend:
            first = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            await backend.settle(key("a"), False)
            second = await backend.generate(key("a", 2), conversation(FEEDBACK), sampling=SAMPLING)
            added = prompt_tokens(second) - prompt_tokens(first)
            assert added > 0
            assert second.usage.prefilled_tokens <= added + SLACK_TOKENS
            await backend.settle(key("a", 2), False)
            third = await backend.generate(key("a", 3), conversation(FEEDBACK, "Again."), sampling=SAMPLING)
            assert third.usage.prefilled_tokens <= 2 * SLACK_TOKENS

    async def test_the_next_attempt_waits_for_the_verdict(self) -> None:
        async with self.open_backend() as backend:
            await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            second = asyncio.create_task(
                backend.generate(key("a", 2), conversation(FEEDBACK), sampling=SAMPLING)
            )
            for other in ("b", "c"):  # which go on meanwhile; a call that did not wait would end before them
                await backend.generate(key(other), conversation(), sampling=SAMPLING)
            assert not second.done()
            await backend.settle(key("a"), False)
            assert (await second).usage.reused_tokens > 0

    async def test_a_release_lets_go_of_whoever_waits(self) -> None:
        async with self.open_backend() as backend:
            await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            second = asyncio.create_task(
                backend.generate(key("a", 2), conversation(FEEDBACK), sampling=SAMPLING)
            )
            for other in ("b", "c"):
                await backend.generate(key(other), conversation(), sampling=SAMPLING)
            assert not second.done()
            await backend.release("run", "a")
            assert (await second).text

    async def test_an_acceptance_gives_up_the_branch(self) -> None:
        async with self.open_backend() as backend:
            await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            usage = await backend.settle(key("a"), True)
            assert usage.evicted_pages > 0
            assert usage.rolled_back_tokens == 0
            assert await backend.settle(key("a"), True) == Usage()
            assert await backend.release("run", "a") == Usage()
            again = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            assert again.usage.prefilled_tokens > 2 * SLACK_TOKENS

    async def test_an_attempt_may_take_several_turns(self) -> None:
        async with self.open_backend() as backend:
            first = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            longer = [*conversation(), Message("assistant", first.text), Message("user", "Say more.")]
            second = await backend.generate(key("a"), longer, sampling=SAMPLING)
            assert second.usage.reused_tokens >= prompt_tokens(first) - SLACK_TOKENS
            decoded = first.usage.decoded_tokens + second.usage.decoded_tokens
            assert (await backend.settle(key("a"), False)).rolled_back_tokens >= decoded
            retry = await backend.generate(key("a", 2), conversation(FEEDBACK), sampling=SAMPLING)
            assert retry.usage.reused_tokens >= prompt_tokens(first) - SLACK_TOKENS

    async def test_a_verdict_on_another_attempt_changes_nothing(self) -> None:
        async with self.open_backend() as backend:
            said = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            assert await backend.settle(key("a", 7), True) == Usage()
            assert await backend.settle(key("nobody"), False) == Usage()
            assert await backend.settle(key("a", run="other"), False) == Usage()
            usage = await backend.settle(key("a"), False)
            assert usage.rolled_back_tokens == said.usage.decoded_tokens

    async def test_a_release_forgets_the_task_in_any_state(self) -> None:
        async with self.open_backend() as backend:
            assert await backend.release("run", "a") == Usage()
            await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            assert (await backend.release("run", "a")).evicted_pages > 0
            assert await backend.release("run", "a") == Usage()
            again = await backend.generate(key("a"), conversation(), sampling=SAMPLING)
            assert again.usage.prefilled_tokens > 2 * SLACK_TOKENS

    async def test_tasks_go_on_side_by_side(self) -> None:
        async with self.open_backend() as backend:
            said: dict[str, Generation] = {}

            async def one(task: str) -> None:
                story = f"{STORY} Its name is {task}."
                said[task] = await backend.generate(key(task), conversation(story=story), sampling=SAMPLING)
                usage = await backend.settle(key(task), False)
                assert usage.rolled_back_tokens == said[task].usage.decoded_tokens

            async with anyio.create_task_group() as group:
                for task in ("a", "b", "c", "d"):
                    group.start_soon(one, task)
            assert set(said) == {"a", "b", "c", "d"}

    async def test_a_cancelled_call_leaves_the_backend_usable(self) -> None:
        async with self.open_backend() as backend:
            task: asyncio.Task[Generation]
            pieces: list[str] = []

            def on_text(piece: str) -> None:
                pieces.append(piece)
                task.cancel()

            task = asyncio.create_task(
                backend.generate(key("a"), conversation(), sampling=Sampling(max_tokens=200), on_text=on_text)
            )
            await asyncio.wait([task])
            assert task.cancelled()
            assert pieces
            await backend.settle(key("a"), False)
            second = await backend.generate(key("a", 2), conversation(FEEDBACK), sampling=SAMPLING)
            assert second.text
            other = await backend.generate(key("b"), conversation(), sampling=SAMPLING)
            assert other.text

    async def test_the_pieces_are_the_text(self) -> None:
        async with self.open_backend() as backend:
            pieces: list[str] = []
            said = await backend.generate(key("a"), conversation(), sampling=SAMPLING, on_text=pieces.append)
            assert "".join(pieces) == said.text
            assert said.text

    async def test_an_answer_is_cut_at_its_limit(self) -> None:
        async with self.open_backend() as backend:
            said = await backend.generate(key("a"), conversation(), sampling=Sampling(max_tokens=1))
            assert said.finish == "length"
            assert said.usage.decoded_tokens == 1
