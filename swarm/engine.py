"""The engine: serves a backend to the workers' mailboxes and obeys the coordinator's verdicts.

`EngineServer` is the whole engine without a process around it: it runs in the engine's own process (`main`), and
in the coordinator's where the backend is an object of the application's (a scripted one, an HTTP client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ..agents import Backend
from ..agents.backends.local import LocalBackend
from ..agents.errors import describe
from .fabric import Mailbox
from .messages import (
    AuditTaken,
    CancelGenerate,
    DetachWorker,
    EngineToWorker,
    FromEngine,
    Generate,
    Generated,
    GenerateFailed,
    GenerateText,
    Release,
    Settle,
    Settled,
    StopEngine,
    TakeAudit,
    ToEngine,
    WorkerToEngine,
)
from .sending import Sender, Unsendable, pieces, why_unsendable


class PartitionedBackend(Protocol):
    """What an engine serves: one backend a worker, over common pages."""

    def partition(self, index: int) -> Backend: ...


class EngineServer:
    """Answers generate requests of workers and verdicts of the coordinator. One event loop."""

    def __init__(self, backend: PartitionedBackend) -> None:
        self._backend = backend
        self._workers: dict[int, _WorkerLine] = {}

    def attach_worker(self, index: int, mailbox: Mailbox[EngineToWorker, WorkerToEngine]) -> None:
        """Serve a worker's mailbox; it replaces an earlier one of the same worker."""
        self.detach_worker(index)
        self._workers[index] = _WorkerLine(self._backend.partition(index), mailbox)

    def detach_worker(self, index: int) -> None:
        """Cancel what a worker had asked for and close its mailbox. Idempotent."""
        line = self._workers.pop(index, None)
        if line is not None:
            line.close()

    async def answer(self, message: Settle | Release) -> Settled:
        """Carry out one request of the coordinator."""
        backend = self._backend.partition(0)
        if isinstance(message, Settle):
            return Settled(message.serial, await backend.settle(message.key, message.accepted))
        return Settled(message.serial, await backend.release(message.run, message.task))

    def close(self) -> None:
        for index in list(self._workers):
            self.detach_worker(index)


class _WorkerLine:
    """One worker's requests in flight."""

    def __init__(self, backend: Backend, mailbox: Mailbox[EngineToWorker, WorkerToEngine]) -> None:
        self._backend, self._mailbox = backend, mailbox
        self._sender = Sender(mailbox)
        self._running: dict[int, asyncio.Task[None]] = {}
        mailbox.on_message = self._receive

    def _receive(self, message: WorkerToEngine) -> None:
        if isinstance(message, CancelGenerate):
            if (task := self._running.get(message.serial)) is not None:
                task.cancel()
            return
        task = asyncio.get_running_loop().create_task(self._generate(message))
        self._running[message.serial] = task
        task.add_done_callback(lambda _: self._running.pop(message.serial, None))

    async def _generate(self, request: Generate) -> None:
        def send_text(text: str) -> None:
            for piece in pieces(text):
                self._sender.push(GenerateText(request.serial, piece))

        try:
            generation = await self._backend.generate(
                request.key,
                request.messages,
                sampling=request.sampling,
                schema=request.schema,
                on_text=send_text if request.stream else None,
            )
        except asyncio.CancelledError:
            # The attempt is over, and the coordinator's Release may have come before this request did.
            await self._backend.release(request.key.run, request.key.task)
            raise
        except Exception as error:  # noqa: BLE001 - a failing model fails its attempt, never the engine
            kind, message, retryable = describe(error)
            self._sender.push(GenerateFailed(request.serial, kind, message, retryable))
        else:
            self._sender.push(
                Generated(request.serial, generation), lambda error: self._not_sent(request.serial, error)
            )

    def _not_sent(self, serial: int, error: Unsendable) -> None:
        reason = why_unsendable("the model's answer", error)
        self._sender.push(GenerateFailed(serial, type(error).__name__, reason, False))

    def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        self._sender.close()
        self._mailbox.close()


class CoordinatorLine:
    """The coordinator's mailbox in the engine's process: answers each request, and says when to stop."""

    def __init__(
        self,
        server: EngineServer,
        mailbox: Mailbox[FromEngine, ToEngine],
        take_audit: Callable[[int], Coroutine[Any, Any, FromEngine]],
    ) -> None:
        self._server, self._take_audit = server, take_audit
        self._sender = Sender(mailbox)
        self._answers: set[asyncio.Task[None]] = set()
        self.stopped = asyncio.Event()
        mailbox.on_message = self._receive

    def send(self, message: FromEngine) -> None:
        self._sender.push(message)

    def _receive(self, message: ToEngine) -> None:
        if isinstance(message, StopEngine):
            self.stopped.set()
        elif isinstance(message, DetachWorker):
            self._server.detach_worker(message.worker)
        else:
            answer = asyncio.get_running_loop().create_task(self._answer(message))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    async def _answer(self, message: Settle | Release | TakeAudit) -> None:
        if isinstance(message, TakeAudit):
            self._sender.push(await self._take_audit(message.serial))
        else:
            self._sender.push(await self._server.answer(message))

    async def close(self) -> None:
        for answer in self._answers:
            answer.cancel()
        await self._sender.flush()
        self._sender.close()


async def take_audit(backend: LocalBackend, serial: int) -> AuditTaken:
    """A local backend's books as a message."""
    from ..kvcore.errors import BooksUnbalanced

    try:
        books = await backend.audit()
    except BooksUnbalanced as error:
        return AuditTaken(serial, backend.pool.total_pages, 0, 0, 0, str(error))
    return AuditTaken(serial, books.total_pages, books.free_pages, books.held_pages, books.cached_pages)
