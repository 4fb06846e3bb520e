"""The fleet: what carries out attempts. Processes, or the same code inline.

A `Fleet` hands out slots (room for one attempt on one worker), passes verdicts on to the engine, and replaces
what dies. `ProcessFleet` is the real one; `inline.InlineFleet` runs everything in the calling process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..agents import AgentNotImportable, AgentRef, AttemptKey, Backend, Usage
from ..agents.agent import MAIN_NAMES
from .config import Config
from .engine_process import Engine, EngineProcess, HostedEngine
from .errors import EngineBroken, StartFailed, SwarmClosed
from .fabric import FabricError, Link
from .messages import AttemptFailed, AuditTaken, Dispatch, Output
from .process import MainModule, main_module_spec
from .worker_process import WorkerProcess

RESTART_BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 5.0)
"""wait before the n-th start in a row that came to nothing; after the last one, give up"""


class Slot(Protocol):
    """Room for one attempt at a time on one worker."""

    @property
    def worker(self) -> int: ...

    async def attempt(
        self, dispatch: Dispatch, on_text: Callable[[str], None] | None
    ) -> Output | AttemptFailed:
        """Raises: WorkerLost if the worker died meanwhile."""
        ...


class Fleet(Protocol):
    """What the flow needs of its processes."""

    slots: int
    """attempts that run at the same time"""

    async def start(self) -> None: ...

    def ensure_found(self, agent: AgentRef) -> None:
        """Raises: AgentNotImportable if no worker could import the agent's module."""
        ...

    async def take(self) -> Slot:
        """A slot on the least loaded worker; waits for one, first come first served."""
        ...

    def release(self, slot: Slot) -> None: ...

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage: ...

    async def forget(self, run: str, task: str) -> Usage:
        """The task is over, or must begin anew elsewhere: its branch goes."""
        ...

    async def audit(self) -> AuditTaken | None: ...

    async def stop(self) -> None: ...


class _WorkerSlot:
    def __init__(self, process: WorkerProcess) -> None:
        self.process = process

    @property
    def worker(self) -> int:
        return self.process.index

    async def attempt(
        self, dispatch: Dispatch, on_text: Callable[[str], None] | None
    ) -> Output | AttemptFailed:
        return await self.process.attempt(dispatch, on_text)


