"""Real processes that die, do not start, or must be gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import swarm_agents as agents
from swarm_agents import answer, call, output

from swarmkv.agents import AttemptKey
from swarmkv.agents.backends.scripted import ScriptedBackend
from swarmkv.swarm import Event, StartFailed, Swarm
from swarmkv.swarm.messages import WorkerReady
from swarmkv.swarm.process import MainModule
from swarmkv.swarm.worker_process import WorkerProcess

OpenSwarm = Callable[..., Swarm]
FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Exactly the descriptors that were open before a test are open after it."""
    asyncio.run(asyncio.sleep(0))  # whose first use opens some for good
    before = descriptors()
    yield
    assert descriptors() == before


def descriptors() -> dict[str, str]:
    """Open descriptors and what they are, by number."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def worker_of(swarm: Swarm, event: Event) -> int:
    """The process that an attempt was dispatched to."""
    assert event.kind == "dispatched"
    return swarm.pids()[event.text]


async def calls(backend: ScriptedBackend, number: int) -> None:
    """Wait until the backend was called so often."""
    while len(backend.calls) < number:
        await asyncio.sleep(0.001)


# Workers that die


async def test_a_killed_workers_task_goes_to_another_worker(process_swarm: OpenSwarm) -> None:
    words = asyncio.Semaphore(1)

    async def next_word() -> None:
        await words.acquire()

    backend = ScriptedBackend(["nonsense", answer("never"), answer("done")], delay=next_word)
    events: list[Event] = []
    async with process_swarm(backend=backend, workers=2) as swarm:
        running = asyncio.ensure_future(swarm.run(agents.plain, "go", on_event=events.append))
        await calls(backend, 2)
        killed = worker_of(swarm, events[-1])
        os.kill(killed, signal.SIGKILL)
        await calls(backend, 3)
        assert worker_of(swarm, events[-1]) != killed
        words.release()
        outcome = await running
    assert outcome.require().text == "done"
    assert [event.kind for event in events] == [
        "dispatched",
        "rejected",
        "dispatched",
        "lost",
        "dispatched",
        "committed",
    ]
    # The lost attempt does not count, and what the gate said before it is not forgotten.
    assert [event.attempt for event in events] == [1, 1, 2, 2, 2, 2]
    assert [key.attempt for key, _ in backend.calls] == [1, 2, 2]
    assert "rejected" in backend.calls[2][1][-1].content
    assert [attempt.number for attempt in outcome.attempts] == [1, 2]
    assert not backend._branches


async def test_a_tool_that_kills_its_worker_once_costs_no_attempt(
    process_swarm: OpenSwarm, tmp_path: Path
) -> None:
    mark = str(tmp_path / "mark")
    replies = [call("kill_worker_once", mark=mark)] * 2 + [output("alive again")]
    async with process_swarm(backend=ScriptedBackend(replies)) as swarm:
        first = swarm.pids()["worker 0"]
        outcome = await swarm.run(agents.deadly_once, "go")
        assert swarm.pids()["worker 0"] != first
    assert outcome.require().text == "alive again"
    assert len(outcome.attempts) == 1


async def test_poisonous_tasks_fail_and_the_swarm_lives_on(process_swarm: OpenSwarm) -> None:
    """However many of them there are: a swarm gives up on workers only if they die without a task."""

    def script(key: AttemptKey, messages: Any) -> str:
        return answer("fine") if messages[1].content == "good" else call("kill_worker")

    backend = ScriptedBackend(script)
    async with process_swarm(backend=backend, max_losses=2) as swarm:
        outcomes = await swarm.map(agents.deadly, ["bad"] * 4)
        assert (await swarm.run(agents.plain, "good")).accepted
    for outcome in outcomes:
        assert not outcome.accepted
        assert outcome.reason == "poisonous: 2 times its worker died while it ran"
        assert len(outcome.attempts) == 1
    assert not backend._branches


async def test_tasks_that_wait_for_room_in_the_ring_survive_their_worker(process_swarm: OpenSwarm) -> None:
    started: list[str] = []

    def listener(event: Event) -> None:
        if event.kind == "dispatched":
            started.append(event.task)

    inputs = [letter * 20_000 for letter in "abcdef"]
    settings = {"ring_bytes": 2**16, "tasks_per_worker": len(inputs)}
    async with process_swarm(
        backend=ScriptedBackend(lambda key, messages: answer("ok!")), **settings
    ) as swarm:
        os.kill(swarm.pids()["worker 0"], signal.SIGSTOP)
        running = asyncio.ensure_future(swarm.map(agents.plain, inputs, on_event=listener))
        while len(started) < len(inputs):
            await asyncio.sleep(0.001)
        os.kill(swarm.pids()["worker 0"], signal.SIGKILL)
        assert all(outcome.accepted for outcome in await running)
    assert len(started) == 2 * len(inputs)


async def test_an_idle_worker_that_dies_is_replaced(process_swarm: OpenSwarm) -> None:
    async with process_swarm(backend=ScriptedBackend([answer("fine")])) as swarm:
        first = swarm.pids()["worker 0"]
        os.kill(first, signal.SIGKILL)
        while swarm.pids().get("worker 0", first) == first:
            await asyncio.sleep(0.001)
        assert (await swarm.run(agents.plain, "go")).accepted


# Swarms that do not start


def script_main(folder: Path, code: str) -> MainModule:
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    return MainModule(None, str(script), tuple(sys.path), (str(script),))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_package", "importing the agents' module: ModuleNotFoundError: No module named"),
        ("raise SystemExit('usage: script FILE')", "SystemExit: usage: script FILE"),
        ("import os; os._exit(7)", "its process ended with 7"),
        ("import time; time.sleep(60)", "it was not ready after 1 s"),
    ],
)
async def test_a_worker_that_does_not_start_is_told_and_nothing_is_left(
    process_swarm: OpenSwarm, tmp_path: Path, code: str, said: str
) -> None:
    settings = {"start_timeout_s": 1, "stop_grace_s": 0.01} if "sleep" in code else {}
    swarm = process_swarm(
        backend=ScriptedBackend([]), workers=2, main=script_main(tmp_path, code), **settings
    )
    with pytest.raises(StartFailed, match=re.escape(said)) as caught:
        await swarm.__aenter__()
    assert caught.value.process in ("worker 0", "worker 1")
    assert children() == []


async def test_a_worker_that_dies_while_another_starts_fails_the_start(
    process_swarm: OpenSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
import pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
try:
    (folder / "first").touch(exist_ok=False)
except FileExistsError:
    while not (folder / "go").exists():
        time.sleep(0.005)
"""
    ready: asyncio.Queue[int] = asyncio.Queue()
    receive = WorkerProcess._receive

    def watched(self: WorkerProcess, message: Any) -> None:
        receive(self, message)
        if isinstance(message, WorkerReady):
            ready.put_nowait(message.pid)

    monkeypatch.setattr(WorkerProcess, "_receive", watched)
    swarm = process_swarm(backend=ScriptedBackend([]), workers=2, main=script_main(tmp_path, code))
    starting = asyncio.ensure_future(swarm.__aenter__())
    first = await ready.get()
    os.kill(first, signal.SIGKILL)
    while psutil.pid_exists(first):
        await asyncio.sleep(0.001)
    (tmp_path / "go").touch()
    with pytest.raises(StartFailed, match="died while the others came up"):
        await starting
    assert children() == []


