"""The worker process: runs attempts of the user's agents against the engine. It never imports torch.

    Dispatch → find the agent → run_attempt (prompt, model and tool turns) → Output | AttemptFailed
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import msgspec

from ..agents import AttemptRequest, Context, find_agent, run_attempt
from ..agents.errors import describe
from ..agents.message import AttemptKey, Usage
from .fabric import LinkEnd, Mailbox, open_end
from .handover import Attach, ControlSocket
from .messages import (
    AttemptFailed,
    CancelTask,
    Dispatch,
    EngineToWorker,
    FromWorker,
    Output,
    StopWorker,
    Text,
    ToWorker,
    WorkerFailed,
    WorkerReady,
    WorkerToEngine,
)
from .process import MainModule, child_main, import_main
from .remote import EngineClient
from .sending import Sender


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a worker process is started with."""

    index: int
    coordinator: LinkEnd
    control_fd: int
    main: MainModule | None


class Worker:
    """Carries out dispatched attempts, each as a task of this loop. One engine client for all of them."""

    def __init__(self, mailbox: Mailbox[FromWorker, ToWorker], engine: EngineClient) -> None:
        self._sender = Sender(mailbox)
        self._engine = engine
        self._attempts: dict[AttemptKey, asyncio.Task[None]] = {}
        self.stopped = asyncio.Event()
        mailbox.on_message = self._receive

    def send(self, message: FromWorker) -> None:
        self._sender.push(message)

    async def close(self) -> None:
        """Cancel what runs and send what waits."""
        for attempt in self._attempts.values():
            attempt.cancel()
        if self._attempts:
            await asyncio.wait(self._attempts.values())
        await self._sender.flush()
        self._sender.close()

    def _receive(self, message: ToWorker) -> None:
        if isinstance(message, Dispatch):
            attempt = asyncio.get_running_loop().create_task(self._carry_out(message))
            self._attempts[message.key] = attempt
            attempt.add_done_callback(lambda _: self._attempts.pop(message.key, None))
        elif isinstance(message, CancelTask):
            if (running := self._attempts.get(message.key)) is not None:
                running.cancel()
        else:
            assert isinstance(message, StopWorker)
            self.stopped.set()

    async def _carry_out(self, message: Dispatch) -> None:
        key = message.key
        on_text: Callable[[str], None] | None = None
        if message.stream:

            def on_text(piece: str) -> None:
                self._sender.push(Text(key, piece))

        try:
            agent = find_agent(message.agent)
            ctx = Context(
                input=msgspec.msgpack.decode(message.input),
                run_id=key.run,
                task_id=key.task,
                agent=agent.name,
                attempt=key.attempt,
                results=msgspec.msgpack.decode(message.results),
            )
            request = AttemptRequest(key, message.feedback)
            output = await run_attempt(agent, request, ctx, self._engine, on_text)
        except Exception as error:  # noqa: BLE001 - user code: whatever it raises fails its attempt
            kind, text, retryable = describe(error)
            self._sender.push(AttemptFailed(key, kind, text, retryable, Usage()))
        else:
            self._sender.push(Output(key, output.text, output.finish, output.usage))


async def run_worker(config: WorkerConfig) -> None:
    """A worker's life, until the coordinator stops it."""
    mailbox: Mailbox[FromWorker, ToWorker] = Mailbox(open_end(config.coordinator), FromWorker, ToWorker)
    control = ControlSocket.adopt(config.control_fd)
    engine = EngineClient()

    def attach(message: Attach) -> None:
        line: Mailbox[WorkerToEngine, EngineToWorker] = Mailbox(
            open_end(message.end), WorkerToEngine, EngineToWorker
        )
        engine.attach(line)

    control.listen(attach)
    worker = Worker(mailbox, engine)
    try:
        if config.main is not None:
            import_main(config.main)
    except BaseException as error:  # noqa: BLE001 - the user's module, SystemExit included
        worker.send(WorkerFailed(f"importing the agents' module: {type(error).__name__}: {error}"))
    else:
        worker.send(WorkerReady(os.getpid()))
        await worker.stopped.wait()
    await worker.close()
    engine.detach()
    control.close()
    mailbox.close()


def main(config: bytes) -> None:
    import uvloop

    uvloop.run(run_worker(msgspec.msgpack.decode(config, type=WorkerConfig)))


if __name__ == "__main__":
    child_main(main)
