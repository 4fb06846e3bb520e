"""The tokenizer of a GGUF file, as the files that Hugging Face's fast tokenizers read.

Built from the GGUF's own vocabulary and merges rather than saved through a tokenizer class of transformers: a
class guessed from the model's architecture ("llama" means SentencePiece) gives wrong ids without an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONTROL_TOKEN = 3  # GGUF's token type of control tokens such as <|im_end|>


def write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json for a byte-level BPE with single digits ("smollm").

    Source: llama.cpp, src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM: the pattern \\p{N}, then GPT-2's.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(_settings(metadata, tokens), indent=1), encoding="utf-8"
    )


def _settings(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    def named(role: str) -> str:
        index: int = metadata[f"tokenizer.ggml.{role}_token_id"]
        return tokens[index]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "unk_token": named("unknown"),
        "pad_token": named("padding"),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
    }
