"""The engine's server and the senders, without processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from swarmkv.agents import AttemptKey, Message, Sampling
from swarmkv.agents.backends.scripted import ScriptedBackend
from swarmkv.agents.errors import BackendLost, GenerationFailed
from swarmkv.swarm.engine import EngineServer
from swarmkv.swarm.engine_process import HostedEngine
from swarmkv.swarm.fabric import FrameTooLarge, Link, Mailbox, MessageInvalid
from swarmkv.swarm.messages import CancelTask, EngineToWorker, Output, ToWorker, WorkerToEngine
from swarmkv.swarm.remote import EngineClient
from swarmkv.swarm.sending import Sender

KEY = AttemptKey("run", "task", 1)
PROMPT = (Message("user", "go"),)


class Engine:
    """A client and a server over one link, in one process."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self.backend = backend
        self.server = EngineServer(HostedEngine(backend))
        self.client = EngineClient()

    def connect(self) -> None:
        with Link.create("test", 2**16) as link:
            theirs: Mailbox[EngineToWorker, WorkerToEngine] = Mailbox(
                link.open(0), EngineToWorker, WorkerToEngine
            )
            ours: Mailbox[WorkerToEngine, EngineToWorker] = Mailbox(
                link.open(1), WorkerToEngine, EngineToWorker
            )
        self.server.attach_worker(0, theirs)
        self.client.attach(ours)

    def generate(self, **options: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.client.generate(KEY, PROMPT, sampling=Sampling(), **options))


@pytest.fixture
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    hold = asyncio.Event()
    engine = Engine(ScriptedBackend(["one two three"], delay=hold.wait))
    engine.hold = hold  # type: ignore[attr-defined]
    engine.connect()
    yield engine
    engine.client.detach()
    engine.server.close()


async def becomes(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def test_text_comes_in_pieces_and_then_as_a_whole(engine: Engine) -> None:
    pieces: list[str] = []
    engine.hold.set()  # type: ignore[attr-defined]
    generation = await engine.generate(on_text=pieces.append)
    assert generation.text == "".join(pieces) == "one two three"
    assert len(pieces) == 3


async def test_a_cancelled_request_leaves_no_branch_though_its_release_came_first(engine: Engine) -> None:
    call = engine.generate()
    await engine.backend.release("run", "task")  # overtakes the request, which is still on its way
    await becomes(lambda: engine.backend._branches)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await becomes(lambda: not engine.backend._branches)


async def test_a_new_engine_fails_the_calls_to_the_old_one(engine: Engine) -> None:
    call = engine.generate()
    await becomes(lambda: engine.backend.calls)
    engine.connect()
    with pytest.raises(BackendLost):
        await call


async def test_a_prompt_that_does_not_fit_the_ring_fails_its_call(engine: Engine) -> None:
    with pytest.raises(GenerationFailed, match="ring_bytes"):
        await engine.client.generate(KEY, [Message("user", "x" * 40_000)], sampling=Sampling())


async def test_an_answer_that_cannot_be_sent_fails_its_call(engine: Engine) -> None:
    engine.hold.set()  # type: ignore[attr-defined]
    for text, kind in (("x" * 40_000, "FrameTooLarge"), ("lone \ud800", "MessageInvalid")):
        engine.backend._script = lambda key, messages, text=text: text
        with pytest.raises(GenerationFailed) as caught:
            await asyncio.wait_for(engine.generate(), 5)
        assert caught.value.kind == kind


async def test_a_worker_gives_no_verdicts(engine: Engine) -> None:
    with pytest.raises(PermissionError):
        await engine.client.settle(KEY, True)
    with pytest.raises(PermissionError):
        await engine.client.release("run", "task")


async def test_what_is_pushed_arrives_in_order_also_beyond_the_ring() -> None:
    received: list[int] = []
    unsendable: list[type[Exception]] = []
    with Link.create("test", 2**16) as link:
        ours: Mailbox[Any, Any] = Mailbox(link.open(0), ToWorker | Output, CancelTask)
        theirs: Mailbox[Any, Any] = Mailbox(link.open(1), CancelTask, ToWorker | Output)
    async with ours, theirs:
        sender: Sender[Any] = Sender(ours)
        for number in range(20):
            sender.push(CancelTask(AttemptKey("r" * 10_000, "t", number)))
            if number == 10:
                for text in ("x" * 40_000, "\ud800"):
                    sender.push(
                        CancelTask(AttemptKey(text, "t", 0)), lambda error: unsendable.append(type(error))
                    )
        assert unsendable == [], "they wait behind what waits already"
        theirs.on_message = lambda message: received.append(message.key.attempt)
        await asyncio.wait_for(sender.flush(), 5)
        await becomes(lambda: len(received) == 20)
        assert received == list(range(20))
        assert unsendable == [FrameTooLarge, MessageInvalid]
        sender.push(CancelTask(AttemptKey("\ud800", "t", 0)), lambda error: unsendable.append(type(error)))
        assert unsendable[2:] == [MessageInvalid], "told at once if nothing waits"
        theirs.close()
        await asyncio.sleep(0)
        for _ in range(3):
            sender.push(CancelTask(KEY))
        sender.close()
