"""The local backend: the contract, and what only a backend with pages and a real model can get wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import torch
from backend_contract import FEEDBACK, SAMPLING, SYSTEM, BackendContract, conversation, key

from swarmkv.agents import Backend, Generation, Message, Sampling, Usage
from swarmkv.agents.backends import LocalBackend, LocalSettings
from swarmkv.agents.errors import BackendClosed
from swarmkv.kvcore.errors import BudgetTooSmall, ContextTooLong
from swarmkv.verify import StrictDecoder, json_schema

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE_TOKENS = 16
STORY_LINE = "One fine day the grey fox went out to see the old mill. "
LONG_ANSWER = Sampling(max_tokens=200)


def settings(model: Path) -> LocalSettings:
    return LocalSettings(model=str(model), kv_budget_bytes=64 * 2**20, partitions=2, threads=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(embedded_model: Path) -> AsyncIterator[LocalBackend]:
    threads = torch.get_num_threads()
    backend = await LocalBackend.open(settings(embedded_model))
    yield backend
    await backend.aclose()
    torch.set_num_threads(threads)


@pytest_asyncio.fixture(loop_scope="module")
async def backend(shared: LocalBackend) -> AsyncIterator[LocalBackend]:
    """The one backend of this module, as if fresh: without prefixes, and in the end with balanced books."""
    await shared._call(shared._prefixes.clear)
    yield shared
    for name in list(shared._tasks):
        await shared.release(*name)
    audit = await shared.audit()
    assert audit.held_pages == 0
    assert audit.free_pages + audit.cached_pages == audit.total_pages


class TestLocalBackend(BackendContract):
    @pytest.fixture(autouse=True)
    def over(self, backend: LocalBackend) -> None:
        self.backend = backend

    @asynccontextmanager
    async def open_backend(self) -> AsyncIterator[Backend]:
        yield self.backend.partition(0)


async def test_instructions_are_reused_in_whole_pages_and_in_every_partition(backend: LocalBackend) -> None:
    first = await backend.partition(0).generate(key("a"), conversation(), sampling=SAMPLING)
    for index in (0, 1):
        second = await backend.partition(index).generate(
            key(f"b{index}"), conversation(story="Say hello."), sampling=SAMPLING
        )
        assert second.usage.reused_tokens % PAGE_TOKENS == 0
        assert second.usage.reused_tokens >= 2 * PAGE_TOKENS
    assert first.usage.reused_tokens == 0


async def test_what_was_rejected_is_in_no_cache(backend: LocalBackend) -> None:
    partition = backend.partition(0)
    said = await partition.generate(key("a"), conversation(), sampling=Sampling(max_tokens=40))
    await partition.settle(key("a"), False)
    await partition.release("run", "a")
    cached = (await backend.audit()).cached_pages
    again = [*conversation(), Message("assistant", said.text), Message("user", "Go on.")]
    other = await partition.generate(key("b"), again, sampling=SAMPLING)
    assert other.usage.reused_tokens == cached * PAGE_TOKENS
    assert cached <= len(SYSTEM) // PAGE_TOKENS


async def test_what_is_accepted_leaves_the_instructions_only(backend: LocalBackend) -> None:
    partition = backend.partition(0)
    await partition.generate(key("a"), conversation(), sampling=SAMPLING)
    held = (await backend.audit()).held_pages
    usage = await partition.settle(key("a"), True)
    audit = await backend.audit()
    assert audit.held_pages == 0
    assert audit.cached_pages > 0
    assert usage.evicted_pages == held - audit.cached_pages


@pytest.mark.parametrize("system", ["Sum up.", SYSTEM])
async def test_a_prompt_larger_than_the_partition_is_answered(backend: LocalBackend, system: str) -> None:
    partition = backend.partition(0)
    messages = [Message("system", system), Message("user", STORY_LINE * 110)]
    said = await partition.generate(key("a"), messages, sampling=LONG_ANSWER)
    assert said.usage.prefilled_tokens > backend.partition_pages * PAGE_TOKENS
    assert said.usage.evicted_pages > 0
    assert said.text
    assert (await backend.audit()).by_partition["worker-0"] <= backend.partition_pages
    await partition.settle(key("a"), False)
    messages[1] = Message("user", f"{messages[1].content}\n\n{FEEDBACK}")
    retry = await partition.generate(key("a", 2), messages, sampling=SAMPLING)
    assert retry.usage.prefilled_tokens < 4 * PAGE_TOKENS


async def test_large_prompts_take_turns_in_a_partition(backend: LocalBackend) -> None:
    partition = backend.partition(0)

    async def one(task: str) -> Generation:
        messages = [Message("user", f"{task}: {STORY_LINE * 45}")]
        said = await partition.generate(key(task), messages, sampling=SAMPLING)
        await partition.settle(key(task), True)
        return said

    said = await asyncio.gather(*(one(task) for task in ("a", "b", "c")))
    assert all(answer.text for answer in said)


async def test_a_prompt_beyond_the_models_positions_is_refused(backend: LocalBackend) -> None:
    partition = backend.partition(0)
    too_long = [Message("system", SYSTEM), Message("user", "la " * 9_000)]
    with pytest.raises(ContextTooLong) as caught:
        await partition.generate(key("a"), too_long, sampling=SAMPLING)
    assert caught.value.tokens > caught.value.limit_tokens == 8192
    assert (await backend.audit()).held_pages == 0
    assert await partition.settle(key("a"), False) == Usage()
    assert (await partition.generate(key("a", 2), conversation(), sampling=SAMPLING)).text


async def test_a_text_that_the_tokenizer_refuses_fails_its_call_only(backend: LocalBackend) -> None:
    partition = backend.partition(0)
    with pytest.raises(TypeError):
        await partition.generate(key("a"), [Message("user", "\ud800")], sampling=SAMPLING)
    assert (await partition.generate(key("b"), conversation(), sampling=SAMPLING)).text


class Finding(msgspec.Struct, frozen=True):
    name: str
    count: int
    sure: bool


@pytest.mark.parametrize("temperature", [0.0, 1.2])
async def test_an_answer_follows_its_schema(backend: LocalBackend, temperature: float) -> None:
    messages = [Message("system", "Answer as JSON."), Message("user", "Three boats. What do you see?")]
    sampling = Sampling(max_tokens=120, temperature=temperature, seed=4)
    said = await backend.partition(0).generate(
        key("a"), messages, sampling=sampling, schema=json_schema(Finding)
    )
    assert list(json.loads(said.text)) == ["name", "count", "sure"]
    assert isinstance(StrictDecoder(Finding).decode(said.text), Finding)
    assert said.finish == "stop"


async def test_the_pieces_of_a_constrained_answer_are_its_text(backend: LocalBackend) -> None:
    pieces: list[str] = []
    said = await backend.partition(0).generate(
        key("a"),
        conversation(),
        sampling=Sampling(max_tokens=120, temperature=1.2, seed=4),
        schema=json_schema(Finding),
        on_text=pieces.append,
    )
    assert "".join(pieces) == said.text


@pytest.mark.parametrize("order", ["settle", "release"])
async def test_a_verdict_during_a_call_ends_the_call(backend: LocalBackend, order: str) -> None:
    partition = backend.partition(0)
    begun = asyncio.Event()
    call = asyncio.create_task(
        partition.generate(key("a"), conversation(), sampling=LONG_ANSWER, on_text=lambda _: begun.set())
    )
    await begun.wait()
    if order == "settle":
        assert (await partition.settle(key("a"), False)).rolled_back_tokens > 0
    else:
        assert (await partition.release("run", "a")).evicted_pages > 0
    with pytest.raises(BackendClosed):
        await call


async def test_closing_ends_every_call(embedded_model: Path) -> None:
    backend = await LocalBackend.open(settings(embedded_model))
    partition = backend.partition(0)
    begun = asyncio.Event()
    running = asyncio.create_task(
        partition.generate(key("a"), conversation(), sampling=LONG_ANSWER, on_text=lambda _: begun.set())
    )
    await begun.wait()
    waiting = asyncio.create_task(partition.generate(key("a", 2), conversation(), sampling=SAMPLING))
    queued = asyncio.create_task(partition.generate(key("b"), conversation(), sampling=SAMPLING))
    await backend.audit()  # while both have begun
    await backend.aclose()
    for call in (running, waiting, queued):
        with pytest.raises(BackendClosed):
            await asyncio.wait_for(call, 5)
    for late in (
        partition.generate(key("c"), conversation(), sampling=SAMPLING),
        partition.settle(key("a"), True),
        partition.release("run", "a"),
        backend.audit(),
    ):
        with pytest.raises(BackendClosed):
            await late
    await backend.aclose()


async def test_a_budget_below_one_prompt_is_refused(embedded_model: Path) -> None:
    small = LocalSettings(model=str(embedded_model), kv_budget_bytes=2**20, partitions=2)
    with pytest.raises(BudgetTooSmall) as caught:
        await LocalBackend.open(small)
    assert caught.value.needed_bytes > caught.value.given_bytes == 2**20


async def test_the_smallest_budget_answers_a_long_prompt(embedded_model: Path) -> None:
    small = LocalSettings(model=str(embedded_model), kv_budget_bytes=2**20, threads=1)
    with pytest.raises(BudgetTooSmall) as caught:
        await LocalBackend.open(small)
    backend = await LocalBackend.open(
        msgspec.structs.replace(small, kv_budget_bytes=caught.value.needed_bytes)
    )
    try:
        said = await backend.partition(0).generate(
            key("a"), [Message("user", STORY_LINE * 40)], sampling=Sampling(max_tokens=100)
        )
        assert said.usage.evicted_pages > 0
        assert said.usage.prefilled_tokens > 500
        await backend.release("run", "a")
        assert (await backend.audit()).held_pages == 0
    finally:
        await backend.aclose()
