from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import store_child

from swarmkv.swarm.stores import (
    JournalRecord,
    RecordExists,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreTooNew,
    StoreUnusable,
)
from swarmkv.swarm.stores.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def record(seq: int, body: bytes = b"{}") -> JournalRecord:
    return JournalRecord("r", seq, "k", "t", body, seq)


def child(role: str, path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, store_child.__file__, role, str(path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=env)


async def seqs(path: Path, run: str = "r") -> list[int]:
    store = await SqliteStore.open(path)
    try:
        return [one.seq for one in await store.read(run)]
    finally:
        await store.close()


async def test_what_was_appended_is_there_after_opening_it_again(path: Path) -> None:
    store = await SqliteStore.open(str(path))
    await store.append([record(1), record(2)])
    await store.close()
    assert await seqs(path) == [1, 2]


async def test_a_commit_waits_for_the_disk(path: Path) -> None:
    store = await SqliteStore.open(path)
    assert await store._ask(lambda connection: connection.execute("pragma synchronous").fetchone()) == (2,)
    assert await store._ask(lambda connection: connection.execute("pragma journal_mode").fetchone()) == (
        "wal",
    )
    await store.close()


@pytest.mark.parametrize("seed", range(3))
async def test_killed_at_any_moment_it_has_all_that_was_acknowledged(path: Path, seed: int) -> None:
    with child("append", path) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(random.Random(seed).randint(1, 400))]
        process.kill()
        acknowledged += [int(line) for line in process.stdout if line.endswith(b"\n")]
    found = await seqs(path, "run")
    assert set(acknowledged) <= set(found)
    # Beyond them, only what was under way: one append a writer.
    assert len(found) <= len(acknowledged) + store_child.WRITERS


async def test_a_full_disk_fails_everybody_who_waits_and_whoever_comes_later(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.append([record(1)])
    pages = await store._ask(lambda connection: connection.execute("pragma page_count").fetchone()[0])
    await store._ask(lambda connection: connection.execute(f"pragma max_page_count = {pages + 2}").fetchone())
    appends = [store.append([record(seq, b"x" * 100_000)]) for seq in (2, 3, 4)]
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(result) for result in results] == [StoreFailed] * 3
    assert "full" in str(results[0])
    assert len({id(result) for result in results}) == 3  # each waiter has a traceback of its own
    with pytest.raises(StoreFailed, match="full"):
        await store.append([record(5)])
    assert await store.read("r") == [record(1)]
    await store.close()
    assert await seqs(path) == [1]


async def test_a_failure_that_is_no_error_of_sqlite_reaches_the_waiters_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(path)
    monkeypatch.setattr("swarmkv.swarm.stores.sqlite._row", lambda record: ({},) * 6)
    with pytest.raises(StoreFailed):
        await store.append([record(1)])
    await store.close()


async def test_a_busy_file_is_told_and_tried_again(path: Path) -> None:
    store = await SqliteStore.open(path, busy_timeout_s=0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreBusy) as caught:
        await store.append([record(1)])
    assert caught.value.retryable
    other.execute("rollback")
    other.close()
    await store.append([record(1)])
    await store.close()
    assert await seqs(path) == [1]


async def test_two_stores_share_a_file(path: Path) -> None:
    one, other = await asyncio.gather(SqliteStore.open(path), SqliteStore.open(path))
    await asyncio.gather(*((one if seq % 2 else other).append([record(seq)]) for seq in range(1, 41)))
    with pytest.raises(RecordExists):
        await one.append([record(2)])
    await one.close()
    await other.close()
    assert await seqs(path) == list(range(1, 41))


async def test_a_cancelled_append_harms_nobody(path: Path) -> None:
    store = await SqliteStore.open(path)
    cancelled = asyncio.create_task(store.append([record(1)]))
    await asyncio.sleep(0)  # it waits now
    cancelled.cancel()
    await store.append([record(2)])
    assert cancelled.cancelled()
    await store.close()
    assert await seqs(path) == [1, 2]


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def folder(path: Path) -> None:
    path.mkdir()


def text_file(path: Path) -> None:
    path.write_text("Dear diary, " * 100)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def other_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table notes (text)")
    connection.close()


def missing_folder(path: Path) -> None:
    path.parent.rmdir()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (folder, "it is a folder; name a file in it"),
        (text_file, "file is not a database"),
        (pipe, "no regular file"),
        (other_program, "another program"),
        (missing_folder, "does not exist"),
    ],
)
async def test_a_place_that_cannot_be_a_store_is_refused_and_left_as_it_is(
    path: Path, make: Any, reason: str
) -> None:
    make(path)
    before = content(path)
    with pytest.raises(StoreUnusable, match=reason) as caught:
        await SqliteStore.open(path)
    assert caught.value.place == str(path)
    assert content(path) == before


@pytest.mark.parametrize("name", [":memory:", "", "a\0b"])
async def test_a_name_of_no_file_is_refused(name: str) -> None:
    with pytest.raises(StoreUnusable):
        await SqliteStore.open(name)


async def test_a_newer_format_is_refused(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(StoreTooNew) as caught:
        await SqliteStore.open(path)
    assert (caught.value.found, caught.value.known) == (99, 1)


async def test_a_file_without_the_right_to_write_is_refused_at_once(open_folder: Path) -> None:
    path = open_folder / "runs.db"
    await (await SqliteStore.open(path)).close()
    os.chmod(path, 0o444)
    with child("open", path) as process:
        assert process.stdout is not None
        assert process.stdout.read().startswith(b"StoreUnusable")


async def test_an_opening_that_is_cancelled_leaves_no_thread(path: Path) -> None:
    opening = asyncio.create_task(SqliteStore.open(path))
    await asyncio.sleep(0)  # it waits now
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert await seqs(path) == []


async def test_an_unclosed_store_warns(path: Path) -> None:
    stores = [await SqliteStore.open(path)]
    thread = stores[0]._thread
    with pytest.warns(ResourceWarning, match="unclosed store"):
        stores.clear()
    thread.join()


def test_the_errors_have_one_root() -> None:
    assert issubclass(StoreFailed, StoreError)
    assert not StoreFailed.retryable
