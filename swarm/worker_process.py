"""The coordinator's side of one worker: start it, give it attempts, notice its death."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from ..agents import AttemptKey
from .config import Config
from .errors import StartFailed
from .fabric import FabricError, Link, LinkEnd, Mailbox, MailboxClosed, PeerGone
from .handover import Attach, ControlSocket
from .messages import (
    AttemptFailed,
    CancelTask,
    Dispatch,
    FromWorker,
    Output,
    StopWorker,
    Text,
    ToWorker,
    WorkerFailed,
    WorkerReady,
)
from .process import ChildProcess, MainModule, spawn
from .sending import Sender
from .worker import WorkerConfig


class WorkerLost(Exception):
    """The worker died while it carried out an attempt. Internal: the flow gives the task to another one."""


class _Running:
    """One attempt on a worker."""

    def __init__(
        self, result: asyncio.Future[Output | AttemptFailed | None], on_text: Callable[[str], None] | None
    ) -> None:
        self.result, self.on_text = result, on_text


class WorkerProcess:
    """One worker process and the attempts that it carries out. When it dies, `on_lost` is called once."""

    def __init__(self, index: int, config: Config, on_lost: Callable[[WorkerProcess], None]) -> None:
        self.index = index
        self._config, self._on_lost = config, on_lost
        self._attempts: dict[AttemptKey, _Running] = {}
        self._process: ChildProcess | None = None
        self._stopping = False
        self.running = 0
        """slots in use, counted by the fleet"""
        self.ready = False
        """whether it takes attempts now"""
        self.given = 0
        """attempts that it was given"""

    async def start(self, main: MainModule | None) -> None:
        """Spawn it and wait until it has imported the agents' module. Raises: StartFailed; nothing is left."""
        limit_s = self._config.start_timeout_s
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._process = self._spawn(main)
        except (FabricError, OSError) as error:
            raise StartFailed(self.name, str(error)) from error
        self._watch = asyncio.get_running_loop().create_task(self._watch_exit(self._process))
        try:
            async with asyncio.timeout(limit_s):
                await self._ready
        except TimeoutError as error:
            await self.stop()
            raise StartFailed(self.name, f"it was not ready after {limit_s:g} s") from error
        except BaseException:
            await self.stop()
            raise
        if not self.ready:
            raise StartFailed(self.name, "it died as soon as it was ready")

    def _spawn(self, main: MainModule | None) -> ChildProcess:
        with (
            Link.create(f"worker-{self.index}", self._config.ring_bytes) as link,
            contextlib.ExitStack() as undo,
        ):
            self._control, theirs = ControlSocket.pair()
            undo.callback(self._control.close)
            with theirs:
                start = WorkerConfig(self.index, link.ends[1], theirs.fileno(), main)
                self._mailbox: Mailbox[ToWorker, FromWorker] = Mailbox(link.open(0), ToWorker, FromWorker)
                undo.callback(self._mailbox.close)
                process = spawn(
                    "swarmkv.swarm.worker",
                    msgspec.msgpack.encode(start),
                    [*link.ends[1].descriptors(), theirs.fileno()],
                    name=self.name,
                )
            undo.pop_all()
        self._sender = Sender(self._mailbox)
        self._mailbox.on_message = self._receive
        return process

    def attach_engine(self, end: LinkEnd) -> None:
        """Give it its end of a link to an engine, the first or a new one. The end stays the caller's."""
        self._control.send(Attach(-1, end))

    async def attempt(
        self, dispatch: Dispatch, on_text: Callable[[str], None] | None = None
    ) -> Output | AttemptFailed:
        """Carry out one attempt. Cancelled, it is cancelled in the worker too.

        Raises: WorkerLost if the worker dies; FrameTooLarge if the input does not fit a frame.
        """
        if not self.ready:
            raise WorkerLost
        result: asyncio.Future[Output | AttemptFailed | None] = asyncio.get_running_loop().create_future()
        self._attempts[dispatch.key] = _Running(result, on_text)
        self.given += 1
        try:
            await self._mailbox.send(dispatch)
            answer = await result
        except asyncio.CancelledError:
            self._sender.push(CancelTask(dispatch.key))
            raise
        except (PeerGone, MailboxClosed):
            answer = None
        finally:
            del self._attempts[dispatch.key]
        if answer is None:
            raise WorkerLost
        return answer

    async def stop(self) -> None:
        """End the process, by a message if it listens, within the grace. Idempotent; cancelled, it kills it."""
        if self._stopping or self._process is None:
            return
        self._stopping = True
        self.ready = False
        self._sender.push(StopWorker())
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
    def name(self) -> str:
        return f"worker {self.index}"

    def _receive(self, message: FromWorker) -> None:
        if isinstance(message, WorkerReady):
            if not self._ready.done():
                self._ready.set_result(None)
                self.ready = True
        elif isinstance(message, WorkerFailed):
            if not self._ready.done():
                self._ready.set_exception(StartFailed(self.name, message.message))
        else:
            running = self._attempts.get(message.key)
            if running is None:
                return
            if isinstance(message, Text):
                if running.on_text is not None:
                    running.on_text(message.piece)
            elif not running.result.done():
                running.result.set_result(message)

    async def _watch_exit(self, process: ChildProcess) -> None:
        code = await process.exited()
        self.ready = False
        if not self._ready.done():
            self._ready.set_exception(StartFailed(self.name, f"its process ended with {code}"))
        elif not self._stopping:
            self._stopping = True
            self._close()
            self._on_lost(self)

    def fail_attempts(self) -> None:
        """Every attempt in flight raises WorkerLost."""
        for running in self._attempts.values():
            if not running.result.done():
                running.result.set_result(None)

    def _close(self) -> None:
        self.fail_attempts()
        self._sender.close()
        self._mailbox.close()
        self._control.close()
