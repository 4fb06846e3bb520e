"""The worker process: runs attempts of the user's agents against the engine. It never imports torch.

Dispatch → find the agent → run_attempt (prompt, model and tool turns) → Output | AttemptFailed
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from ..agents import AttemptKey
from .attempting import carry_out
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
from .process import MainModule, import_main
from .remote import EngineClient
from .sending import Sender, Unsendable, pieces, why_unsendable


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

        def send_text(text: str) -> None:
            for piece in pieces(text):
                self._sender.push(Text(key, piece))

        answer = await carry_out(message, self._engine, send_text if message.stream else None)
        self._sender.push(answer, lambda error: self._sender.push(_not_sent(answer, error)))


def _not_sent(answer: Output | AttemptFailed, error: Unsendable) -> AttemptFailed:
    reason = why_unsendable("the answer", error)
    return AttemptFailed(answer.key, type(error).__name__, reason, False, answer.usage)


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
