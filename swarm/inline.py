"""Inline mode: the same attempts in the calling process, for tests, notebooks and debuggers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..agents import AgentRef, AttemptKey, Backend, Usage
from ..agents.backends.local import LocalBackend
from ..agents.errors import describe
from .attempting import carry_out
from .config import Config
from .engine import take_audit
from .errors import StartFailed
from .messages import AttemptFailed, AuditTaken, Dispatch, Output


class _InlineSlot:
    def __init__(self, worker: int, backend: Backend) -> None:
        self.worker, self._backend = worker, backend

    async def attempt(
        self, dispatch: Dispatch, on_text: Callable[[str], None] | None
    ) -> Output | AttemptFailed:
        return await carry_out(dispatch, self._backend, on_text)


class InlineFleet:
    """A fleet without processes: a backend, and as many slots as the workers would have."""

    def __init__(self, config: Config, backend: Backend | None = None) -> None:
        self._config, self._given = config, backend
        self._local: LocalBackend | None = None
        self.slots = config.workers * config.tasks_per_worker
        self._free: asyncio.Queue[_InlineSlot] = asyncio.Queue()

    async def start(self) -> None:
        if self._given is None:
            try:
                self._local = await LocalBackend.open(self._config.local_settings())
            except Exception as error:
                kind, message, _ = describe(error)
                raise StartFailed("engine", f"{message} ({kind})") from error
        for number in range(self.slots):
            index = number % self._config.workers
            self._free.put_nowait(_InlineSlot(index, self._backend(index)))

    def ensure_found(self, agent: AgentRef) -> None:
        pass

    async def take(self) -> _InlineSlot:
        return await self._free.get()

    def release(self, slot: Any) -> None:
        self._free.put_nowait(slot)

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        return await self._backend(0).settle(key, accepted)

    async def forget(self, run: str, task: str) -> Usage:
        return await self._backend(0).release(run, task)

    async def audit(self) -> AuditTaken | None:
        return await take_audit(self._local, 0) if self._local is not None else None

    async def stop(self) -> None:
        if self._local is not None:
            await self._local.aclose()

    def _backend(self, index: int) -> Backend:
        if self._local is not None:
            return self._local.partition(index)
        assert self._given is not None
        return self._given
