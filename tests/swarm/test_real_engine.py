"""The embedded model behind real processes, with as little work for it as possible."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import swarm_agents as agents

from swarmkv.swarm import Event, StartFailed, Swarm
from swarmkv.swarm.messages import AuditTaken
from swarmkv.swarm.process import MainModule

OpenSwarm = Callable[..., Swarm]

# An engine takes many seconds to come up on a busy machine, and one test starts two.
pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

WORKER_RESIDENT_BYTES = 60 * 2**20


@pytest.fixture(scope="module")
def small_swarm(embedded_model: Path, no_main: MainModule) -> OpenSwarm:
    # One thread: several that wait for each other are slow where other processes want the cores too.
    return functools.partial(Swarm, workers=2, kv_budget="128MiB", engine_threads=1, main=no_main)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def swarm(small_swarm: OpenSwarm) -> AsyncIterator[Swarm]:
    async with small_swarm() as swarm:
        yield swarm


async def idle_books(swarm: Swarm) -> AuditTaken:
    """The books of a swarm that has nothing to do: they balance, and no task holds a page."""
    books = await swarm.audit()
    assert books is not None
    assert books.fault == ""
    assert books.free_pages + books.held_pages + books.cached_pages == books.total_pages
    assert books.held_pages == 0
    return books


async def test_an_agent_answers_in_its_type_and_instructions_are_shared(swarm: Swarm) -> None:
    assert (await idle_books(swarm)).cached_pages == 0
    first = await swarm.run(agents.speaker, "Which colour has the sky?")
    second = await swarm.run(agents.speaker, "Which colour has grass?")
    assert isinstance(first.require(), agents.Answer)
    assert isinstance(second.require(), agents.Answer)
    assert first.usage.reused_tokens == 0
    assert second.usage.reused_tokens >= 32
    assert second.usage.prefilled_tokens < first.usage.prefilled_tokens / 2
    assert (await idle_books(swarm)).cached_pages > 0


async def test_a_rejection_rolls_back_and_its_retry_reads_the_feedback_only(swarm: Swarm) -> None:
    outcome = await swarm.run(agents.retrying, "Which colour has snow?")
    outcome.require()
    first, second = outcome.attempts
    assert first.usage.rolled_back_tokens == first.usage.decoded_tokens > 0
    assert second.usage.rolled_back_tokens == 0
    assert second.usage.reused_tokens >= first.usage.prefilled_tokens + first.usage.reused_tokens - 16
    assert second.usage.prefilled_tokens < second.usage.reused_tokens
    assert outcome.usage.evicted_pages > 0
    await idle_books(swarm)


async def test_streamed_text_is_the_output(swarm: Swarm) -> None:
    pieces = ""
    async for event in swarm.stream(agents.speaker, "Which colour has coal?"):
        if event.kind == "text":
            pieces += event.text
    assert event.outcome is not None
    assert event.outcome.attempts[-1].text == pieces


async def test_cancelled_at_any_point_a_run_leaves_no_page(swarm: Swarm) -> None:
    for delay_s in (0.0, 0.001, 0.003, 0.01, 0.05):
        running = asyncio.ensure_future(swarm.map(agents.writer, ["A dragon.", "A ship."]))
        await asyncio.sleep(delay_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (await swarm.run(agents.speaker, "Which colour has the sun?")).accepted
    await idle_books(swarm)


async def test_workers_are_small_and_load_no_torch(swarm: Swarm) -> None:
    await swarm.map(agents.speaker, ["Which colour has ink?"] * 2)
    pids = swarm.pids()
    assert set(pids) == {"worker 0", "worker 1", "engine"}
    for name, pid in pids.items():
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
        assert ("libtorch" in maps) == (name == "engine")
        if name != "engine":
            assert psutil.Process(pid).memory_info().rss <= WORKER_RESIDENT_BYTES


async def test_a_killed_engine_comes_back_and_its_task_goes_on(small_swarm: OpenSwarm) -> None:
    events: list[Event] = []
    killed = 0

    async with small_swarm(workers=1) as swarm:
        async for event in swarm.stream(agents.writer, "A dragon."):
            events.append(event)
            if event.kind == "text" and not killed:
                killed = swarm.pids()["engine"]
                os.kill(killed, signal.SIGKILL)
        assert swarm.pids()["engine"] != killed
        kinds = [event.kind for event in events if event.kind != "text"]
        assert kinds[:3] == ["dispatched", "lost", "dispatched"]
        assert {event.attempt for event in events} == {1}
        outcome = events[-1].outcome
        assert outcome is not None
        assert len(outcome.attempts) == 1
        assert outcome.attempts[0].verdict is not None
        assert (await swarm.run(agents.speaker, "Which colour has the sun?")).accepted
        await idle_books(swarm)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kv_budget": "64KiB"}, "kv_budget"),
        ({"model": "smolm2-135m"}, "smollm2-135m"),
        ({"policy": "saliense"}, "salience"),
    ],
)
@pytest.mark.parametrize("isolation", ["process", "inline"])
async def test_what_the_engine_cannot_work_with_names_the_mend(
    small_swarm: OpenSwarm, settings: dict[str, Any], said: str, isolation: str
) -> None:
    before = set(psutil.Process().children(recursive=True))  # another swarm of this module may be open
    with pytest.raises(StartFailed) as caught:
        await small_swarm(isolation=isolation, **settings).__aenter__()
    assert caught.value.process == "engine"
    assert said in caught.value.reason
    assert set(psutil.Process().children(recursive=True)) == before
