"""The coordinator's side of the engine: start it, ask it, notice its death, start it again.

`Engine` is what the fleet needs of an engine; `EngineProcess` is the real one, `HostedEngine` serves a backend
object of the application's from the coordinator's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..agents import AttemptKey, Backend, Usage
from .config import Config
from .engine import EngineServer
from .engine_main import EngineConfig
from .errors import EngineBroken, StartFailed
from .fabric import FabricError, Link, LinkEnd, Mailbox, Segment, duplicate_end, open_end
from .handover import Attach, ControlSocket
from .messages import (
    AuditTaken,
    DetachWorker,
    EngineFailed,
    EngineReady,
    EngineToWorker,
    FromEngine,
    Release,
    Settle,
    Settled,
    StopEngine,
    TakeAudit,
    ToEngine,
    WorkerToEngine,
)
from .process import ChildProcess, spawn
from .sending import Sender


class Engine(Protocol):
    """What serves the workers' generate requests and obeys verdicts."""

    @property
    def alive(self) -> bool: ...

    async def start(self) -> None:
        """Come up. Raises: StartFailed."""
        ...

    def attach_worker(self, index: int, end: LinkEnd) -> None:
        """Serve a worker over this end of a link; it replaces an earlier one. The end stays the caller's."""
        ...

    def detach_worker(self, index: int) -> None: ...

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage: ...

    async def release(self, run: str, task: str) -> Usage: ...

    async def audit(self) -> AuditTaken | None:
        """The pool's books; None where there is no pool."""
        ...

    async def stop(self) -> None: ...


class EngineProcess:
    """The engine in a process of its own. When it dies, `on_lost` is called once and it must be made anew."""

    def __init__(self, config: Config, on_lost: Callable[[str], None]) -> None:
        self._config, self._on_lost = config, on_lost
        self._serials = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Settled | AuditTaken]] = {}
        self._process: ChildProcess | None = None
        self._stopping = False
        self._fault = ""
        """what the engine said of its end"""
        self.ready: EngineReady | None = None

    async def start(self) -> None:
        """Spawn it and wait until the model is loaded. Raises: StartFailed; nothing is left then."""
        limit_s = self._config.start_timeout_s
        self._ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        try:
            self._process = self._spawn()
        except (FabricError, OSError) as error:
            raise StartFailed("engine", str(error)) from error
        self._watch = asyncio.get_running_loop().create_task(self._watch_exit(self._process))
        try:
            async with asyncio.timeout(limit_s):
                self.ready = await self._ready
        except TimeoutError as error:
            await self.stop()
            raise StartFailed("engine", f"it was not ready after {limit_s:g} s") from error
        except BaseException:
            await self.stop()
            raise
        if not self.alive:
            raise StartFailed("engine", "it died as soon as it was ready")

    def _spawn(self) -> ChildProcess:
        settings = self._config.local_settings()
        with Link.create("engine", self._config.ring_bytes) as link, contextlib.ExitStack() as undo:
            self._table = undo.enter_context(Segment.create("pages", _TABLE_BYTES))
            self._control, theirs = ControlSocket.pair()
            undo.callback(self._control.close)
            with theirs:
                start = EngineConfig(settings, link.ends[1], theirs.fileno(), self._table.fd, _TABLE_BYTES)
                self._mailbox: Mailbox[ToEngine, FromEngine] = Mailbox(link.open(0), ToEngine, FromEngine)
                undo.callback(self._mailbox.close)
                process = spawn(
                    "swarmkv.swarm.engine_main",
                    msgspec.msgpack.encode(start),
                    [*link.ends[1].descriptors(), theirs.fileno(), self._table.fd],
                    name="engine",
                )
            undo.pop_all()
        self._sender = Sender(self._mailbox)
        self._mailbox.on_message = self._receive
        return process

    def attach_worker(self, index: int, end: LinkEnd) -> None:
        self._control.send(Attach(index, end))

    def detach_worker(self, index: int) -> None:
        self._sender.push(DetachWorker(index))

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        answer = await self._ask(lambda serial: Settle(serial, key, accepted))
        return answer.usage if isinstance(answer, Settled) else Usage()

    async def release(self, run: str, task: str) -> Usage:
        answer = await self._ask(lambda serial: Release(serial, run, task))
        return answer.usage if isinstance(answer, Settled) else Usage()

    async def audit(self) -> AuditTaken | None:
        answer = await self._ask(TakeAudit)
        return answer if isinstance(answer, AuditTaken) else None

    async def stop(self) -> None:
        """End the process, by a message if it listens, within the grace. Idempotent; cancelled, it kills it."""
        if self._stopping or self._process is None:
            return
        self._stopping = True
        self._sender.push(StopEngine())
        try:
            await self._process.stop(self._config.stop_grace_s)
            await self._watch
        finally:  # also if cancelled, which kills the process at once
            self._close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self._stopping

    async def _ask(self, question: Callable[[int], ToEngine]) -> Settled | AuditTaken | None:
        """Ask and wait; None if the engine died, and with it all that the question was about."""
        if not self.alive:
            return None
        serial = next(self._serials)
        answer: asyncio.Future[Settled | AuditTaken] = asyncio.get_running_loop().create_future()
        self._answers[serial] = answer
        self._sender.push(question(serial))
        try:
            return await answer
        except EngineBroken:
            return None
        finally:
            self._answers.pop(serial, None)

    def _receive(self, message: FromEngine) -> None:
        if isinstance(message, EngineReady):
            if not self._ready.done():
                self._ready.set_result(message)
        elif isinstance(message, EngineFailed):
            self._fault = message.message
            if not self._ready.done():
                self._ready.set_exception(StartFailed("engine", f"{message.message} ({message.kind})"))
        else:
            answer = self._answers.get(message.serial)
            if answer is not None and not answer.done():
                answer.set_result(message)

    async def _watch_exit(self, process: ChildProcess) -> None:
        code = await process.exited()
        reason = self._fault or f"its process ended with {code}"
        if not self._ready.done():
            self._ready.set_exception(StartFailed("engine", reason))
        elif not self._stopping:
            self._stopping = True
            self._close()
            self._on_lost(reason)

    def _close(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineBroken("the engine is gone"))
        self._sender.close()
        self._mailbox.close()
        self._control.close()
        self._table.close()


_TABLE_BYTES = 8 * 2**20
"""room for the words of a million pages"""


class HostedEngine:
    """An application's own backend object, served to the workers from the coordinator's loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._server = EngineServer(self)

    def partition(self, index: int) -> Backend:
        return self._backend

    @property
    def alive(self) -> bool:
        return True

    async def start(self) -> None:
        pass

    def attach_worker(self, index: int, end: LinkEnd) -> None:
        line: Mailbox[EngineToWorker, WorkerToEngine] = Mailbox(
            open_end(duplicate_end(end)), EngineToWorker, WorkerToEngine
        )
        self._server.attach_worker(index, line)

    def detach_worker(self, index: int) -> None:
        self._server.detach_worker(index)

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        return await self._backend.settle(key, accepted)

    async def release(self, run: str, task: str) -> Usage:
        return await self._backend.release(run, task)

    async def audit(self) -> AuditTaken | None:
        return None

    async def stop(self) -> None:
        self._server.close()
