"""The seam to durable storage: an append-only journal of records by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class JournalRecord(msgspec.Struct, frozen=True):
    """One thing that happened in a run."""

    run_id: str
    seq: int
    """counts from 1 within the run"""
    kind: str
    task_id: str
    """empty for what concerns the whole run"""
    body: bytes
    """JSON"""
    at_ns: int
    """wall clock"""


class RunSummary(msgspec.Struct, frozen=True):
    """One run of a store."""

    run_id: str
    records: int
    first_at_ns: int
    last_at_ns: int


@runtime_checkable
class Store(Protocol):
    """Keeps journals. `append` returns only when its records are as durable as the store can make them."""

    async def append(self, records: Sequence[JournalRecord]) -> None:
        """Store all of the records, or none.

        Raises: StoreFailed (also for a (run, seq) that is there already); the journal is as before then.
        """
        ...

    async def read(self, run_id: str) -> list[JournalRecord]:
        """A run's records by seq; empty for an unknown run."""
        ...

    async def runs(self) -> list[RunSummary]:
        """All runs, the newest first."""
        ...

    async def close(self) -> None:
        """Finish what was appended and let go. Idempotent; other calls raise StoreClosed from then on."""
        ...
