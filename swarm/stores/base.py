"""The seam to durable storage: an append-only journal of records by run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from .errors import RecordInvalid

MAX_BODY_BYTES = 64 * 2**20


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

        Cancelled, it may have stored them.
        Raises: RecordInvalid, RecordExists, StoreBusy, StoreClosed: the journal is as before then.
                StoreFailed, also to everybody who waits at that moment.
        """
        ...

    async def read(self, run_id: str) -> list[JournalRecord]:
        """A run's records by seq; empty for an unknown run. It sees every append that has returned."""
        ...

    async def runs(self) -> list[RunSummary]:
        """All runs, the newest first."""
        ...

    async def close(self) -> None:
        """Finish what was appended and let go. Idempotent; other calls raise StoreClosed from then on."""
        ...


def refuse_invalid(records: Iterable[JournalRecord]) -> None:
    """What every store refuses, before anything is stored. Raises: RecordInvalid."""
    for record in records:
        for field in ("run_id", "kind", "task_id"):
            text = getattr(record, field)
            try:
                text.encode()
            except (AttributeError, UnicodeEncodeError):
                raise RecordInvalid(field, f"is {text!r}, no text in UTF-8") from None
        for field, lowest in (("seq", 1), ("at_ns", 0)):
            number = getattr(record, field)
            if type(number) is not int or not lowest <= number < 2**63:
                raise RecordInvalid(field, f"is {number!r}, no whole number of {lowest} or more, of 63 bits")
        if not isinstance(record.body, bytes):
            raise RecordInvalid("body", f"is a {type(record.body).__name__}, not bytes")
        if len(record.body) > MAX_BODY_BYTES:
            raise RecordInvalid("body", f"has {len(record.body)} bytes, at most {MAX_BODY_BYTES} are allowed")