class ProcessFleet:
    """Worker processes and an engine. Whatever dies is started again; its attempts raise WorkerLost."""

    def __init__(
        self, config: Config, backend: Backend | None = None, main: MainModule | None = None
    ) -> None:
        self._config, self._backend = config, backend
        self._main = main if main is not None else main_module_spec()
        self.slots = config.workers * config.tasks_per_worker
        self._engine: Engine | None = None
        self._workers: dict[int, WorkerProcess] = {}
        self._waiting: deque[asyncio.Future[_WorkerSlot]] = deque()
        self._repairs: set[asyncio.Task[None]] = set()
        self._starts: dict[int, int] = {}
        """starts in a row that came to nothing, by worker; -1 is the engine"""
        self._settled_since_start = False
        self._broken: EngineBroken | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start everything at once. Raises: StartFailed; nothing is left then."""
        engine = self._new_engine()
        workers = [self._new_worker(index) for index in range(self._config.workers)]
        starting = [
            asyncio.ensure_future(start)
            for start in (engine.start(), *(worker.start(self._main) for worker in workers))
        ]
        try:
            await asyncio.gather(*starting)
            for name, alive in [
                ("engine", engine.alive),
                *((worker.name, worker.ready) for worker in workers),
            ]:
                if not alive:
                    raise StartFailed(name, "it died while the others came up")
            for worker in workers:
                self._connect(engine, worker)
        except BaseException as error:
            for start in starting:
                start.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await self._stop_all([engine, *workers])
            if isinstance(error, FabricError | OSError):
                raise StartFailed("link between engine and workers", str(error)) from error
            raise
        self._engine = engine
        self._workers = {worker.index: worker for worker in workers}

    def ensure_found(self, agent: AgentRef) -> None:
        """Raises: AgentNotImportable for an agent of a notebook, a shell or `python -c`."""
        if agent.module in MAIN_NAMES and not self._main.importable:
            reason = (
                "workers cannot run what is no script; put the agent into a module, "
                'or use Swarm(isolation="inline")'
            )
            raise AgentNotImportable(agent.name, agent.module, reason)

    async def take(self) -> _WorkerSlot:
        """A slot on the least loaded worker. Raises: EngineBroken, SwarmClosed."""
        if self._broken is not None:
            raise self._broken
        if self._stopping:
            raise SwarmClosed
        free = self._free_worker()
        if free is not None and not self._waiting:
            return self._occupied(free)
        waiting: asyncio.Future[_WorkerSlot] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting.cancelled() and waiting.exception() is None:
                self.release(waiting.result())
            raise

    def release(self, slot: Any) -> None:
        slot.process.running -= 1
        self._serve_waiting()

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        self._settled_since_start = True
        return await self._engine.settle(key, accepted) if self._engine is not None else Usage()

    async def forget(self, run: str, task: str) -> Usage:
        return await self._engine.release(run, task) if self._engine is not None else Usage()

    async def audit(self) -> AuditTaken | None:
        return await self._engine.audit() if self._engine is not None else None

    async def stop(self) -> None:
        """End every process. Idempotent; bounded by the grace of each, all at the same time."""
        self._stopping = True
        for repair in self._repairs:
            repair.cancel()
        await asyncio.gather(*self._repairs, return_exceptions=True)
        self._fail_waiting(SwarmClosed())
        engine = [self._engine] if self._engine is not None else []
        await self._stop_all([*self._workers.values(), *engine])
        self._workers.clear()
        self._engine = None

    def pids(self) -> dict[str, int]:
        """Process numbers by name, for operators and tests."""
        found = {f"worker {index}": worker.pid for index, worker in self._workers.items()}
        if isinstance(self._engine, EngineProcess):
            found["engine"] = self._engine.pid
        return found

    def _new_engine(self) -> Engine:
        if self._backend is not None:
            return HostedEngine(self._backend)
        return EngineProcess(self._config, self._engine_lost)

    def _new_worker(self, index: int) -> WorkerProcess:
        return WorkerProcess(index, self._config, self._worker_lost)

    def _connect(self, engine: Engine, worker: WorkerProcess) -> None:
        """A fresh link between a worker and the engine."""
        name = f"engine-worker-{worker.index}"
        with Link.create(name, self._config.ring_bytes) as link:
            engine.attach_worker(worker.index, link.ends[0])
            worker.attach_engine(link.ends[1])

    def _worker_lost(self, worker: WorkerProcess) -> None:
        if self._stopping or self._workers.get(worker.index) is not worker:
            return  # one that was not taken in yet: its start fails
        del self._workers[worker.index]
        if self._engine is not None:
            self._engine.detach_worker(worker.index)
        if worker.given:  # what it was given may have killed it, and `max_losses` bounds that
            self._starts[worker.index] = 0
        self._repair(self._replace_worker(worker.index))

    def _engine_lost(self, reason: str) -> None:
        if self._stopping or self._engine is None:
            return
        self._engine = None
        if self._settled_since_start:
            self._starts[-1] = 0
        self._repair(self._replace_engine(reason))

    async def _replace_worker(self, index: int) -> None:
        worker = self._new_worker(index)
        while True:
            await self._back_off(index, f"worker {index} dies at every start")
            try:
                await worker.start(self._main)
            except StartFailed:
                worker = self._new_worker(index)
                continue
            break
        self._workers[index] = worker
        if self._engine is not None:
            self._connect(self._engine, worker)
        self._serve_waiting()

    async def _replace_engine(self, reason: str) -> None:
        while True:
            await self._back_off(-1, f"the engine died again and again; at last {reason}")
            engine = self._new_engine()
            try:
                await engine.start()
            except StartFailed as error:
                reason = str(error)
                continue
            break
        self._engine, self._settled_since_start = engine, False
        for worker in self._workers.values():
            self._connect(engine, worker)

    async def _back_off(self, who: int, reason: str) -> None:
        starts = self._starts.get(who, 0)
        if starts >= len(RESTART_BACKOFF_S):
            self._broken = EngineBroken(reason)
            self._fail_waiting(self._broken)
            for worker in self._workers.values():
                worker.fail_attempts()
            raise self._broken
        self._starts[who] = starts + 1
        await asyncio.sleep(RESTART_BACKOFF_S[starts])

    def _repair(self, work: Any) -> None:
        repair = asyncio.get_running_loop().create_task(work)
        self._repairs.add(repair)
        repair.add_done_callback(self._repaired)

    def _repaired(self, repair: asyncio.Task[None]) -> None:
        self._repairs.discard(repair)
        if not repair.cancelled() and (error := repair.exception()) is not None:
            self._broken = error if isinstance(error, EngineBroken) else EngineBroken(str(error))
            self._fail_waiting(self._broken)

    def _free_worker(self) -> WorkerProcess | None:
        limit = self._config.tasks_per_worker
        free = [worker for worker in self._workers.values() if worker.ready and worker.running < limit]
        return min(free, key=lambda worker: worker.running, default=None)

    def _occupied(self, worker: WorkerProcess) -> _WorkerSlot:
        worker.running += 1
        return _WorkerSlot(worker)

    def _serve_waiting(self) -> None:
        while self._waiting and (free := self._free_worker()) is not None:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(self._occupied(free))

    def _fail_waiting(self, error: Exception) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(error)

    @staticmethod
    async def _stop_all(parts: list[Any]) -> None:
        await asyncio.gather(*(part.stop() for part in parts))