async def test_a_python_that_cannot_be_started_leaves_nothing(
    process_swarm: OpenSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    for settings in ({"backend": ScriptedBackend([])}, {}):
        with pytest.raises(StartFailed, match="No such file"):
            await process_swarm(workers=2, **settings).__aenter__()


async def test_too_few_descriptors_leave_nothing(process_swarm: OpenSwarm) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for room in (3, 12, 20, 45):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + room, hard))
        try:
            with pytest.raises(StartFailed, match="Too many open files"):
                await process_swarm(workers=6, backend=ScriptedBackend([])).__aenter__()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert children() == []


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_cancelled_start_leaves_nothing(process_swarm: OpenSwarm, turns: int) -> None:
    starting = asyncio.ensure_future(process_swarm(workers=2, backend=ScriptedBackend([])).__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children() == []


# Swarms that end


async def test_after_the_block_nothing_is_left(process_swarm: OpenSwarm) -> None:
    before = descriptors()
    async with process_swarm(
        workers=2, backend=ScriptedBackend(lambda key, messages: answer("fine"))
    ) as swarm:
        assert len(children()) == 2
        await swarm.map(agents.plain, ["go"] * 5)
    assert children() == []
    assert descriptors() == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_after_an_exception_nothing_is_left(process_swarm: OpenSwarm) -> None:
    before = descriptors()

    async def body() -> None:
        async with process_swarm(backend=ScriptedBackend([answer("fine")])) as swarm:
            await swarm.run(agents.plain, "go")
            raise LookupError

    with pytest.raises(LookupError):
        await body()
    assert children() == []
    assert descriptors() == before


async def test_after_a_cancellation_nothing_is_left(process_swarm: OpenSwarm) -> None:
    before = descriptors()
    backend = ScriptedBackend([answer("fine")], delay=asyncio.Event().wait)

    async def body() -> None:
        async with process_swarm(backend=backend) as swarm:
            await swarm.run(agents.plain, "go")

    running = asyncio.ensure_future(body())
    await calls(backend, 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert children() == []
    assert descriptors() == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_worker_that_does_not_listen_is_ended_within_the_grace(process_swarm: OpenSwarm) -> None:
    async with process_swarm(backend=ScriptedBackend([]), stop_grace_s=0.1) as swarm:
        os.kill(swarm.pids()["worker 0"], signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert children() == []


SCRIPT = """
import asyncio, sys
sys.path.append({folder!r})
import swarm_agents as agents
from swarmkv.agents.backends.scripted import ScriptedBackend
from swarmkv.swarm import Swarm

async def main():
    backend = ScriptedBackend([agents.answer("never")], delay=asyncio.Event().wait)
    async with Swarm(workers=2, backend=backend) as swarm:
        running = asyncio.ensure_future(swarm.run(agents.plain, "go"))
        while not backend.calls:
            await asyncio.sleep(0.001)
        print(*swarm.pids().values(), flush=True)
        await running

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_workers_end_when_the_application_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "application.py"
    script.write_text(SCRIPT.format(folder=str(FOLDER)), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as application:
        assert application.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in application.stdout.readline().split()]
        assert len(workers) == 2
        application.kill()
        application.wait()
        gone, alive = psutil.wait_procs(workers, timeout=2)
    assert len(gone) == 2, alive
