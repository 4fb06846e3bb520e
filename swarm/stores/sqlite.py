"""A store in one SQLite file. An appended record is on disk before `append` returns.

One thread owns the connection. What waits when it becomes free goes into one transaction (group commit), so
that many appends share one fsync (WAL, synchronous=FULL).

After an I/O error nothing more is written: what the system still holds of the file is unknown then, so only
opening it again, with SQLite's recovery, tells what is there.
Source: Rebello et al., Can Applications Recover from fsync Failures?, USENIX ATC 2020.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .base import JournalRecord, RunSummary, refuse_invalid
from .errors import RecordExists, StoreBusy, StoreClosed, StoreError, StoreFailed
from .sqlite_file import BUSY_TIMEOUT_S, connect, failure

R = TypeVar("R")

_INSERT = "insert into journal values (?, ?, ?, ?, ?, ?)"
_READ = "select run_id, seq, kind, task_id, body, at_ns from journal where run_id = ? order by seq"
_RUNS = """
select run_id, count(*), min(at_ns), max(at_ns) from journal group by run_id order by min(at_ns) desc, run_id
"""


class SqliteStore:
    """Journals in one file, which several processes may share. Made by `await SqliteStore.open(path)`."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self._work: _Queue = queue.SimpleQueue()
        self._closed = False
        writer = _Writer(path, busy_timeout_s, self._work)
        self._thread = threading.Thread(target=writer.run, name="swarmkv-sqlite", daemon=True)

    @classmethod
    async def open(cls, path: str | Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> SqliteStore:
        """Open or make the file.

        Units:  busy_timeout_s is how long an append waits for other processes that write to the file.
        Raises: StoreUnusable for a folder, another program's file or a place without the right to write;
                StoreTooNew; StoreBusy. Nothing was written then.
        """
        store = cls(Path(path), busy_timeout_s)
        store._thread.start()
        try:
            await store._ask(lambda connection: None)
        except BaseException:
            await store.close()
            raise
        return store

    async def append(self, records: Sequence[JournalRecord]) -> None:
        refuse_invalid(records)
        await self._carry_out(_Append(tuple(records)))

    async def read(self, run_id: str) -> list[JournalRecord]:
        return await self._ask(
            lambda connection: [JournalRecord(*row) for row in connection.execute(_READ, (run_id,))]
        )

    async def runs(self) -> list[RunSummary]:
        return await self._ask(lambda connection: [RunSummary(*row) for row in connection.execute(_RUNS)])

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._work.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def __del__(self) -> None:
        if not self._closed:
            self._work.put(None)
            warnings.warn(f"unclosed store {self.path}", ResourceWarning, stacklevel=1, source=self)

    async def _ask(self, question: Callable[[sqlite3.Connection], R]) -> R:
        result: R = await self._carry_out(_Question(question))
        return result

    async def _carry_out(self, work: _Append | _Question) -> Any:
        if self._closed:
            raise StoreClosed
        self._work.put(work)
        return await work.future


class _Work:
    """Something that a caller waits for."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


class _Append(_Work):
    def __init__(self, records: tuple[JournalRecord, ...]) -> None:
        super().__init__()
        self.records = records


class _Question(_Work):
    def __init__(self, question: Callable[[sqlite3.Connection], Any]) -> None:
        super().__init__()
        self.question = question


_Queue = queue.SimpleQueue["_Append | _Question | None"]
_Answer = tuple[_Work, Any, StoreError | None]


class _Writer:
    """The thread's side: the connection, and the work until a None comes."""

    def __init__(self, path: Path, busy_timeout_s: float, work: _Queue) -> None:
        self._path, self._busy_timeout_s, self._work = path, busy_timeout_s, work
        self._failed: str | None = None
        """the I/O error after which nothing is written any more"""

    def run(self) -> None:
        try:
            connection = connect(self._path, self._busy_timeout_s)
        except StoreError as error:
            refused = self._work.get()  # the question that `open` asks
            if refused is not None:
                _deliver([(refused, None, error)])
        else:
            with contextlib.closing(connection):
                while self._serve(connection):
                    pass
        with contextlib.suppress(queue.Empty):
            while True:
                if (late := self._work.get_nowait()) is not None:
                    _deliver([(late, None, StoreClosed())])

    def _serve(self, connection: sqlite3.Connection) -> bool:
        """Take all that waits: the appends together, then the questions. False at the end."""
        waiting = [self._work.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self._work.get_nowait())
        appends = [work for work in waiting if isinstance(work, _Append)]
        if appends:
            _deliver(self._store(connection, appends))
        for work in waiting:
            if isinstance(work, _Question):
                _deliver([self._answer(connection, work)])
        return None not in waiting

    def _store(self, connection: sqlite3.Connection, appends: list[_Append]) -> list[_Answer]:
        """One transaction for all. Each append is told its own error; an I/O error is everybody's."""
        if self._failed is not None:
            return [(append, None, StoreFailed(str(self._path), self._failed)) for append in appends]
        try:
            return _store_all(connection, appends)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may be left waiting
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            if not isinstance(self._failure(error), StoreBusy):
                self._failed = str(error)
            return [(append, None, self._failure(error)) for append in appends]

    def _answer(self, connection: sqlite3.Connection, work: _Question) -> _Answer:
        try:
            return work, work.question(connection), None
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may be left waiting
            return work, None, self._failure(error)

    def _failure(self, error: Exception) -> StoreError:
        return failure(error, self._path, self._busy_timeout_s)


def _store_all(connection: sqlite3.Connection, appends: list[_Append]) -> list[_Answer]:
    connection.execute("begin immediate")
    try:
        connection.executemany(_INSERT, (_row(record) for append in appends for record in append.records))
    except sqlite3.IntegrityError:  # somebody's record exists: find out whose
        connection.execute("rollback")
        connection.execute("begin immediate")
        answers: list[_Answer] = [(append, None, _store_one(connection, append)) for append in appends]
    else:
        answers = [(append, None, None) for append in appends]
    connection.execute("commit")
    return answers


def _store_one(connection: sqlite3.Connection, append: _Append) -> StoreError | None:
    connection.execute("savepoint one")
    for record in append.records:
        try:
            connection.execute(_INSERT, _row(record))
        except sqlite3.IntegrityError:
            connection.execute("rollback to one")
            return RecordExists(record.run_id, record.seq)
    connection.execute("release one")
    return None


def _row(record: JournalRecord) -> tuple[object, ...]:
    return record.run_id, record.seq, record.kind, record.task_id, record.body, record.at_ns


def _deliver(answers: list[_Answer]) -> None:
    """Wake each loop once for all its answers. A loop that was closed meanwhile has nobody left to tell."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, own in by_loop.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, own)


def _resolve(answers: list[_Answer]) -> None:
    for work, result, error in answers:
        if work.future.done():  # cancelled
            continue
        if error is None:
            work.future.set_result(result)
        else:
            work.future.set_exception(error)
