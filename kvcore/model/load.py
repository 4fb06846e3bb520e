"""Loading a causal language model: mapped from its files, quiet, with network use only for a hub id."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cache import is_intact
from .dtype import choose_device, choose_dtype
from .embedded import EMBEDDED
from .errors import ModelNotLoadable
from .hub import require_on_hub
from .resolve import resolve

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

# The names that chat models give the token that ends a turn. Not all of them say so in their configuration.
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|return|>",
)


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what its callers need to know of it."""

    model: PreTrainedModel
    """in eval mode, without gradients"""
    tokenizer: PreTrainedTokenizerFast
    config: PreTrainedConfig
    dtype: torch.dtype
    device: torch.device
    eos_ids: frozenset[int]
    """tokens that end an answer"""
    max_positions: int
    """longest sequence, in tokens"""


def load_model(
    model: str | Path,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attn_implementation: str = "sdpa",
) -> LoadedModel:
    """Load weights and tokenizer of an embedded model, a local folder or a Hugging Face id.

    A folder, and an id that is in Hugging Face's cache, need no network. On the CPU and in the dtype of its
    files a model's weights stay mapped from them, shared between processes.

    Raises: ModelSettingInvalid before anything else; ModelUnknown, ModelUnavailable, ModelCorrupt,
            CacheUnusable, ModelNotLoadable.
    """
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device)
    where = resolve(model)
    options = {"dtype": chosen_dtype, "attn_implementation": attn_implementation}
    with _quiet(), _typed_failures(os.fspath(model)):
        loaded, tokenizer = _read_anywhere(where, options)
        loaded = loaded.to(chosen_device).eval().requires_grad_(False)
        return LoadedModel(
            model=loaded,
            tokenizer=tokenizer,
            config=loaded.config,
            dtype=chosen_dtype,
            device=chosen_device,
            eos_ids=_eos_ids(loaded, tokenizer),
            max_positions=_max_positions(loaded.config),
        )


def _read_anywhere(where: Path | str, options: dict[str, Any]) -> tuple[Any, Any]:
    if isinstance(where, Path):
        return _read(where, options, local=True)
    try:
        return _read(where, options, local=True)  # in Hugging Face's cache
    except OSError:
        require_on_hub(where, tuple(EMBEDDED))
        return _read(where, options, local=False)


def _read(where: Path | str, options: dict[str, Any], *, local: bool) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    # An embedded model's tokenizer.json is read as it stands: a class guessed from model_type may change ids.
    ours = isinstance(where, Path) and is_intact(where)
    tokenizers: Any = PreTrainedTokenizerFast if ours else AutoTokenizer
    common = {"local_files_only": local, "trust_remote_code": False}
    tokenizer = tokenizers.from_pretrained(where, **common)
    if not tokenizer.is_fast:
        raise ValueError("it has no fast tokenizer")
    models: Any = AutoModelForCausalLM
    loaded, found = models.from_pretrained(where, output_loading_info=True, **common, **options)
    missing = sorted(found["missing_keys"])
    if missing:  # transformers would go on with random numbers in their place
        raise ValueError(f"its files lack {len(missing)} weights, the first of them {missing[0]}")
    return loaded, tokenizer


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    added = tokenizer.get_added_vocab()
    found = [tokenizer.eos_token_id, model.config.get_text_config().eos_token_id]
    found += [added.get(name) for name in _END_OF_TURN]
    if model.generation_config is not None:
        found.append(model.generation_config.eos_token_id)
    flat = [one for entry in found for one in (entry if isinstance(entry, list) else [entry])]
    return frozenset(one for one in flat if one is not None)


def _max_positions(config: Any) -> int:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int):
        raise ValueError("its configuration has no max_position_embeddings")
    return positions


@contextlib.contextmanager
def _typed_failures(model: str) -> Iterator[None]:
    import torch
    from safetensors import SafetensorError

    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelNotLoadable(model, lines[0]) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars or advice on stderr while a model loads; afterwards everything is as it was."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
