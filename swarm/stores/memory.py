from __future__ import annotations

from collections.abc import Sequence

from .base import JournalRecord, RunSummary
from .errors import StoreClosed, StoreFailed


class MemoryStore:
    """A store that lasts as long as the process: the default, and the one for tests."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, JournalRecord]] = {}
        self._closed = False

    async def append(self, records: Sequence[JournalRecord]) -> None:
        self._require_open()
        names = [(record.run_id, record.seq) for record in records]
        for run_id, seq in names:
            if seq in self._runs.get(run_id, {}) or names.count((run_id, seq)) > 1:
                raise StoreFailed("memory", f"run {run_id} has a record {seq} already")
        for record in records:
            self._runs.setdefault(record.run_id, {})[record.seq] = record

    async def read(self, run_id: str) -> list[JournalRecord]:
        self._require_open()
        return [record for _, record in sorted(self._runs.get(run_id, {}).items())]

    async def runs(self) -> list[RunSummary]:
        self._require_open()
        summaries = [
            RunSummary(
                run_id,
                len(records),
                min(record.at_ns for record in records.values()),
                max(record.at_ns for record in records.values()),
            )
            for run_id, records in self._runs.items()
        ]
        return sorted(summaries, key=lambda run: run.first_at_ns, reverse=True)

    async def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed
