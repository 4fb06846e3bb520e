"""From a GGUF file of the llama architecture to a Hugging Face model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelCorrupt
from .tokenizer import write_tokenizer

if TYPE_CHECKING:
    import numpy as np
    import torch

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_TENSORS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, the tokenizer and bfloat16 model.safetensors into `folder`.

    Raises: ModelCorrupt if the file is no GGUF of a tied llama model with a "smollm" tokenizer; a part of the
            files may be in `folder` then.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError) as error:
        raise _unexpected(gguf, str(error)) from error
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    _check(gguf, metadata)
    for name, settings in (("config", _config(metadata)), ("generation_config", _generation(metadata))):
        (folder / f"{name}.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    write_tokenizer(metadata, folder)
    _write_weights(gguf, reader.tensors, metadata, folder / "model.safetensors")


def _check(gguf: Path, metadata: dict[str, Any]) -> None:
    for name, expected in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        if metadata.get(name) != expected:
            raise _unexpected(gguf, f"{name} is {metadata.get(name)!r}, not {expected!r}")


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    heads = metadata["llama.attention.head_count"]
    width = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": width,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": float(
            f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"
        ),  # stored in float32
        "rope_parameters": {"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        **_generation(metadata),
    }


def _generation(metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{ours}_token_id": metadata[f"tokenizer.ggml.{theirs}_token_id"]
        for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }


def _write_weights(gguf: Path, tensors: list[Any], metadata: dict[str, Any], path: Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }
    weights: dict[str, torch.Tensor] = {}
    for tensor in tensors:
        part = tensor.name.split(".")[-2]
        weight = dequantize(tensor.data, tensor.tensor_type)
        if part in heads:
            weight = _unpermute(weight, heads[part])
        weights[_name(gguf, tensor.name)] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
    save_file(weights, path, metadata={"format": "pt"})


def _name(gguf: Path, name: str) -> str:
    """llama.cpp's name of a tensor as Hugging Face's."""
    if name in _MODEL_TENSORS:
        return _MODEL_TENSORS[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_TENSORS:
            return f"model.layers.{layer}.{_LAYER_TENSORS[part]}.weight"
    raise _unexpected(gguf, f"it has a tensor {name!r}")


def _unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's order of a head's rows, which interleaves the two halves that RoPE rotates.

    Shapes: weight and result [heads * head_dim, width].
    Source: llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute.
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _unexpected(gguf: Path, reason: str) -> ModelCorrupt:
    return ModelCorrupt(gguf, reason, "only the GGUF files of embedded models are converted")
