"""The model runner: one ragged forward pass of a Hugging Face model over pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .attention import ATTENTION_NAME, register_attention
from .errors import AttentionUnsupported, ContextTooLong
from .packed_linear import can_pack, pack_linears
from .pool import Pool
from .step import Step, Work


def prepare_model(model: nn.Module, *, pack: bool = True) -> nn.Module:
    """Let a Hugging Face causal model attend over pages and, on a CPU, pack its weights. Changes it in place.

    Raises: AttentionUnsupported for an architecture that cannot be right here, with the reason.
    """
    config: Any = model.config
    require_supported(config)
    register_attention()
    model.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
    weight = next(model.parameters())
    if pack and can_pack(str(weight.device), weight.dtype):
        pack_linears(model)
    return model.eval()


def require_supported(config: Any) -> None:
    """Raises: AttentionUnsupported where attention over pages would differ from the model's own."""
    if getattr(config, "attn_logit_softcapping", None):
        raise AttentionUnsupported("soft-capped attention scores", "kvcore's kernels do not compute them")
    if config.model_type.startswith("gpt_oss"):
        raise AttentionUnsupported("attention sinks", "kvcore's kernels do not compute them")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise AttentionUnsupported(
            f"{kind} rotary embeddings",
            "they depend on the longest sequence of a batch and would mix requests",
        )


def model_shape(config: Any) -> dict[str, int]:
    """Layers, KV heads and head size of a Hugging Face configuration, as PoolConfig names them."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    return {
        "layers": config.num_hidden_layers,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
    }


class Runner:
    """Runs a prepared model over a pool. One thread at a time."""

    def __init__(self, model: nn.Module, pool: Pool, *, max_positions: int) -> None:
        self.model, self.pool, self.max_positions = model, pool, max_positions

    def require_positions(self, tokens: int) -> None:
        """Raises: ContextTooLong if the model has fewer positions."""
        if tokens > self.max_positions:
            raise ContextTooLong(tokens, self.max_positions)

    @torch.inference_mode()
    def run(self, work: Sequence[Work]) -> torch.Tensor:
        """One forward pass over new tokens of several branches, which have been extended by them.

        Shapes: result float32[len(work), vocabulary], the logits after each work's last token.
        Raises: ContextTooLong if a branch outgrew the model's positions; nothing was computed then.
        """
        for w in work:
            self.require_positions(w.branch.length)
        partitions = {w.branch.partition for w in work}
        needs_entropy = any(partition.policy.needs_entropy for partition in partitions)
        step = Step(self.pool, work, needs_entropy=needs_entropy)
        output = self.model(
            input_ids=step.tokens,
            position_ids=step.positions,
            use_cache=False,
            logits_to_keep=torch.tensor(step.last, device=self.pool.config.device),
            kvcore=step,
        )
        step.observe()
        self.pool.step += 1
        for w in work:
            w.branch.last_used = self.pool.step
        logits: torch.Tensor = output.logits[0].float()
        return logits
