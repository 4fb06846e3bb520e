"""One forward pass: which tokens run, where their keys and values go, and which pages each attends over.

A step flattens the work of many sequences into one ragged row of tokens: first the sequences with a single
new token, bucketed by length so that padding stays small, then the chunks of prompts. All that depends on
positions alone is computed here once and used by every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import torch

from .branch import Branch
from .kernels.reference import observed_queries
from .pool import Pool
from .salience import PageStats

_BUCKET_FILL = 0.75
"""a sequence joins a bucket if it fills at least this share of the bucket's slots"""


class Work(msgspec.Struct, frozen=True):
    """New tokens of one branch, in order; the branch has been extended by them."""

    branch: Branch
    n_tokens: int


class Bucket(msgspec.Struct, frozen=True):
    """Sequences with one query each. Shapes: see the fields; B sequences padded to P pages."""

    first: int
    """row of its first query in the flattened batch"""
    pages: list[torch.Tensor]
    """per layer group, page ids int64[B, P]; a short sequence repeats its first page"""
    gather: list[torch.Tensor]
    """per layer group, rows of the pool's [pages * kv_heads] view, int64[B * kv_heads * P]"""
    bias: list[torch.Tensor | None]
    """per layer group, [B, 1, P * page_size]: 0 or -inf"""
    valid: list[torch.Tensor | None]
    """per layer group, bool[B, P]: False where a page is padding; None if none is"""
    positions: list[torch.Tensor]
    """per layer group, position of each slot's token int64[B, P * page_size]"""


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive queries of one sequence."""

    first: int
    n_tokens: int
    pages: list[torch.Tensor]
    """per layer group, int64[P]"""
    gather: list[torch.Tensor]
    """per layer group, int64[kv_heads * P]"""
    lengths: list[int]
    """per layer group, resident tokens, the new ones included"""
    positions: list[torch.Tensor]
    """per layer group, position of each slot's token int64[P * page_size]"""


