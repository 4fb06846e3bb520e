"""What stores raise.

StoreError
├── StoreUnusable   the place cannot be a store: a folder, another program's file, no right to write
├── StoreTooNew     written by a newer version of this library
├── RecordInvalid   a record that no store can hold; nothing was stored
├── RecordExists    the run has a record of that number already; nothing was stored
├── StoreBusy       another process holds the file for too long; nothing was stored
├── StoreFailed     disk full, I/O error: the store takes nothing more until it is opened again
└── StoreClosed     a call on a store that was closed
"""

from __future__ import annotations

from ..errors import SwarmError


class StoreError(SwarmError):
    """Root of what stores raise; `retryable` says whether the same call may succeed later."""


class StoreUnusable(StoreError):
    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place} cannot be used as a store: {reason}")


class StoreTooNew(StoreError):
    def __init__(self, place: str, found: int, known: int) -> None:
        self.place, self.found, self.known = place, found, known
        advice = "update swarmkv or use another file"
        super().__init__(f"{place} has format {found}, this version knows up to {known}; {advice}")


class RecordInvalid(StoreError):
    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"a journal record cannot be stored: {field} {reason}")


class RecordExists(StoreError):
    def __init__(self, run_id: str, seq: int) -> None:
        self.run_id, self.seq = run_id, seq
        super().__init__(f"run {run_id} has a record {seq} already; a journal is only appended to")


class StoreBusy(StoreError):
    retryable = True

    def __init__(self, place: str, waited_s: float) -> None:
        self.place, self.waited_s = place, waited_s
        super().__init__(f"{place} was locked by another process for {waited_s:g} s; nothing was stored")


class StoreFailed(StoreError):
    """What was being stored may or may not be there after the next opening; none of it was acknowledged."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place} failed: {reason}; mend its disk and open it again")


class StoreClosed(StoreError):
    def __init__(self) -> None:
        super().__init__("this store was closed; open it again")
