"""Stores: what makes a commit durable.

To add one, implement `base.Store` and run the suite `tests/contracts/store_contract.py` against it.
"""

from __future__ import annotations

from pathlib import Path

from .base import JournalRecord, RunSummary, Store
from .errors import (
    RecordExists,
    RecordInvalid,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreTooNew,
    StoreUnusable,
)
from .memory import MemoryStore


async def open_store(spec: str | Path | Store | None) -> Store:
    """A store from a setting: None for memory, a path for SQLite, or a store as it is.

    Raises: StoreUnusable, StoreTooNew.
    """
    if spec is None:
        return MemoryStore()
    if isinstance(spec, str | Path):
        from .sqlite import SqliteStore

        return await SqliteStore.open(spec)
    if isinstance(spec, Store):
        return spec
    raise StoreUnusable(repr(spec), "it is neither a path nor a Store; give one of them, or None for memory")


__all__ = [
    "JournalRecord",
    "MemoryStore",
    "RecordExists",
    "RecordInvalid",
    "RunSummary",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFailed",
    "StoreTooNew",
    "StoreUnusable",
    "open_store",
]
