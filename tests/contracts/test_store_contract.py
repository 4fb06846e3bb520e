from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from store_contract import StoreContract

from swarmkv.swarm.stores import MemoryStore, Store
from swarmkv.swarm.stores.sqlite import SqliteStore


class TestMemoryStore(StoreContract):
    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[Store]:
        store = MemoryStore()
        yield store
        await store.close()


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs.db"

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[Store]:
        store = await SqliteStore.open(self.path)
        try:
            yield store
        finally:
            await store.close()
