"""From a GGUF file of llama architecture to a Hugging Face folder: bf16 safetensors, tokenizer, configuration.

Everything comes from the GGUF itself, the tokenizer too: one saved elsewhere under another library version may
load as another class, with wrong ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ModelCorrupt

_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def convert_gguf(gguf_file: Path, folder: Path) -> None:
    """Write a Hugging Face model folder.

    Raises: ModelCorrupt if the file is no GGUF of llama architecture with a byte-level BPE tokenizer.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(gguf_file)
        meta = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, OSError) as error:
        raise ModelCorrupt(f"{gguf_file}: no readable GGUF file ({error})") from error
    if meta.get("general.architecture") != "llama" or meta.get("tokenizer.ggml.model") != "gpt2":
        raise ModelCorrupt(f"{gguf_file}: not a llama model with a byte-level BPE tokenizer")
    config = _config(meta)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")
    _write_tokenizer(meta, folder)
    _write_weights(reader, config, folder)


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": meta["llama.vocab_size"],
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.embedding_length"] // heads,
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": round(meta["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": meta["llama.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))  # type: ignore[arg-type]
    # llama.cpp's pre-tokenizer "smollm": every digit alone, then GPT-2's split.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    types = meta["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
    }
    settings = names | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": meta["tokenizer.chat_template"],
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _write_weights(reader: Any, config: dict[str, Any], folder: Path) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in heads:
            values = _unpermuted(values, heads[kind])
        weights[_hf_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _unpermuted(weight: Any, heads: int) -> Any:
    """Rows of a rotary projection in Hugging Face's order: llama.cpp interleaves the two halves of each head."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _hf_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    match name.split("."):
        case ["blk", layer, kind, "weight"] if kind in _NORMS:
            return f"model.layers.{layer}.{_NORMS[kind]}.weight"
        case ["blk", layer, kind, "weight"] if kind in _MATRICES:
            return f"model.layers.{layer}.{_MATRICES[kind]}.weight"
        case _:
            raise ModelCorrupt(f"unexpected tensor {name!r} in the GGUF file")
