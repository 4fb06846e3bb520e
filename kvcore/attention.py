"""The attention function that plugs into Hugging Face models: `attn_implementation="kvcore"`.

It writes the step's keys and values into pages and attends over page tables, for a ragged flattened batch. The
step reaches it as the forward keyword `kvcore`; a forward pass without one is an error, since without a page table
the model would silently attend to its own chunk alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .errors import AttentionUnsupported, StepContextMissing
from .kernels.reference import decode_attention, prefill_attention
from .step import Bucket, Chunk, Step

ATTENTION_NAME = "kvcore"


def register_attention() -> None:
    """Make `attn_implementation="kvcore"` known to transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    kvcore: Step | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer over pages.

    Shapes: query [1, heads, T, head_dim]; key, value [1, kv_heads, T, head_dim]; result [1, T, heads, head_dim].
    Raises: StepContextMissing without a step; AttentionUnsupported for padding masks, dropout, soft caps and
            attention sinks, which this function would get wrong.
    """
    if kvcore is None:
        raise StepContextMissing
    if attention_mask is not None:
        raise AttentionUnsupported("an attention mask", "ragged batches have no padding: pass none")
    if softcap is not None or s_aux is not None or dropout:
        raise AttentionUnsupported(
            "soft-capped scores, attention sinks or dropout", "kvcore's kernels do not compute them"
        )
    step, layer = kvcore, int(module.layer_idx)  # type: ignore[arg-type]
    group = step.pool.group_of_layer(layer)
    heads, tokens, head_dim = query.shape[1:]
    kv_heads = key.shape[1]
    for which, new in enumerate((key, value)):
        step.slot_rows(layer, which).index_copy_(
            0, step.slots[group], new[0].transpose(0, 1).reshape(-1, head_dim)
        )
    scale = head_dim**-0.5 if scaling is None else scaling
    out = torch.empty(1, tokens, heads, head_dim, dtype=query.dtype, device=query.device)
    grouped = query[0].view(kv_heads, heads // kv_heads, tokens, head_dim)
    for bucket in step.buckets:
        rows = slice(bucket.first, bucket.first + len(bucket.pages[group]))
        attended = _attend_bucket(step, bucket, layer, grouped[:, :, rows], scale, sliding_window)
        out[0, rows] = attended.view(-1, heads, head_dim)
    for chunk in step.chunks:
        rows = slice(chunk.first, chunk.first + chunk.n_tokens)
        attended = _attend_chunk(step, chunk, layer, grouped[:, :, rows], scale, sliding_window)
        out[0, rows] = attended.reshape(heads, -1, head_dim).transpose(0, 1)
    return out, None


def _attend_bucket(
    step: Step, bucket: Bucket, layer: int, query: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    """Shapes: query [kv_heads, group, B, head_dim]; result [B, kv_heads, group, head_dim]."""
    group = step.pool.group_of_layer(layer)
    key, value = step.gathered(layer, bucket.gather[group], len(bucket.pages[group]))
    out, stats = decode_attention(
        query.permute(2, 0, 1, 3),
        key,
        value,
        step.bucket_bias(bucket, group, window),
        scaling=scaling,
        page_size=step.pool.config.page_size,
        entropy=step.needs_entropy,
    )
    step.collect(group, bucket.first, stats)
    return out


def _attend_chunk(
    step: Step, chunk: Chunk, layer: int, query: torch.Tensor, scaling: float, window: int | None
) -> torch.Tensor:
    """Shapes: query and result [kv_heads, group, n, head_dim]."""
    group = step.pool.group_of_layer(layer)
    key, value = step.gathered(layer, chunk.gather[group], 1)
    out, stats = prefill_attention(
        query,
        key[0],
        value[0],
        length=chunk.lengths[group],
        scaling=scaling,
        page_size=step.pool.config.page_size,
        window=step.chunk_window(chunk, group, window),
        entropy=step.needs_entropy,
    )
    step.collect(group, chunk.first, stats)
    return out
