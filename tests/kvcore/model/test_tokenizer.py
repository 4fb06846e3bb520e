"""Token ids, pinned, and held against the merges of the GGUF by a second, plain byte-pair encoder."""

from __future__ import annotations

import functools
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

# \p{N} alone, then GPT-2's pattern; for ASCII text, in which re needs no \p.
PIECES = re.compile(r"\d|'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+(?!\S)|\s+")

# The first ids agree with what llama.cpp's own tokenizer makes of this GGUF, as all of them do.
PINNED = {
    "Hello world, 1234 def f(x):": [19556, 905, 28, 216, 33, 34, 35, 36, 753, 275, 24, 104, 727],
    "I'm don't we'll  two  spaces\n\n\ttab\r\n x": [
        *(57, 5248, 1326, 982, 392, 3060, 216, 827, 216, 5600, 1116, 197, 15999, 2738, 1792)
    ],
    "  leading": [216, 2899],
    "x=3.14159e-10;": [104, 45, 35, 30, 33, 36, 33, 37, 41, 85, 29, 33, 32, 43],
    "½ ² ③ ٣": [16738, 216, 19133, 216, 173, 235, 112, 216, 164, 113],
    "<|im_start|>system\nYou are<|im_end|>\n": [1, 9690, 198, 2683, 359, 2, 198],
    "": [],
}


@pytest.fixture(scope="module")
def tokenizer(embedded_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(embedded_model / "tokenizer.json"))


@pytest.fixture(scope="module")
def metadata(embedded_model: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(embedded_model / "original.gguf").fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}


def plain_bpe(metadata: dict[str, Any], text: str) -> list[int]:
    """Byte-pair encoding by its definition: merge the pair of the lowest rank until none is left."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}

    @functools.cache
    def encode(piece: str) -> list[int]:
        parts = list(piece)
        while len(parts) > 1:
            pairs = [(ranks.get(pair, len(ranks)), i) for i, pair in enumerate(itertools.pairwise(parts))]
            rank, at = min(pairs)
            if rank == len(ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [ids[part] for part in parts]

    # GPT-2 spells a byte that is no printable ASCII as the character 256 above the count of those before it.
    spelled = str.maketrans({code: chr(256 + code) for code in range(33)})
    return [one for piece in PIECES.findall(text) for one in encode(piece.translate(spelled))]


@pytest.mark.parametrize("text", PINNED)
def test_ids_are_pinned(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text).ids == PINNED[text]


def test_ids_are_those_of_the_merges(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    text = Path(json.__file__).read_text(encoding="ascii")
    assert len(text) > 10_000
    assert tokenizer.encode(text).ids == plain_bpe(metadata, text)


@pytest.mark.parametrize(
    "text", [*PINNED, "naïve café — “quotes” 日本語 🙂 ࠀ", "a\u00a0b \u2003c\r\n\t\x00 e\u0301"]
)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_transformers_reads_the_same_tokenizer(embedded_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_model, local_files_only=True)
    for text, ids in PINNED.items():
        assert tokenizer(text)["input_ids"] == ids
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_the_tiny_vocabulary_merges_too(tiny, tmp_path: Path) -> None:
    from swarmkv.kvcore.model.convert import convert_gguf

    convert_gguf(tiny.gguf, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode("a he<|im_end|>")
    assert encoded.tokens == ["a", "Ġhe", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "a he"
