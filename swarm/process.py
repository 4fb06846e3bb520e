"""Child processes: spawned, never forked, given a configuration and descriptors, and ended with their parent.

    parent   spawn ─▶ ChildProcess: exited (pidfd), terminate, kill, stop
    child    run_child ─▶ tie to the parent ─▶ the module's main(config)

The configuration travels in an anonymous file, not in arguments or the environment, where other users may
read it. A pipe that only the parent can write is the lifeline: when its last writer is gone, the kernel kills
the child and all that it started in its process group. No thread and no signal handler takes part, so it
works while the child computes without giving up the interpreter lock, and after the parent was killed with
SIGKILL.

The child finds modules as its parent does (`sys.path` travels), and a script's `__main__` works as with
multiprocessing's spawn (`main_module_spec`, `import_main`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from .errors import StartFailed

# Only the standard library until the child's sys.path is its parent's. -P keeps the working folder out of it.
_BOOT = (
    "import json, sys; start = open(int(sys.argv[2]), 'rb', closefd=False); "
    "sys.path[:] = json.loads(start.readline()); "
    f"from {__name__} import run_child; run_child(sys.argv[1])"
)
# How long `ChildProcess.stop` lets a child end by SIGTERM before it is killed.
_TERMINATE_S = 0.5


# The parent's side


def spawn(
    module: str,
    config: bytes,
    fds: Sequence[int] = (),
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Start a process that imports `module` and calls its `main(config: bytes)`.

    The child inherits `fds` under the same numbers, and the environment unless `env` replaces it. Its
    standard input is empty; it has a process group of its own, so that Ctrl-C in a terminal is the parent's
    to handle. `fds` stay the caller's to close. Call it in a running event loop.

    Raises: StartFailed if the process cannot be started; nothing is left then.
    """
    loop = asyncio.get_running_loop()
    name = name or module
    if not sys.executable:
        raise StartFailed(name, "Python does not know its own executable (sys.executable is empty)")
    try:
        with contextlib.ExitStack() as given, contextlib.ExitStack() as undo:
            config_fd = _write_start(config)
            given.callback(os.close, config_fd)
            lifeline_fd, hold_fd = os.pipe()
            given.callback(os.close, lifeline_fd)
            undo.callback(os.close, hold_fd)
            process = _popen(module, (config_fd, lifeline_fd), fds, env)
            undo.callback(process.wait)
            undo.callback(process.kill)
            pidfd = os.pidfd_open(process.pid)
            undo.pop_all()
    except OSError as error:
        raise StartFailed(name, str(error)) from error
    return ChildProcess(name, process, pidfd, hold_fd, loop)


