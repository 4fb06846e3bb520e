"""The file of the SQLite store: its format, how it is opened, and what its errors mean."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from .errors import StoreBusy, StoreError, StoreFailed, StoreTooNew, StoreUnusable

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


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Open the file, or make it, and see that it can be written to.

    Raises: StoreUnusable, StoreTooNew, StoreBusy; another program's file is as before then.
    """
    _refuse_place(path)
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=busy_timeout_s)
    except (sqlite3.Error, ValueError) as error:
        raise StoreUnusable(str(path), str(error)) from error
    try:
        _prepare(connection, str(path))
    except BaseException as error:
        connection.close()
        if not isinstance(error, sqlite3.Error):
            raise
        cause = failure(error, path, busy_timeout_s)
        raise (cause if isinstance(cause, StoreBusy) else StoreUnusable(str(path), str(error))) from error
    return connection


def failure(error: Exception, path: Path, busy_timeout_s: float) -> StoreError:
    """What an error of SQLite's means to the caller."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits hold details
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(str(path), busy_timeout_s)
    return StoreFailed(str(path), str(error))


def _refuse_place(path: Path) -> None:
    place = str(path)
    if place == ":memory:":
        raise StoreUnusable(place, "it would not last; give None for memory")
    if path.is_dir():
        raise StoreUnusable(place, "it is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise StoreUnusable(place, "it is no regular file")
    if not path.parent.is_dir():
        raise StoreUnusable(place, f"the folder {path.parent} does not exist; make it first")


def _prepare(connection: sqlite3.Connection, place: str) -> None:
    if not _is_empty(connection):
        application: int = connection.execute("pragma application_id").fetchone()[0]
        found: int = connection.execute("pragma user_version").fetchone()[0]
        if application != APPLICATION_ID:
            raise StoreUnusable(place, "it is a database of another program; name another file")
        if found > FORMAT:
            raise StoreTooNew(place, found, FORMAT)
    if connection.execute("pragma journal_mode = wal").fetchone()[0] != "wal":
        raise StoreUnusable(place, "its file system allows no write-ahead log; use a local disk")
    connection.execute("pragma synchronous = full")
    connection.execute("begin immediate")
    if _is_empty(connection):
        connection.execute(_SCHEMA)
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
    # Written each time: a file without the right to write is refused now, not at the first commit.
    connection.execute(f"pragma user_version = {FORMAT}")
    connection.execute("commit")


def _is_empty(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("select count(*) from sqlite_master").fetchone()[0] == 0)