class Step:
    """The metadata of one forward pass, handed to attention as the forward keyword `kvcore`.

    Shapes: tokens, positions int64[1, T]; `slots[group]` int64[T * kv_heads] addresses the pool's
            [pages * kv_heads * page_size, head_dim] view of a layer; `last[i]` is the row of work i's last token.
    """

    def __init__(self, pool: Pool, work: Sequence[Work], *, needs_entropy: bool) -> None:
        self.pool, self.needs_entropy = pool, needs_entropy
        singles = sorted(
            (w for w in work if w.n_tokens == 1), key=lambda w: len(w.branch.tables[0]), reverse=True
        )
        chunks = [w for w in work if w.n_tokens > 1]
        order = singles + chunks
        rows = {id(w): row for w, row in zip(order, _offsets(order), strict=True)}
        self.last = [rows[id(w)] + w.n_tokens - 1 for w in work]
        tokens = [token for w in order for token in w.branch.tokens[w.branch.length - w.n_tokens :]]
        positions = [
            position for w in order for position in range(w.branch.length - w.n_tokens, w.branch.length)
        ]
        device = pool.config.device
        self.tokens = torch.tensor([tokens], dtype=torch.int64, device=device)
        self.positions = torch.tensor([positions], dtype=torch.int64, device=device)
        self.slots = [self._slots(order, group) for group in range(pool.config.layer_groups)]
        self.buckets = [self._bucket(b, rows[id(b[0])]) for b in _buckets(singles)]
        self.chunks = [self._chunk(w, rows[id(w)]) for w in chunks]
        self._stats: dict[tuple[int, int], PageStats] = {}

    def slot_rows(self, layer: int, which: int) -> torch.Tensor:
        """Keys (0) or values (1) of one layer by slot. Shape [pages * kv_heads * page_size, head_dim], a view."""
        return self.pool.storage[layer, which].view(-1, self.pool.config.head_dim)

    def gathered(self, layer: int, rows: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the listed pages. Shapes: each [batch, kv_heads, slots, head_dim], a copy."""
        config = self.pool.config
        shape = (batch, config.kv_heads, -1, config.head_dim)
        pages = self.pool.storage[layer].view(2, -1, config.page_size * config.head_dim)
        return pages[0].index_select(0, rows).view(shape), pages[1].index_select(0, rows).view(shape)

    def bucket_bias(self, bucket: Bucket, group: int, window: int | None) -> torch.Tensor | None:
        """What to add to a bucket's scores, for a layer whose sliding window is `window` tokens or None."""
        bias = bucket.bias[group]
        if window is None:
            return bias
        slots = bucket.positions[group]
        query = self.positions[0, bucket.first : bucket.first + len(slots), None]
        outside = slots <= query - window
        if not bool(outside.any()):
            return bias
        sliding = torch.zeros(slots.shape, dtype=self.pool.config.dtype, device=slots.device)
        sliding = sliding.masked_fill_(outside, float("-inf")).unsqueeze(1)
        return sliding if bias is None else bias + sliding

    def chunk_window(self, chunk: Chunk, group: int, window: int | None) -> torch.Tensor | None:
        """What each query of a chunk may see under a sliding window, bool[n, resident tokens]; None means all."""
        if window is None:
            return None
        keys = chunk.positions[group][: chunk.lengths[group]]
        queries = self.positions[0, chunk.first : chunk.first + chunk.n_tokens]
        if int(queries[-1] - keys[0]) < window:
            return None
        return keys[None, :] > queries[:, None] - window

    def collect(self, group: int, row: int, stats: PageStats) -> None:
        """Add one layer's stats for the bucket or chunk whose first query is `row`."""
        so_far = self._stats.get((group, row))
        self._stats[group, row] = stats if so_far is None else _added(so_far, stats)

    def observe(self) -> None:
        """Fold what all layers have collected into the pool's salience, as means over a group's layers."""
        layers = self.pool.layers_per_group
        pages, queries, columns = [], [], list[PageStats]()
        for group in range(self.pool.config.layer_groups):
            items: list[Bucket | Chunk] = [*self.buckets, *self.chunks]
            for item in items:
                listed = item.pages[group]
                seen = torch.full(listed.shape, 1.0, device=listed.device)
                if isinstance(item, Chunk):
                    seen *= observed_queries(item.n_tokens)
                elif (valid := item.valid[group]) is not None:
                    seen *= valid
                pages.append(listed.reshape(-1))
                queries.append(seen.reshape(-1))
                columns.append(self._stats[group, item.first])
        joined = PageStats(
            mass=torch.cat([column.mass.reshape(-1) for column in columns]) / layers,
            entropy=_joined([column.entropy for column in columns], layers),
            peak=_joined([column.peak for column in columns], 1),
        )
        self.pool.salience.observe(torch.cat(pages), torch.cat(queries), joined)

    def _slots(self, order: list[Work], group: int) -> torch.Tensor:
        config = self.pool.config
        base = group * config.pages
        rows, offsets = [], []
        for w in order:
            table, starts, length = w.branch.tables[group], w.branch.starts[group], w.branch.length
            first_page = next(
                index for index in range(len(starts) - 1, -1, -1) if starts[index] <= length - w.n_tokens
            )
            for position in range(length - w.n_tokens, length):
                if first_page + 1 < len(starts) and position >= starts[first_page + 1]:
                    first_page += 1
                rows.append(table[first_page] - base)
                offsets.append(position - starts[first_page])
        row = torch.tensor(rows, dtype=torch.int64, device=config.device)[:, None]
        offset = torch.tensor(offsets, dtype=torch.int64, device=config.device)[:, None]
        head = torch.arange(config.kv_heads, device=config.device)[None, :]
        return ((row * config.kv_heads + head) * config.page_size + offset).reshape(-1)

    def _gather(self, pages: torch.Tensor, group: int) -> torch.Tensor:
        """Rows that bring pages [..., P] together as [..., kv_heads, P]."""
        config = self.pool.config
        rows = (pages - group * config.pages) * config.kv_heads
        head = torch.arange(config.kv_heads, device=config.device)
        return (rows.unsqueeze(-2) + head[:, None]).reshape(-1)

    def _slot_positions(self, starts: torch.Tensor) -> torch.Tensor:
        offset = torch.arange(self.pool.config.page_size, device=self.pool.config.device)
        return (starts.unsqueeze(-1) + offset).flatten(-2)

    def _bucket(self, work: list[Work], first: int) -> Bucket:
        config = self.pool.config
        bucket = Bucket(first, [], [], [], [], [])
        for group in range(config.layer_groups):
            tables = [w.branch.tables[group] for w in work]
            starts = [w.branch.starts[group] for w in work]
            width = max(len(table) for table in tables)
            pages = _padded(tables, width, config.device)
            slots = self._slot_positions(_padded(starts, width, config.device))
            resident = torch.tensor([w.branch.resident_tokens(group) for w in work], device=config.device)
            hidden = torch.arange(width * config.page_size, device=config.device)[None] >= resident[:, None]
            bias = None
            if bool(hidden.any()):
                bias = torch.zeros(hidden.shape, dtype=config.dtype, device=config.device)
                bias = bias.masked_fill_(hidden, float("-inf")).unsqueeze(1)
            counts = torch.tensor([len(table) for table in tables], device=config.device)
            valid = torch.arange(width, device=config.device)[None] < counts[:, None]
            bucket.pages.append(pages)
            bucket.gather.append(self._gather(pages, group))
            bucket.bias.append(bias)
            bucket.valid.append(None if bool(valid.all()) else valid)
            bucket.positions.append(slots)
        return bucket

    def _chunk(self, work: Work, first: int) -> Chunk:
        config, branch = self.pool.config, work.branch
        chunk = Chunk(first, work.n_tokens, [], [], [], [])
        for group in range(config.layer_groups):
            pages = torch.tensor(branch.tables[group], dtype=torch.int64, device=config.device)
            starts = torch.tensor(branch.starts[group], dtype=torch.int64, device=config.device)
            chunk.pages.append(pages)
            chunk.gather.append(self._gather(pages, group))
            chunk.lengths.append(branch.resident_tokens(group))
            chunk.positions.append(self._slot_positions(starts))
        return chunk


def _added(one: PageStats, other: PageStats) -> PageStats:
    if one.entropy is None or other.entropy is None or one.peak is None or other.peak is None:
        return PageStats(one.mass + other.mass, None, None)
    return PageStats(one.mass + other.mass, one.entropy + other.entropy, torch.maximum(one.peak, other.peak))


def _joined(columns: list[torch.Tensor | None], divisor: int) -> torch.Tensor | None:
    present = [column.reshape(-1) for column in columns if column is not None]
    return torch.cat(present) / divisor if len(present) == len(columns) else None


def _offsets(order: Sequence[Work]) -> Iterator[int]:
    row = 0
    for work in order:
        yield row
        row += work.n_tokens


def _buckets(singles: list[Work]) -> Iterator[list[Work]]:
    """Split sequences, sorted from long to short, so that none is padded by more than a quarter."""
    bucket: list[Work] = []
    for work in singles:
        if bucket and len(work.branch.tables[0]) < _BUCKET_FILL * len(bucket[0].branch.tables[0]):
            yield bucket
            bucket = []
        bucket.append(work)
    if bucket:
        yield bucket


def _padded(rows: list[list[int]], width: int, device: str) -> torch.Tensor:
    """Rows of different lengths as one tensor; a short row repeats its first entry."""
    return torch.tensor(
        [row + row[:1] * (width - len(row)) for row in rows], dtype=torch.int64, device=device
    )
