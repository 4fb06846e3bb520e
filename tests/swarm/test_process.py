from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from swarmkv.swarm.errors import StartFailed
from swarmkv.swarm.process import ChildProcess, MainModule, main_module_spec, read_config, spawn

FOLDER = Path(__file__).parent
LIBRARY = str(Path(sys.modules[spawn.__module__].__file__ or "").parents[2])


@pytest.fixture(autouse=True)
def peers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    return asyncio.run if request.param == "asyncio" else uvloop.run


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    os.close(read_fd)
    os.close(write_fd)


def start(role: str, answer_fd: int, main: MainModule | None = None, **options: Any) -> ChildProcess:
    config = {"answer_fd": answer_fd, "role": role, "main": main}
    return spawn("process_peers", msgspec.msgpack.encode(config), [answer_fd], **options)


async def answer_of(read_fd: int) -> bytes:
    return await asyncio.to_thread(os.read, read_fd, 65536)


def ended_within(pid: int, limit_s: float) -> bool:
    """Whether a process that is not our child ends in time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], limit_s)[0])
    finally:
        os.close(pidfd)


def test_a_child_gets_its_configuration_and_descriptors(run, pipe) -> None:
    async def main() -> None:
        child = start("tell", pipe[1], env={**os.environ, "SWARMKV_TEST_MARK": "set"})
        assert await child.exited() == 0
        assert child.returncode == 0
        seen = msgspec.json.decode(await answer_of(pipe[0]))
        assert seen["group"] == child.pid
        assert seen["stdin"] == ""
        assert seen["path"] == [entry or os.getcwd() for entry in sys.path]
        assert seen["mark"] == "set"
        # Standard ones, the answer's, the lifeline, and the listing's own; the configuration's is closed.
        assert {0, 1, 2, pipe[1]} <= set(seen["fds"])
        assert len(seen["fds"]) == 6
        assert not any("tell" in argument for argument in seen["arguments"])

    run(main())


def test_the_descriptors_of_a_child_are_closed_when_it_ended(run, pipe) -> None:
    async def main() -> None:
        before = sorted(os.listdir("/proc/self/fd"))
        children = [start("wait", pipe[1]) for _ in range(3)]
        for child in children:
            child.kill()
            assert await child.exited() == -signal.SIGKILL
            child.close()
        assert sorted(os.listdir("/proc/self/fd")) == before

    run(main())


def test_how_a_child_ended_is_told(run, pipe) -> None:
    async def main() -> None:
        child = start("fail", pipe[1])
        assert child.returncode is None
        assert await asyncio.gather(child.exited(), child.exited()) == [3, 3]
        child.terminate()
        child.kill()
        assert await child.stop(0) == 3

    run(main())


def test_who_stops_waiting_for_a_child_does_not_disturb_others(run, pipe) -> None:
    async def main() -> None:
        child = start("wait", pipe[1])
        first, second = asyncio.create_task(child.exited()), asyncio.create_task(child.exited())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        child.kill()
        assert await second == -signal.SIGKILL

    run(main())


def test_stop_lets_a_child_end_by_itself(run, pipe) -> None:
    async def main() -> None:
        assert await start("tell", pipe[1]).stop(10) == 0

    run(main())


@pytest.mark.parametrize(
    ("role", "ended_by"), [("wait", signal.SIGTERM), ("wait_stubbornly", signal.SIGKILL)]
)
def test_stop_ends_a_child_that_does_not(run, pipe, role: str, ended_by: signal.Signals) -> None:
    async def main() -> None:
        child = start(role, pipe[1])
        assert int(await answer_of(pipe[0])) == child.pid
        assert await child.stop(0.01) == -ended_by

    run(main())


def test_a_cancelled_stop_leaves_no_child(run, pipe) -> None:
    async def main() -> None:
        child = start("wait", pipe[1])
        stopping = asyncio.create_task(child.stop(60))
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()
        assert child.returncode == -signal.SIGKILL

    run(main())


def test_close_kills_also_after_the_loop_is_closed(run, pipe) -> None:
    async def main() -> ChildProcess:
        return start("wait", pipe[1])

    child = run(main())
    child.close()
    child.close()
    assert child.returncode == -signal.SIGKILL


def test_what_a_child_started_ends_with_it(run, pipe) -> None:
    async def main() -> None:
        child = start("leave_a_helper", pipe[1])
        assert await child.exited() == 0
        assert ended_within(int(await answer_of(pipe[0])), 5)

    run(main())


def test_no_signal_handler_is_installed_in_the_host(run, pipe) -> None:
    async def main() -> None:
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        await start("tell", pipe[1]).stop(10)
        assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers

    run(main())


def test_an_unclosed_child_warns_and_is_killed(pipe) -> None:
    async def main() -> ChildProcess:
        return start("wait", pipe[1])

    child = asyncio.run(main())
    with pytest.warns(ResourceWarning, match="unclosed child process process_peers"):
        child.__del__()
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_cannot_start_is_a_typed_error_and_leaves_nothing(run, monkeypatch, pipe) -> None:
    async def main() -> None:
        before = sorted(os.listdir("/proc/self/fd"))
        for executable in ("/no/such/python", ""):
            monkeypatch.setattr(sys, "executable", executable)
            with pytest.raises(StartFailed) as caught:
                start("tell", pipe[1], name="worker 3")
            assert caught.value.process == "worker 3"
        assert sorted(os.listdir("/proc/self/fd")) == before

    run(main())


def test_a_configuration_is_missing_in_a_process_that_is_no_child() -> None:
    with pytest.raises(SystemExit, match="started by a swarm"):
        read_config()


PARENT = """
import asyncio, os, sys, time
sys.path[:0] = [{folder!r}, {library!r}]
import msgspec
from swarmkv.swarm.process import spawn

