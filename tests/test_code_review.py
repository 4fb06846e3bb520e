"""The code review of `examples/`: bad input is a sentence, the gate tells true from false, and long runs stay small."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from swarmkv.agents import AttemptKey, Context, Message
from swarmkv.agents.backends import ScriptedBackend
from swarmkv.swarm import Swarm
from swarmkv.verify import Verdict

SCRIPT = Path(__file__).parents[1] / "examples" / "code_review.py"
COMMAND = Path(sys.executable).with_name("swarmkv")
SENTENCE = "Keeps the accounts of a small shop in order."
SOURCE = '''
import os

class Till:
    """A till.

    It holds money.
    """

    def put(self, coins: int) -> int:
        """Put coins in."""
        if coins < 0:
            raise ValueError(coins)
        self.coins += coins
        return self.coins

def total(tills):
    return sum(till.coins for till in tills)

def _secret():
    pass
'''


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_review", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["code_review"] = module  # so that its agents are found by name
    spec.loader.exec_module(module)
    return module


example: Any = load_example()


def review(*args: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "run", SCRIPT, *args], capture_output=True, text=True, timeout=300, check=False, **settings
    )


def write(folder: Path, **modules: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, source in modules.items():
        data = source if isinstance(source, bytes) else source.encode()
        (folder / f"{name}.py").write_bytes(data)
    return folder


# Bad input


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["missing"], "there is no such file or folder"),
        (["empty"], "no Python file in this folder"),
        (["notes.txt"], "not a Python file"),
        (["broken"], "nothing to review"),
        (["shop", "--report"], "--report has no value"),
        (["shop", "--reprot", "x"], "--reprot"),
        (["shop", "--body-lines", "-1"], "--body-lines"),
        (["shop", "--report", "missing/report.md"], "cannot be written there"),
        (["shop", "--kv-budget", "lots"], "kv_budget"),
        (["shop", "--workers", "0"], "workers"),
    ],
)
def test_what_cannot_be_reviewed_is_one_sentence(tmp_path: Path, given: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no Python")
    write(tmp_path / "broken", a="def (")
    write(tmp_path / "shop", a=SOURCE)
    done = review(*given, cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "code_review.md").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\ndef (\n", r"no valid Python in line 2: .*"),
        (b"\x00\x01\x02 = \xff\xfe", r"not text in UTF-8 \(byte \d+\)"),
        (b"x = 1\x00", r"no valid Python.*"),
        ("x = " + "(" * 5_000, r"no valid Python.*"),
        ("x = " + "-" * 100_000 + "1", r"no valid Python.*"),
        ("x = 1\n", "it defines no class and no function"),
        ("", "it defines no class and no function"),
    ],
)
def test_a_module_that_cannot_be_read_is_named_and_the_others_go_on(
    tmp_path: Path, source: str | bytes, said: str
) -> None:
    items, skipped = example.read_package(write(tmp_path / "shop", bad=source, good=SOURCE), 4)
    assert [name for name, _ in items] == ["shop.good"]
    assert [skip.module for skip in skipped] == ["shop.bad"]
    assert re.fullmatch(said, skipped[0].reason), skipped[0].reason


def test_links_that_lead_nowhere_and_folders_named_like_modules_are_no_modules(tmp_path: Path) -> None:
    folder = write(tmp_path / "shop", good=SOURCE)
    (folder / "lost.py").symlink_to(tmp_path / "nowhere")
    (folder / "folder.py").mkdir()
    items, skipped = example.read_package(folder, 4)
    assert ([name for name, _ in items], skipped) == (["shop.good"], [])


@pytest.mark.parametrize("body_lines", [0, 4])
def test_a_module_longer_than_the_context_is_read_in_parts(tmp_path: Path, body_lines: int) -> None:
    functions = "\n".join(f"def f{i}(a, b):\n    return a + b * {i}\n" for i in range(2_000))
    table = "TABLE = " + repr("x" * 50_000) + "\n"
    items, _ = example.read_package(write(tmp_path / "shop", long=f"{functions}\n{table}"), body_lines)
    assert len(items) > 10
    assert all(len(task["text"]) <= example.PART_CHARS for _, task in items)
    together = "\n".join(task["text"] for _, task in items)
    assert all(f"def f{i}(a, b):" in together for i in range(2_000))
    assert len({name for name, _ in items}) == len(items)


# What is read


def test_condensed_source_keeps_signatures_and_the_first_lines() -> None:
    tree = example.Condense(3).visit(ast.parse(SOURCE))
    text = ast.unparse(ast.fix_missing_locations(tree))
    assert "It holds money" not in text
    assert '"""A till."""' in text
    assert "def put(self, coins: int) -> int:" in text
    assert "raise ValueError(coins)" in text
    assert "self.coins += coins" not in text
    assert "..." in text
    assert "return sum(" in text


def test_a_modules_symbols_are_the_public_ones_outer_ones_first() -> None:
    assert list(example.module_symbols(ast.parse(SOURCE)).items()) == [
        ("Till", "class"),
        ("total", "function"),
        ("put", "function"),
    ]
    assert example.module_symbols(ast.parse("def _only(): pass")) == {"_only": "function"}


# The gate


def task(**changes: Any) -> dict[str, Any]:
    return {
        "module": "shop.till",
        "part": "",
        "text": SOURCE,
        "symbols": {"Till": "class", "total": "function"},
    } | changes


async def judge(**changes: str) -> Verdict[Any]:
    """The verdict on a finding that is right but for the changes."""
    finding = {"module": "shop.till", "symbol": "Till", "kind": "class", "purpose": SENTENCE} | changes
    return await example.reader.gate.judge(json.dumps(finding), Context(input=task()))


async def test_a_true_finding_is_accepted() -> None:
    assert (await judge()).accepted
    assert (await judge(symbol="total", kind="function")).accepted


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"module": "shop"}, "module", "shop.till"),
        ({"symbol": "Tills"}, "symbol", "class Till, function total"),
        ({"symbol": "put"}, "symbol", "there is no put"),
        ({"kind": "function"}, "kind", "Till is a class"),
        ({"purpose": "Is the till of the shop, it is a class."}, "purpose", "beyond repeating its name"),
        (
            {"purpose": "Reads JSON text and turns it into dicts, lists and numbers."},
            "purpose",
            "do not copy",
        ),
        (
            {"purpose": "Counts coins all day, counts coins all day, counts coins all day."},
            "purpose",
            "do not repeat yourself",
        ),
    ],
)
async def test_a_false_finding_is_rejected_with_the_truth(
    changes: dict[str, str], path: str, said: str
) -> None:
    verdict = await judge(**changes)
    assert [reason.path for reason in verdict.reasons] == [path]
    assert said in verdict.reasons[0].message


async def test_a_rejected_model_is_shown_the_symbols_in_the_form_of_its_answer() -> None:
    verdict = await judge(symbol="Tills", purpose="Is the till of the shop, it is a class.")
    shown = example.show_symbols(verdict, Context(input=task()))
    assert "beyond repeating its name" in shown
    assert "Tills" not in shown
    assert '{"module":"shop.till","symbol":"total","kind":"function"}' in shown


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({}, "", ""),
        ({"package": "shop.till"}, "package", "The package is named shop"),
        ({"summary": "Amycrypto trains neural networks for bright image pipelines."}, "summary", "amycrypto"),
    ],
)
async def test_an_overview_speaks_of_what_the_readers_found(
    changes: dict[str, str], path: str, said: str
) -> None:
    overview = {"package": "shop", "summary": "Keeps the accounts and counts the coins of a shop."} | changes
    findings = [f"shop.till: {SENTENCE}", "shop.total: Counts the coins of all tills."]
    ctx = Context(input={"package": "shop", "findings": findings})
    verdict = await example.reporter.gate.judge(json.dumps(overview), ctx)
    assert [reason.path for reason in verdict.reasons] == [path] * (not verdict.accepted)
    assert verdict.accepted == (not changes)
    assert said in "".join(reason.message for reason in verdict.reasons)


async def test_a_folder_may_be_named_with_anything(tmp_path: Path) -> None:
    items, _ = example.read_package(write(tmp_path / "my-größe 2", till=SOURCE), 4)
    [(task_id, given)] = items
    assert task_id == "my-größe 2.till"
    finding = {"module": given["module"], "symbol": "Till", "kind": "class", "purpose": SENTENCE}
    assert (await example.reader.gate.judge(json.dumps(finding), Context(input=given))).accepted


# Whole runs


def answer(_: AttemptKey, messages: Sequence[Message]) -> str:
    """A true finding about whatever module is asked for."""
    asked = re.search(r"Module (shop\S+):\n```python\n(?:def|class) (\w+)", messages[-1].content)
    if asked is None:
        return json.dumps({"package": "shop", "summary": SENTENCE})
    return json.dumps({"module": asked[1], "symbol": asked[2], "kind": "function", "purpose": SENTENCE})


async def test_a_package_of_2000_modules_is_read_in_bounded_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "    value = 1\n" * 400
    modules = {f"m{i}": f"def work_{i}():\n{body}    return value\n" for i in range(2_000)}
    process = psutil.Process()
    before = process.memory_info().rss
    items, skipped = example.read_package(write(tmp_path / "shop", **modules), 4)
    async with Swarm(
        backend=ScriptedBackend(answer), isolation="inline", workers=4, tasks_per_worker=4
    ) as swarm:
        pursuit = await example.review(swarm, "shop", items)
    grown = process.memory_info().rss - before
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("✓ shop.m") for line in lines) == 2_000
    assert "2000 (100%)" in example.summarise(pursuit, skipped, 1.0)
    assert example.write_report("shop", pursuit, skipped).count("function `work_") == 2_000
    assert grown < 300 * 2**20


@pytest.fixture
def small_package(tmp_path: Path) -> Path:
    modules = {f"till{i}": f"def total_{i}(coins):\n    return sum(coins) + {i}\n" for i in range(12)}
    return write(tmp_path / "shop", **modules)


@contextmanager
def running_review(package: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A review that has begun, in a process group of its own, and its child processes. In the end none may be left."""
    with subprocess.Popen(
        [COMMAND, "run", SCRIPT, package, "--workers", "2", "--kv-budget", "256MiB"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        cwd=package.parent,
    ) as process:
        assert process.stdout is not None
        assert all(process.stdout.readline() for _ in range(2)), process.communicate()[1]
        children = psutil.Process(process.pid).children(recursive=True)
        yield process, children
        _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_a_review_survives_a_killed_worker(embedded_model: Path, small_package: Path) -> None:
    with running_review(small_package) as (process, children):
        next(child for child in children if "swarmkv.swarm.worker" in child.cmdline()).kill()
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "12 in 12 tasks" in out
    assert (small_package.parent / "code_review.md").read_text().startswith("# Review of shop")


def test_an_interrupted_review_leaves_no_process_and_no_traceback(
    embedded_model: Path, small_package: Path
) -> None:
    with running_review(small_package) as (process, _):
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--kv-budget", "64KiB", "raise kv_budget to at least"), ("--model", "no-such-model", "no-such-model")],
)
def test_what_the_engine_cannot_load_is_one_sentence(
    embedded_model: Path, small_package: Path, option: str, value: str, said: str
) -> None:
    done = review(small_package, option, value, cwd=small_package.parent)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
