"""What stores raise.

StoreError
├── StoreUnusable   the place cannot be a store: a folder, another program's file, no right to write
├── StoreTooNew     written by a newer version of this library
├── StoreFailed     the record is not stored: disk full, I/O error; the journal is as before
└── StoreClosed     a call on a store that was closed
"""

from __future__ import annotations

from typing import ClassVar


class StoreError(Exception):
    """Root of what stores raise; `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False


class StoreUnusable(StoreError):
    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place} cannot be used as a store: {reason}")


class StoreTooNew(StoreError):
    def __init__(self, place: str, found: int, known: int) -> None:
        self.place, self.found, self.known = place, found, known
        super().__init__(
            f"{place} has format {found}, this version knows up to {known}; update swarmkv or use another file"
        )


class StoreFailed(StoreError):
    retryable = True

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"{place} did not store the record: {reason}")


class StoreClosed(StoreError):
    def __init__(self) -> None:
        super().__init__("this store is closed")