async def main():
    config = {{"answer_fd": 1, "role": {role!r}, "main": None}}
    child = spawn("process_peers", msgspec.msgpack.encode(config))
    time.sleep(600)

asyncio.run(main())
"""


def test_a_child_ends_when_its_parent_is_killed() -> None:
    """Also while user code holds the interpreter lock, and with what the child started."""
    code = PARENT.format(folder=str(FOLDER), library=LIBRARY, role="compute")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, helper = map(int, parent.stdout.readline().split())
        assert os.getpgid(child) == os.getpgid(helper) == child != os.getpgid(parent.pid)
        assert not ended_within(child, 0)
        parent.kill()
        parent.wait()
        killed = time.monotonic()
        assert ended_within(child, 5)
        assert ended_within(helper, 5)
        assert time.monotonic() - killed < 2


SCRIPT = """
import asyncio, os, sys
sys.path[:0] = [{folder!r}, {library!r}]
import msgspec
from swarmkv.swarm.process import main_module_spec, spawn

class Thing:
    value = sys.argv[1]

async def main():
    config = msgspec.msgpack.encode({{"answer_fd": 1, "role": "find_main", "main": main_module_spec()}})
    sys.exit(await spawn("process_peers", config).exited())

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["script", "module", "package", "command"])
def test_the_main_module_of_the_parent_is_found_in_the_child(tmp_path: Path, how: str) -> None:
    code = SCRIPT.format(folder=str(FOLDER), library=LIBRARY)
    (tmp_path / "program").mkdir()
    for place in ("script.py", "program/__main__.py", "program/part.py", "program/__init__.py"):
        (tmp_path / place).write_text("" if "init" in place else code, encoding="utf-8")
    command = {
        "script": ["script.py"],
        "module": ["-m", "program.part"],
        "package": ["-m", "program"],
        "command": ["-c", code],
    }[how]
    done = subprocess.run(
        [sys.executable, *command, "seven"], capture_output=True, text=True, cwd=tmp_path, timeout=30
    )
    assert done.returncode == 0, done.stderr
    seen = msgspec.json.decode(done.stdout)
    assert seen["argv"][1:] == ["seven"]
    if how in ("script", "module"):
        assert (seen["name"], seen["same"], seen["value"]) == ("__mp_main__", True, "seven")
    else:  # a package's __main__.py would run unguarded, and a command has no module
        assert (seen["name"], seen["value"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "path", "importable"),
    [
        ("program.part", None, True),
        ("program.__main__", None, False),
        (None, "script.py", True),
        (None, "/usr/bin/ipython", False),
        (None, None, False),
    ],
)
def test_what_is_no_script_is_not_importable(name: str | None, path: str | None, importable: bool) -> None:
    assert MainModule(name, path, (), ()).importable is importable


def test_a_script_that_another_program_runs_is_found_by_its_path(tmp_path: Path, pipe) -> None:
    script = tmp_path / "review.py"
    script.write_text("class Thing:\n    value = 7\nassert __name__ != '__main__'\n", encoding="utf-8")

    async def main() -> None:
        spec = main_module_spec(script)
        assert (spec.name, spec.path) == (None, str(script))
        child = start("find_main", pipe[1], main=spec)
        assert await child.exited() == 0
        seen = msgspec.json.decode(await answer_of(pipe[0]))
        assert (seen["same"], seen["value"]) == (True, 7)
        assert seen["argv"] == sys.argv

    asyncio.run(main())
