"""Salience: how much attention each page has received, as decayed averages per query that could see it.

Per page, over the queries seen and with the same decay for all four (KV_NOTES measured why: a plain sum
favours old pages and ranks no better than random):

    A = sum p          attention mass        n = queries seen
    B = sum -p ln p    entropy term          X = max p

The decay is given per `DECAY_WINDOW_QUERIES` queries, so that a chunk of 64 queries and 64 single decode
steps age a page alike.
"""

from __future__ import annotations

import msgspec
import torch

DECAY_WINDOW_QUERIES = 64


class PageStats(msgspec.Struct, frozen=True):
    """What the queries of one layer gave each page: sums over queries, means over heads.

    Shapes: float32, one entry a page, whatever the leading shape of the page list. `entropy` and `peak` are
    None where no policy asks for them.
    """

    mass: torch.Tensor
    entropy: torch.Tensor | None
    peak: torch.Tensor | None


class SalienceTable:
    """Salience of every page of a pool. Shapes: float32[n_pages] a column, on the pool's device."""

    def __init__(self, n_pages: int, *, decay: float = 0.7, device: torch.device | str = "cpu") -> None:
        self.decay = decay
        self._mass = torch.zeros(n_pages, device=device)
        self._entropy = torch.zeros(n_pages, device=device)
        self._peak = torch.zeros(n_pages, device=device)
        self._queries = torch.zeros(n_pages, device=device)

    def clear(self, pages: torch.Tensor) -> None:
        """Forget pages that get new content."""
        for column in (self._mass, self._entropy, self._peak, self._queries):
            column[pages] = 0.0

    def observe(self, pages: torch.Tensor, queries: torch.Tensor, stats: PageStats) -> None:
        """Fold one step in. A page may be listed more than once, by each branch that shares it.

        Shapes: pages int64[n]; queries float32[n], how many queries could see the page; stats [n].
        """
        seen = torch.zeros_like(self._queries).index_add_(0, pages, queries)
        keep = self.decay ** (seen / DECAY_WINDOW_QUERIES)
        self._queries.mul_(keep).add_(seen)
        self._mass.mul_(keep).index_add_(0, pages, stats.mass)
        if stats.entropy is not None:
            self._entropy.mul_(keep).index_add_(0, pages, stats.entropy)
        if stats.peak is not None:
            self._peak.mul_(keep).scatter_reduce_(0, pages, stats.peak, "amax")

    def copy_page(self, source: int, target: int) -> None:
        for column in (self._mass, self._entropy, self._peak, self._queries):
            column[target] = column[source]

    def mass_per_query(self, pages: torch.Tensor) -> torch.Tensor:
        """A / n; 0 for a page that no query has seen yet."""
        return self._mass[pages] / self._queries[pages].clamp_min(1e-9)

    def entropy_per_query(self, pages: torch.Tensor) -> torch.Tensor:
        """B / n; 0 for a page that no query has seen yet."""
        return self._entropy[pages] / self._queries[pages].clamp_min(1e-9)

    def peak(self, pages: torch.Tensor) -> torch.Tensor:
        """X, the decayed maximum of a single attention weight."""
        return self._peak[pages]
