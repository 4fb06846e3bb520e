"""Loading a causal language model: the embedded one, a local folder, or a Hugging Face id."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .dtype import choose_dtype
from .embedded import EMBEDDED, pull
from .errors import ModelError, ModelUnavailable, ModelUnknown

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what its callers need to know of it."""

    model: Any
    """transformers.PreTrainedModel, in eval mode, without gradients"""
    tokenizer: Any
    """transformers.PreTrainedTokenizerFast"""
    config: Any
    dtype: torch.dtype
    device: str
    eos_ids: frozenset[int]
    """tokens that end an answer"""
    max_positions: int
    """longest sequence, in tokens"""


def resolve(model: str | Path) -> Path | str:
    """Where a model's files are: a folder, or a Hugging Face id. An embedded model is pulled if it is missing.

    Raises: ModelUnknown, ModelUnavailable, ModelCorrupt.
    """
    name = str(model)
    if name in EMBEDDED:
        return pull(name)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelUnknown(name, "the folder has no config.json")
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelUnknown(name, "there is no such folder")
    if "/" not in name:
        return pull(name)  # raises ModelUnknown with the nearest embedded name
    return name


def load_model(
    model: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attn_implementation: str = "sdpa",
) -> LoadedModel:
    """Load weights (memory-mapped) and tokenizer. Local folders need no network.

    Raises: ModelUnknown, ModelUnavailable, ModelCorrupt, ModelError for an unknown dtype.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = resolve(model)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = choose_dtype(dtype, device)
    local = isinstance(where, Path)
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=local)
            loaded = AutoModelForCausalLM.from_pretrained(
                where, dtype=chosen, local_files_only=local, attn_implementation=attn_implementation
            )
    except OSError as error:
        raise ModelUnavailable(str(model), _first_line(error)) from error
    except ValueError as error:
        raise ModelError(f"model {str(model)!r} does not load: {_first_line(error)}") from error
    loaded.to(device).eval().requires_grad_(False)
    config = loaded.config
    return LoadedModel(
        model=loaded,
        tokenizer=tokenizer,
        config=config,
        dtype=chosen,
        device=device,
        eos_ids=_eos_ids(loaded, tokenizer),
        max_positions=config.get_text_config().max_position_embeddings,
    )


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids = [tokenizer.eos_token_id, model.config.get_text_config().eos_token_id]
    if model.generation_config is not None:
        ids.append(model.generation_config.eos_token_id)
    flat = [i for entry in ids for i in (entry if isinstance(entry, list) else [entry])]
    return frozenset(i for i in flat if i is not None)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars or advice on stderr while a model loads."""
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
