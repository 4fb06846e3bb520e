"""The direction of imports: swarm -> agents -> verify, kvcore; relative in the library; no torch at start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("swarm", "agents", "verify", "kvcore")
ALLOWED = {
    "swarm": {"swarm", "agents", "verify", "kvcore"},
    "agents": {"agents", "verify"},
    "verify": {"verify"},
    "kvcore": {"kvcore"},
}
# The files of agents' local backend, which alone reaches kvcore. The second names its types only.
LOCAL_BACKEND = {"agents/backends/local.py", "agents/backends/branches.py"}
FILES = sorted(str(file.relative_to(ROOT)) for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def problems(path: str, source: str) -> list[str]:
    """What the imports of a library file do against the rules, a line each."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            found += [f"line {node.lineno}: {why}" for why in _relative_problems(path, node)]
            continue
        else:
            continue
        found += [
            f"line {node.lineno}: {module} is ours; import it relatively"
            for module in modules
            if module.split(".")[0] in {"swarmkv", *PACKAGES}
        ]
    return found


def _relative_problems(path: str, node: ast.ImportFrom) -> list[str]:
    folders = list(Path(path).parent.parts)
    climbed = node.level - 1
    if climbed > len(folders):
        return ["it climbs out of the library"]
    base = [*folders[: len(folders) - climbed], *(node.module or "").split(".")]
    base = [part for part in base if part]
    targets = {base[0]} if base else {alias.name for alias in node.names}
    allowed = ALLOWED[folders[0]] | ({"kvcore"} if path in LOCAL_BACKEND else set())
    return [f"{folders[0]} may not import {target}" for target in sorted(targets - allowed)]


@pytest.mark.parametrize("path", FILES)
def test_a_file_imports_downwards_and_relatively(path: str) -> None:
    assert problems(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("verify/gate.py", "from ..agents import Agent"),
        ("verify/gate.py", "from .. import kvcore"),
        ("kvcore/model/load.py", "from ...verify.gate import Gate"),
        ("kvcore/pool.py", "def late():\n    from ..swarm import Swarm"),
        ("agents/agent.py", "from ..kvcore import Pool"),
        ("agents/backends/http.py", "from ...kvcore.model import load_model"),
        ("agents/backends/local.py", "from ...swarm import Swarm"),
        ("swarm/swarm.py", "import swarmkv.verify"),
        ("swarm/swarm.py", "from verify import Gate"),
        ("swarm/swarm.py", "from ...outside import thing"),
    ],
)
def test_the_reader_sees_a_wrong_import(path: str, source: str) -> None:
    assert len(problems(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "swarm/fabric/ring.py",
            "from ...kvcore import PageTable\nfrom ..errors import SwarmError\nimport msgspec",
        ),
        ("swarm/swarm.py", "from .. import agents, verify"),
        (
            "agents/agent.py",
            "from ..verify import Gate\nfrom .message import Message\nfrom . import backends",
        ),
        ("agents/backends/local.py", "def load():\n    from ...kvcore.model import load_model"),
        ("kvcore/model/load.py", "from ..packed_linear import PackedLinear\nimport torch"),
    ],
)
def test_the_reader_accepts_a_right_import(path: str, source: str) -> None:
    assert problems(path, source) == []


@pytest.mark.parametrize(
    "module", ["swarmkv.swarm", "swarmkv.agents", "swarmkv.verify", "swarmkv.kvcore.model"]
)
def test_an_import_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    assert _run(code, ROOT.parent).stdout.strip() == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_bare_import_names_the_right_one(package: str) -> None:
    done = _run(f"import {package}", ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert f"swarmkv.{package}" in done.stderr.splitlines()[-1]


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds the library by its namespace folder, from `folder`."""
    path = f"import sys; sys.path.insert(1, {str(ROOT / '.namespace')!r})"
    command = [sys.executable, "-c", f"{path}\n{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
