"""A tiny model in a wheel: the embedded one in a few kilobytes, so that fetching needs no network."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarmkv.kvcore.model.wheel import EmbeddedModel

HEADS, KV_HEADS, HEAD_DIM, LAYERS, FEED_FORWARD = 4, 2, 8, 2, 48
WIDTH = HEADS * HEAD_DIM
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The bytes of ASCII as GPT-2 spells them, and two merges.
TOKENS = [*SPECIAL, *(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "he", "Ġhe"]
MERGES = ["h e", "Ġ he"]


@dataclasses.dataclass(frozen=True)
class TinyModel:
    description: EmbeddedModel
    wheel: Path
    gguf: Path
    weights: dict[str, np.ndarray[Any, Any]]
    """by Hugging Face's names, before the GGUF's permutation"""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    folder = tmp_path_factory.mktemp("tiny")
    gguf = folder / "tiny.gguf"
    weights = write_gguf(gguf)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    write_wheel(wheel, gguf)
    description = EmbeddedModel(
        name="tiny",
        project="tiny-model",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
    )
    return TinyModel(description, wheel, gguf, weights)


@pytest.fixture(scope="session")
def gguf_writer() -> Callable[..., dict[str, np.ndarray[Any, Any]]]:
    return write_gguf


def write_wheel(wheel: Path, gguf: Path) -> None:
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def write_gguf(
    path: Path, architecture: str = "llama", *, pre: str = "smollm"
) -> dict[str, np.ndarray[Any, Any]]:
    """Write a llama model with random weights as llama.cpp stores it; its weights by Hugging Face's names."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    weights = random_weights()
    for name, weight in weights.items():
        writer.add_tensor(*stored(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def random_weights() -> dict[str, np.ndarray[Any, Any]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (len(TOKENS), WIDTH), "model.norm": (WIDTH,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm": (WIDTH,),
            f"{prefix}.self_attn.q_proj": (HEADS * HEAD_DIM, WIDTH),
            f"{prefix}.self_attn.k_proj": (KV_HEADS * HEAD_DIM, WIDTH),
            f"{prefix}.self_attn.v_proj": (KV_HEADS * HEAD_DIM, WIDTH),
            f"{prefix}.self_attn.o_proj": (WIDTH, HEADS * HEAD_DIM),
            f"{prefix}.post_attention_layernorm": (WIDTH,),
            f"{prefix}.mlp.gate_proj": (FEED_FORWARD, WIDTH),
            f"{prefix}.mlp.up_proj": (FEED_FORWARD, WIDTH),
            f"{prefix}.mlp.down_proj": (WIDTH, FEED_FORWARD),
        }
    random = np.random.default_rng(0)
    # multiples of 1/64 below 2: exact in bfloat16, so that nothing may differ after the conversion
    return {
        f"{name}.weight": random.integers(-127, 128, shape).astype(np.float32) / 64
        for name, shape in shapes.items()
    }


LLAMA_CPP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def stored(name: str, weight: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]]:
    """A weight as llama.cpp's converter stores it (LlamaModel.permute of convert_hf_to_gguf.py)."""
    for heads, part in ((HEADS, "q_proj"), (KV_HEADS, "k_proj")):
        if part in name:
            rows, width = weight.shape
            halves = weight.reshape(heads, 2, rows // heads // 2, width)
            weight = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, width))
    for theirs, ours in LLAMA_CPP_NAMES.items():
        name = name.replace(theirs, ours)
    return name, weight
