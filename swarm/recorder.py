"""What of a run goes into the store, and in which form."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict

import msgspec

from .stores import JournalRecord, Store


class RunStarted(msgspec.Struct, frozen=True, tag=True):
    goal: str
    tasks: tuple[str, ...]


class TaskCommitted(msgspec.Struct, frozen=True, tag=True):
    attempt: int
    value: str
    """the accepted output, JSON"""


class TaskFailed(msgspec.Struct, frozen=True, tag=True):
    reason: str


class RunEnded(msgspec.Struct, frozen=True, tag=True):
    committed: int
    failed: int


Entry = RunStarted | TaskCommitted | TaskFailed | RunEnded


class Recorder:
    """Writes a swarm's runs into a store. Each call returns when its record is as durable as the store makes it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._seqs: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))

    async def started(self, run_id: str, goal: str, tasks: tuple[str, ...]) -> None:
        await self._append(run_id, "", RunStarted(goal, tasks))

    async def committed(self, run_id: str, task_id: str, attempt: int, value: str) -> None:
        await self._append(run_id, task_id, TaskCommitted(attempt, value))

    async def failed(self, run_id: str, task_id: str, reason: str) -> None:
        await self._append(run_id, task_id, TaskFailed(reason))

    async def ended(self, run_id: str, committed: int, failed: int) -> None:
        await self._append(run_id, "", RunEnded(committed, failed))

    def forget(self, run_id: str) -> None:
        """Nothing more of this run comes, ended or not."""
        self._seqs.pop(run_id, None)

    async def _append(self, run_id: str, task_id: str, entry: Entry) -> None:
        record = JournalRecord(
            run_id=run_id,
            seq=next(self._seqs[run_id]),
            kind=type(entry).__name__,
            task_id=task_id,
            body=msgspec.json.encode(entry),
            at_ns=time.time_ns(),
        )
        await self.store.append([record])
