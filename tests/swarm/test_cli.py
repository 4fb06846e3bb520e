from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

FOLDER = Path(__file__).parent
COMMAND = str(Path(sys.executable).with_name("swarmkv"))

SCRIPT = f"""
import asyncio, sys
sys.path.append({str(FOLDER)!r})
from swarm_agents import Answer, answer
from swarmkv.agents import Agent
from swarmkv.agents.backends.scripted import ScriptedBackend
from swarmkv.swarm import Swarm

mine = Agent("mine", "Answer.", output=Answer)
sys.stderr.write(f"imported as {{__name__}}\\n")

async def main(word: str, hold: str = "") -> None:
    backend = ScriptedBackend([answer(word)], delay=asyncio.Event().wait if hold else None)
    async with Swarm(workers=2, backend=backend) as swarm:
        running = asyncio.ensure_future(swarm.run(mine, "go"))
        if hold:
            while not backend.calls:
                await asyncio.sleep(0.001)
            print(*swarm.pids().values(), flush=True)
        print((await running).require().text)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT, encoding="utf-8")
    return file


def swarmkv(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=30)


def test_run_finds_the_scripts_agents_in_the_workers(script: Path) -> None:
    done = swarmkv("run", script, "seven")
    assert (done.returncode, done.stdout) == (0, "seven\n"), done.stderr
    # Once here and once in each worker, never under the name that would run a script's own main.
    assert done.stderr == "imported as __mp_main__\n" * 3


def test_a_script_gets_arguments_that_look_like_options(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("async def main(*args): print(args)", encoding="utf-8")
    done = swarmkv("run", file, "--flag", "-x", "1")
    assert (done.returncode, done.stdout) == (0, "('--flag', '-x', '1')\n")


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (None, (), "there is no such script"),
        ("def main(): pass", (), "it defines no `async def main(...)`"),
        ("x = 1", (), "it defines no `async def main(...)`"),
        ("async def main(path): pass", (), "missing a required argument: 'path'"),
        ("async def main(path): pass", ("a", "b"), "too many positional arguments"),
        ("async def main(:\n    pass", (), "line 1"),
        ("x = '\0'", (), "null bytes"),
    ],
)
def test_a_script_that_cannot_run_is_one_line(
    tmp_path: Path, code: str | None, arguments: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "script.py"
    if code is not None:
        file.write_text(code, encoding="utf-8")
    done = swarmkv("run", file, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"swarmkv: {file}: ")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("Swarm(wokers=2)", "did you mean 'workers'?"),
        ("await Swarm().run(Agent('a', 'Answer.', output=str), 1)", "this swarm is not open"),
        ("Agent('a b', 'Answer.', output=str)", "letters, digits"),
    ],
)
def test_a_users_mistake_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    file = tmp_path / "script.py"
    imports = "from swarmkv.swarm import Swarm\nfrom swarmkv.agents import Agent\n"
    file.write_text(f"{imports}async def main():\n    {body}\n", encoding="utf-8")
    done = swarmkv("run", file)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert said in done.stderr


def test_a_mistake_at_the_top_of_a_script_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "from swarmkv.agents import Agent\nAgent('a b', 'Answer.', output=str)\n", encoding="utf-8"
    )
    done = swarmkv("run", file)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "letters, digits" in done.stderr


def test_an_interrupt_ends_all_quietly(script: Path) -> None:
    with subprocess.Popen(
        [COMMAND, "run", script, "word", "hold"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        assert running.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in running.stdout.readline().split()]
        assert len(workers) == 2
        os.killpg(running.pid, signal.SIGINT)
        said = running.communicate(timeout=10)[1]
        gone, alive = psutil.wait_procs(workers, timeout=2)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert "interrupted" in said
    assert len(gone) == 2, alive


def test_help_and_version_need_no_model() -> None:
    assert "run" in swarmkv("--help").stdout
    assert swarmkv("version").stdout.count(".") >= 2
