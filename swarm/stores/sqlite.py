"""A store in one SQLite file. An appended record is on disk before `append` returns.

One thread owns the connection. What waits when it becomes free goes into one transaction (group commit), so that
many appends share one fsync (WAL, synchronous=FULL).
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .base import JournalRecord, RunSummary
from .errors import StoreClosed, StoreError, StoreFailed, StoreTooNew, StoreUnusable

R = TypeVar("R")

APPLICATION_ID = 0x73776B76
"""marks a file as ours, in SQLite's header: "swkv" """
FORMAT = 1
BUSY_TIMEOUT_S = 10.0
_SCHEMA = """
create table journal (
    run_id text not null, seq integer not null, kind text not null, task_id text not null,
    body blob not null, at_ns integer not null,
    primary key (run_id, seq)
) without rowid, strict
"""


class _Append:
    def __init__(self, records: Sequence[JournalRecord], done: Callable[[StoreError | None], None]) -> None:
        self.records, self.done = records, done


class SqliteStore:
    """Journals in one file. Made by `await SqliteStore.open(path)`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._work: queue.SimpleQueue[_Append | Callable[[sqlite3.Connection], None] | None] = queue.SimpleQueue()
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path) -> SqliteStore:
        """Open or make the file.

        Raises: StoreUnusable for a folder, another program's file or a place without the right to write;
                StoreTooNew; nothing was written then.
        """
        store = cls(Path(path))
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        store._thread = threading.Thread(
            target=store._own, args=(loop, opened), name="swarmkv-sqlite", daemon=True
        )
        store._thread.start()
        await opened
        return store

    _thread: threading.Thread

    async def append(self, records: Sequence[JournalRecord]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._put(_Append(tuple(records), lambda error: _tell(loop, future, None, error)))
        await future

    async def read(self, run_id: str) -> list[JournalRecord]:
        query = "select run_id, seq, kind, task_id, body, at_ns from journal where run_id = ? order by seq"
        return await self._ask(
            lambda connection: [JournalRecord(*row) for row in connection.execute(query, (run_id,))]
        )

    async def runs(self) -> list[RunSummary]:
        query = (
            "select run_id, count(*), min(at_ns), max(at_ns) from journal group by run_id order by min(at_ns) desc"
        )
        return await self._ask(lambda connection: [RunSummary(*row) for row in connection.execute(query)])

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._work.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _put(self, work: _Append | Callable[[sqlite3.Connection], None]) -> None:
        if self._closed:
            raise StoreClosed
        self._work.put(work)

    async def _ask(self, question: Callable[[sqlite3.Connection], R]) -> R:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def answer(connection: sqlite3.Connection) -> None:
            try:
                result = question(connection)
            except sqlite3.Error as error:
                _tell(loop, future, None, StoreFailed(str(self.path), str(error)))
            else:
                _tell(loop, future, result, None)

        self._put(answer)
        return await future

    def _own(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        """The thread's life."""
        try:
            connection = _connect(self.path)
        except StoreError as error:
            _tell(loop, opened, None, error)
            return
        _tell(loop, opened, None, None)
        try:
            while self._serve(connection):
                pass
        finally:
            connection.close()

    def _serve(self, connection: sqlite3.Connection) -> bool:
        """Take all that waits: appends together, the rest one by one. False at the end."""
        waiting = [self._work.get()]
        while not self._work.empty():
            waiting.append(self._work.get())
        appends = [work for work in waiting if isinstance(work, _Append)]
        if appends:
            self._commit(connection, appends)
        for work in waiting:
            if work is not None and not isinstance(work, _Append):
                work(connection)
        return None not in waiting

    def _commit(self, connection: sqlite3.Connection, appends: list[_Append]) -> None:
        """One transaction for all; if it fails, one for each, so that only the faulty one is refused."""
        error = self._insert(connection, [record for append in appends for record in append.records])
        for append in appends:
            if error is None or len(appends) == 1:
                append.done(error)
            else:
                append.done(self._insert(connection, append.records))

    def _insert(
        self, connection: sqlite3.Connection, records: Sequence[JournalRecord]
    ) -> StoreError | None:
        rows = [
            (record.run_id, record.seq, record.kind, record.task_id, record.body, record.at_ns)
            for record in records
        ]
        try:
            connection.execute("begin immediate")
            connection.executemany("insert into journal values (?, ?, ?, ?, ?, ?)", rows)
            connection.execute("commit")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.rollback()
            return StoreFailed(str(self.path), str(error))
        return None


def _connect(path: Path) -> sqlite3.Connection:
    """Raises: StoreUnusable, StoreTooNew."""
    place = str(path)
    if path.is_dir():
        raise StoreUnusable(place, "it is a folder; name a file in it")
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    except sqlite3.Error as error:
        raise StoreUnusable(place, str(error)) from error
    try:
        _prepare(connection, place)
    except sqlite3.Error as error:
        connection.close()
        raise StoreUnusable(place, str(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, place: str) -> None:
    application: int = connection.execute("pragma application_id").fetchone()[0]
    found: int = connection.execute("pragma user_version").fetchone()[0]
    empty = connection.execute("select count(*) from sqlite_master").fetchone()[0] == 0
    if not empty and application != APPLICATION_ID:
        raise StoreUnusable(place, "it is a database of another program")
    if found > FORMAT:
        raise StoreTooNew(place, found, FORMAT)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    if empty:
        connection.execute("begin immediate")
        if connection.execute("select count(*) from sqlite_master").fetchone()[0] == 0:
            connection.execute(_SCHEMA)
            connection.execute(f"pragma application_id = {APPLICATION_ID}")
            connection.execute(f"pragma user_version = {FORMAT}")
        connection.execute("commit")
    else:
        # A write that changes nothing: a file without the right to write is refused now, not at the first commit.
        connection.execute("begin immediate")
        connection.execute(f"pragma user_version = {FORMAT}")
        connection.execute("commit")


def _tell(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any, error: Exception | None
) -> None:
    def set_it() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    if not loop.is_closed():
        loop.call_soon_threadsafe(set_it)
