"""Attention over gathered pages in plain torch, with each page's share of the attention beside the output.

Queries of one KV head's group are rows of one matrix, so that keys and values are never repeated. Scores are
kept in the model's dtype for matrix products and normalised in float32 by softmax, as Hugging Face's eager
attention does. In bf16 long prompts go in tiles of queries that fit the processor's cache, which on a CPU is about
twice as fast as torch's fused attention, and a causal tile never looks past its own end; in float32 the fused
attention is the faster one, by a third.
"""

from __future__ import annotations

import torch

from ..salience import PageStats

QUERY_TILE = 64
OBSERVED_QUERIES = 64
"""of a prompt's chunk, the last queries whose attention counts as salience (SnapKV, arXiv:2404.14469)"""


def decode_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scaling: float,
    page_size: int,
    entropy: bool = False,
) -> tuple[torch.Tensor, PageStats]:
    """One query a sequence, for a batch of sequences padded to whole pages.

    Shapes: query [batch, kv_heads, group, head_dim]; key, value [batch, kv_heads, slots, head_dim];
            bias [batch, 1, slots] added to the scores (-inf hides a slot), or None;
            result [batch, kv_heads, group, head_dim], stats [batch, slots / page_size].
    """
    batch, kv_heads, group, head_dim = query.shape
    slots = key.shape[2]
    scores = torch.bmm(
        (query * scaling).reshape(batch * kv_heads, group, head_dim),
        key.view(batch * kv_heads, slots, head_dim).transpose(1, 2),
    )
    if bias is not None:
        scores.view(batch, kv_heads * group, slots).add_(bias)
    weights = torch.softmax(scores, -1, dtype=torch.float32)
    out = torch.bmm(weights.to(value.dtype), value.view(batch * kv_heads, slots, head_dim))
    stats = page_stats(weights.view(batch, kv_heads * group, slots), page_size, entropy=entropy)
    return out.view(batch, kv_heads, group, head_dim), stats


def prefill_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    length: int,
    scaling: float,
    page_size: int,
    window: torch.Tensor | None = None,
    entropy: bool = False,
) -> tuple[torch.Tensor, PageStats]:
    """A chunk of consecutive queries of one sequence, causal. The queries are the last of `length` tokens.

    Shapes: query [kv_heads, group, n, head_dim]; key, value [kv_heads, slots, head_dim], slots >= length;
            window, for sliding layers, the bool [n, length] of what a query may see besides causality;
            result as query; stats [1, slots / page_size] over the last `observed_queries(n)` queries.
    """
    n = query.shape[2]
    if query.dtype is torch.float32:
        out = _fused_attention(query, key[:, :length], value[:, :length], scaling, window)
        weights = _tile_weights(query, key, max(0, n - QUERY_TILE), n, length, scaling, window)
    else:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        weights = torch.empty(0)
        for stop in reversed(
            range(n, 0, -QUERY_TILE)
        ):  # the final tile is full, so that it is the one observed
            first = max(0, stop - QUERY_TILE)
            weights = _tile_weights(query, key, first, stop, length, scaling, window)
            tile = torch.bmm(weights, value[:, : weights.shape[2]])
            out[:, :, first:stop] = tile.view(out[:, :, first:stop].shape)
    observed = torch.nn.functional.pad(weights.float(), (0, key.shape[1] - length))
    stats = page_stats(
        observed.reshape(1, -1, key.shape[1]), page_size, entropy=entropy, queries=observed_queries(n)
    )
    return out, stats


def _tile_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    first: int,
    stop: int,
    length: int,
    scaling: float,
    window: torch.Tensor | None,
) -> torch.Tensor:
    """Attention weights of the queries [first, stop) over the tokens that the last of them sees: [kv_heads,
    group * (stop - first), tokens]."""
    kv_heads, group, n, head_dim = query.shape
    rows, end = stop - first, length - n + stop
    queries = (query[:, :, first:stop] * scaling).reshape(kv_heads, group * rows, head_dim)
    scores = torch.bmm(queries, key[:, :end].transpose(1, 2))
    tile = scores.view(kv_heads, group, rows, end)
    future = torch.full((rows, rows), float("-inf"), dtype=query.dtype, device=query.device).triu(1)
    tile[..., end - rows :].add_(future)
    if window is not None:
        tile.masked_fill_(~window[first:stop, :end], float("-inf"))
    return torch.softmax(scores, -1)


def _fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    window: torch.Tensor | None,
) -> torch.Tensor:
    n, length = query.shape[2], key.shape[1]
    bias = torch.full((n, length), float("-inf"), dtype=query.dtype, device=query.device)
    bias.triu_(length - n + 1)
    if window is not None:
        bias.masked_fill_(~window, float("-inf"))
    heads = query.reshape(1, -1, *query.shape[2:])
    return torch.nn.functional.scaled_dot_product_attention(
        heads, key[None], value[None], attn_mask=bias, scale=scaling, enable_gqa=True
    ).view(query.shape)


def observed_queries(n: int) -> int:
    """How many of a chunk's n queries `prefill_attention` counts in its stats."""
    return min(n, OBSERVED_QUERIES)


def page_stats(weights: torch.Tensor, page_size: int, *, entropy: bool, queries: int = 1) -> PageStats:
    """Attention weights by page: sums over queries, means over heads.

    Shapes: weights float32[batch, heads * queries, slots]; each result [batch, slots / page_size].
    """
    batch, rows, slots = weights.shape
    pages = weights.view(batch, rows, slots // page_size, page_size)
    per_head = queries / rows
    mass = pages.sum((1, 3)) * per_head
    if not entropy:
        return PageStats(mass=mass, entropy=None, peak=None)
    return PageStats(
        mass=mass, entropy=-torch.xlogy(pages, pages).sum((1, 3)) * per_head, peak=pages.amax((1, 3))
    )
