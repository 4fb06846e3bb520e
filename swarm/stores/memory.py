"""A store that lasts as long as its object."""

from __future__ import annotations

from collections.abc import Sequence

from .base import JournalRecord, RunSummary, refuse_invalid
from .errors import RecordExists, StoreClosed


class MemoryStore:
    """The default, and the one for tests. See `Store`."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, JournalRecord]] = {}
        self._closed = False

    async def append(self, records: Sequence[JournalRecord]) -> None:
        self._require_open()
        refuse_invalid(records)
        new: set[tuple[str, int]] = set()
        for record in records:
            name = (record.run_id, record.seq)
            if name in new or record.seq in self._runs.get(record.run_id, {}):
                raise RecordExists(*name)
            new.add(name)
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
        return sorted(summaries, key=lambda run: (-run.first_at_ns, run.run_id))

    async def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed
