from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swarmkv.swarm import SwarmError
from swarmkv.swarm.stores import MemoryStore, StoreUnusable, open_store
from swarmkv.swarm.stores.sqlite import SqliteStore


async def test_nothing_is_memory() -> None:
    assert isinstance(await open_store(None), MemoryStore)


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_path_is_sqlite(tmp_path: Path, kind: Any) -> None:
    store = await open_store(kind(tmp_path / "runs.db"))
    assert isinstance(store, SqliteStore)
    await store.close()
    assert (tmp_path / "runs.db").is_file()


async def test_a_store_is_itself() -> None:
    store = MemoryStore()
    assert await open_store(store) is store


@pytest.mark.parametrize("spec", [7, b"runs.db", object()])
async def test_anything_else_is_refused(spec: Any) -> None:
    with pytest.raises(StoreUnusable, match="neither a path nor a Store"):
        await open_store(spec)


def test_a_store_error_is_a_swarm_error() -> None:
    assert issubclass(StoreUnusable, SwarmError)


def test_sqlite_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, swarmkv.swarm.stores; print('sqlite3' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.strip() == "False"
