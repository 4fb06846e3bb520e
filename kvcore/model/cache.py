"""The user's cache folder: whole model folders only, each made by one process at a time.

A folder is made under a hidden name beside its place and renamed when all of it is on disk, so nobody ever
sees half of one. Its manifest holds the size of each file: a folder that lost some is made anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import CacheUnusable

MANIFEST = "manifest.json"


def cache_root() -> Path:
    """$XDG_CACHE_HOME/swarmkv, or ~/.cache/swarmkv where that is unset or not absolute.

    Source: XDG Base Directory Specification 0.8.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "swarmkv"


def is_intact(folder: Path) -> bool:
    """Whether the folder holds every file of its manifest, in its size."""
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        return bool(files) and all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def make_folder(
    folder: Path,
    fill: Callable[[Path, Path], None],
    *,
    facts: dict[str, str],
    progress: Callable[[str], None],
) -> Path:
    """Return the intact `folder`; if it is missing or damaged, `fill(folder, scratch)` makes it.

    Two processes may call this at once: one fills, the other waits for it. `scratch` is a folder for what is
    only needed meanwhile; `facts` go into the manifest.

    Raises: CacheUnusable, and whatever `fill` raises; no part of a folder is left then.
    """
    if is_intact(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(_hidden(folder, "lock"), progress):
            if not is_intact(folder):
                _make(folder, fill, facts)
    except OSError as error:
        raise CacheUnusable(folder.parent, error.strerror or str(error)) from error
    return folder


def write_atomically(path: Path, text: str) -> None:
    """Write a small file of the cache, whole or not at all. Raises: OSError; the file is as it was then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _make(folder: Path, fill: Callable[[Path, Path], None], facts: dict[str, str]) -> None:
    partial, scratch = _hidden(folder, "partial"), _hidden(folder, "scratch")
    try:
        for path in (partial, scratch):
            shutil.rmtree(path, ignore_errors=True)  # a killed process may have left it
            path.mkdir()
        fill(partial, scratch)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        (partial / MANIFEST).write_text(json.dumps(facts | {"files": sizes}, indent=1), encoding="utf-8")
        for path in (*partial.iterdir(), partial):
            _sync(path)
        _remove_damaged(folder)
        partial.rename(folder)
        _sync(folder.parent)
    finally:
        for path in (partial, scratch):
            shutil.rmtree(path, ignore_errors=True)


def _remove_damaged(folder: Path) -> None:
    """Take a damaged folder out of its place at once; a process that has mapped its files keeps them."""
    if folder.exists():
        damaged = _hidden(folder, "damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


@contextmanager
def _lock(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """One process at a time; the kernel releases the lock of a process that dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
