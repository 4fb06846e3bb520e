"""Small random models and pools for the tests of kvcore."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from swarmkv.kvcore import Branch, Partition, Pool, PoolConfig, PrefixTree, Runner, model_shape, prepare_model
from swarmkv.kvcore.step import Work

VOCABULARY = 300


def llama_config(**changes: Any) -> LlamaConfig:
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
    }
    return LlamaConfig(**(settings | changes))


class Bench:
    """A reference model with Hugging Face's own attention, and ours with the same weights over a pool."""

    def __init__(
        self, config: Any, *, pages: int = 200, layer_groups: int = 1, page_size: int = 16, pack: bool = True
    ) -> None:
        torch.manual_seed(0)
        self.reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
        model.load_state_dict(self.reference.state_dict())
        self.pool = Pool(
            PoolConfig(
                **model_shape(config),
                pages=pages,
                page_size=page_size,
                layer_groups=layer_groups,
                dtype=torch.float32,
            )
        )
        self.runner = Runner(prepare_model(model, pack=pack), self.pool, max_positions=4096)

    def partition(self, quota_pages: int, **settings: Any) -> Partition:
        return Partition(self.pool, f"p{len(self.pool.partitions)}", quota_pages, **settings)

    def shared_prefixes(self, quota_pages: int) -> PrefixTree:
        tree = PrefixTree()
        tree.bind(self.partition(quota_pages, prefixes=tree))
        return tree

    def feed(self, *work: tuple[Branch, list[int]]) -> torch.Tensor:
        """Extend branches and run one step; logits of each last token."""
        planned = []
        for branch, tokens in work:
            branch.extend(tokens)
            planned.append(Work(branch, len(tokens)))
        return self.runner.run(planned)

    @torch.no_grad()
    def dense(self, tokens: list[int], mask: torch.Tensor | None = None) -> torch.Tensor:
        """Hugging Face's logits after the last token; mask bool[n, n] says which keys a query may see."""
        bias = None
        if mask is not None:
            bias = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))[None, None]
        return self.reference(torch.tensor([tokens]), attention_mask=bias).logits[0, -1]


def random_tokens(n: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (n,), generator=generator).tolist()


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max())