def _write_start(config: bytes) -> int:
    """An anonymous file: sys.path as a line of JSON, then the configuration."""
    fd = os.memfd_create("swarmkv-start", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as start:
        start.write(json.dumps(_search_path()).encode() + b"\n")
        start.write(config)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _popen(
    module: str, own_fds: tuple[int, int], fds: Sequence[int], env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-P", "-c", _BOOT, module, *map(str, own_fds)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=[*own_fds, *fds], env=env, process_group=0
    )


class ChildProcess:
    """A running child, watched by the loop in which it was spawned. Its descriptors close when it has ended.

    What the child started and left in its process group is killed when it ends.
    """

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        pidfd: int,
        hold_fd: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self._process, self._pidfd, self._hold_fd, self._loop = process, pidfd, hold_fd, loop
        self._exit: asyncio.Future[int] = loop.create_future()
        loop.add_reader(pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; the exit status, or -N if signal N ended it."""
        return self._process.returncode

    async def exited(self) -> int:
        """Wait until the process has ended, and return its returncode. Any number may wait."""
        return await asyncio.shield(self._exit)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM). Nothing happens if it has."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """End it and its process group at once (SIGKILL). Nothing happens if it has ended."""
        if self.returncode is None:
            self._kill_group()

    async def stop(self, grace_s: float) -> int:
        """Wait up to grace_s for it to end by itself; then SIGTERM, and SIGKILL half a second later.

        Tell it to end first, by a message. Cancelled, it kills the child at once.
        """
        try:
            if not await self._ended_within(grace_s):
                self.terminate()
                if not await self._ended_within(_TERMINATE_S):
                    self.kill()
            return await self.exited()
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Kill it if it runs, reap it (blocks while it ends) and close the descriptors. Idempotent."""
        if self._pidfd >= 0:
            self.kill()
            self._reap()

    async def _ended_within(self, limit_s: float) -> bool:
        done, _ = await asyncio.wait([self._exit], timeout=limit_s)
        return bool(done)

    def _reap(self) -> None:
        """The process has ended or is about to."""
        _readable(self._pidfd, None)
        self._kill_group()  # before it is reaped, while its number cannot be another's
        returncode = self._process.wait()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
            if not self._exit.done():
                self._exit.set_result(returncode)
        os.close(self._pidfd)
        os.close(self._hold_fd)
        self._pidfd = self._hold_fd = -1

    def _kill_group(self) -> None:
        # Nobody is left, or what is left changed its user and is not ours to end.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def __del__(self) -> None:
        if getattr(self, "_pidfd", -1) >= 0:
            warnings.warn(f"unclosed child process {self.name}", ResourceWarning, stacklevel=1, source=self)
            self.close()


# The child's side


def run_child(module: str) -> None:
    """Tie this process to its parent and run the module's main."""
    _, _, _, lifeline_fd = sys.argv
    _tie_to_parent(int(lifeline_fd))
    child_main(importlib.import_module(module).main)


def child_main(entry: Callable[[bytes], None]) -> None:
    """Call entry with the configuration that the parent gave."""
    entry(read_config())


def read_config() -> bytes:
    """The configuration that the parent gave this process; closes its file, so it can be read once.

    Raises: SystemExit if the process was not started by `spawn`.
    """
    try:
        _, _, config_fd, _ = sys.argv
        start = open(int(config_fd), "rb")  # noqa: SIM115 - closed below
    except (ValueError, OSError):
        sys.exit("this module is started by a swarm, not by hand")
    with start:
        start.seek(0)
        start.readline()
        return start.read()


def _tie_to_parent(lifeline_fd: int) -> None:
    """Have the kernel kill this process's group when the other end of the pipe is closed.

    Source: fcntl(2), F_SETSIG and O_ASYNC; a negative owner is a process group.
    """
    os.set_inheritable(lifeline_fd, False)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, os.O_ASYNC)
    if _readable(lifeline_fd, 0):  # closed before we looked: no signal comes for that
        os._exit(1)


# The parent's __main__ in the child


class MainModule(msgspec.Struct, frozen=True):
    """What a child needs to import its parent's `__main__`. At most one of name and path is set."""

    name: str | None
    """as in `python -m name`"""
    path: str | None
    """as in `python path`"""
    sys_path: tuple[str, ...]
    argv: tuple[str, ...]

    @property
    def importable(self) -> bool:
        """Whether a child can run it: not a package's `__main__.py`, not the ipython launcher."""
        if self.name is not None:
            return self.name.rpartition(".")[2] != "__main__"
        return self.path is not None and Path(self.path).stem != "ipython"


def main_module_spec(path: str | os.PathLike[str] | None = None) -> MainModule:
    """Describe this process's `__main__`, or the script at `path` if another program runs it as `__main__`.

    Neither name nor path is set where there is nothing to import: an interactive interpreter, a notebook,
    `python -c`.

    Source: multiprocessing.spawn.get_preparation_data.
    """
    name = None
    main = sys.modules["__main__"]
    if path is None:
        name = getattr(main.__spec__, "name", None)
        path = None if name else getattr(main, "__file__", None)
    absolute = None if path is None else os.path.abspath(path)
    return MainModule(name, absolute, tuple(_search_path()), tuple(sys.argv))


def import_main(spec: MainModule) -> types.ModuleType | None:
    """Run the parent's `__main__` under the name `__mp_main__`, so that its `if __name__ == "__main__"` does
    not run.

    The module is found as `__main__` and as `__mp_main__` then. A package's `__main__.py` is not run, and
    neither is the ipython launcher: the result is None then, as where there is nothing to import. `sys.path`
    and `sys.argv` become the parent's.

    Raises: whatever the module raises; `sys.modules` is as before then.
    Source: multiprocessing.spawn.prepare.
    """
    sys.path[:] = spec.sys_path
    sys.argv[:] = spec.argv
    if not spec.importable:
        return None
    if spec.name is not None:
        content = runpy.run_module(spec.name, run_name="__mp_main__", alter_sys=True)
    else:
        assert spec.path is not None
        content = runpy.run_path(spec.path, run_name="__mp_main__")
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    return module


def _search_path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]


def _readable(fd: int, limit_ms: int | None) -> bool:
    """Wait until the descriptor can be read or its other end is closed. (select knows none beyond 1,023.)"""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(limit_ms))
