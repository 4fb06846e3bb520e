"""The pool: one tensor per device that holds every page, and the ledger of who holds which.

General layout
--------------
- `PoolConfig` says the shapes; `Pool` owns the tensor, the free lists, the page table and the salience.
- A page id is `group * pages_per_group + row`: layer groups allocate separately, and within a group one row
  serves all of its layers, so that one id addresses the bytes of every layer of the group.
- Pages are handed out to partitions (`partition.py`), which hold them for branches (`branch.py`).
- `audit()` says whether the books balance: free + held + cached = total, each count equal to its holders.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import torch

from .errors import BooksUnbalanced, BudgetTooSmall, SettingInvalid
from .page_table import MAX_PARTITIONS, PageState, PageTable
from .salience import SalienceTable

if TYPE_CHECKING:
    from .partition import Partition


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of a pool."""

    layers: int
    kv_heads: int
    head_dim: int
    pages: int
    """pages of each layer group"""
    page_size: int = 16
    """token slots of a page"""
    layer_groups: int = 1
    """1: a page spans all layers (copies best); `layers`: one layer (evicts best)"""
    dtype: torch.dtype = torch.bfloat16
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not 1 <= self.layer_groups <= self.layers or self.layers % self.layer_groups:
            raise SettingInvalid("layer_groups", self.layer_groups, f"a divisor of the {self.layers} layers")
        if self.page_size < 1 or self.page_size & (self.page_size - 1):
            raise SettingInvalid("page_size", self.page_size, "a power of two")
        if self.pages < 1:
            raise SettingInvalid("pages", self.pages, "1 or more")

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    @staticmethod
    def pages_for(budget_bytes: int, *, bytes_per_token: int, page_size: int) -> int:
        """How many pages (spanning all layers) a budget pays for.

        Raises: BudgetTooSmall if it pays for none.
        """
        page_bytes = bytes_per_token * page_size
        if budget_bytes < page_bytes:
            raise BudgetTooSmall(budget_bytes, page_bytes, "it does not hold one page")
        return budget_bytes // page_bytes


class Audit(msgspec.Struct, frozen=True):
    """The books of a pool at one moment, in pages over all layer groups."""

    total_pages: int
    free_pages: int
    held_pages: int
    cached_pages: int
    by_partition: dict[str, int]


class Pool:
    """All pages of one device.

    Shapes: `kv` is [layers, 2, pages, page_size, kv_heads, head_dim] (keys, then values). In memory kv_heads
    stands before page_size, so that gathered pages of one head are one matrix: attention multiplies them as
    they come.
    """

    def __init__(
        self, config: PoolConfig, *, table: memoryview | None = None, salience_decay: float = 0.7
    ) -> None:
        self.config = config
        self.storage = torch.zeros(
            config.layers,
            2,
            config.pages,
            config.kv_heads,
            config.page_size,
            config.head_dim,
            dtype=config.dtype,
            device=config.device,
        )
        self.total_pages = config.pages * config.layer_groups
        self.table = PageTable(self.total_pages, table)
        self.salience = SalienceTable(self.total_pages, decay=salience_decay, device=config.device)
        self.partitions: list[Partition] = []
        # Lowest ids last, so that popping hands out ascending rows and neighbours stay near each other.
        self._free = [
            list(range((group + 1) * config.pages - 1, group * config.pages - 1, -1))
            for group in range(config.layer_groups)
        ]
        self.step = 0
        """counts forward passes; what `last_used` is measured in"""

    @property
    def kv(self) -> torch.Tensor:
        return self.storage.transpose(3, 4)

    @property
    def layers_per_group(self) -> int:
        return self.config.layers // self.config.layer_groups

    def group_of_layer(self, layer: int) -> int:
        return layer // self.layers_per_group

    def free_pages(self, group: int) -> int:
        return len(self._free[group])

    def register(self, partition: Partition) -> int:
        """Add a partition; its quota must fit beside the others'. Returns its index."""
        promised = sum(other.quota_pages for other in self.partitions) + partition.quota_pages
        if promised > self.config.pages:
            raise SettingInvalid(
                "quota_pages",
                partition.quota_pages,
                f"at most {self.config.pages - promised + partition.quota_pages} more pages of this pool",
            )
        if len(self.partitions) == MAX_PARTITIONS:
            raise SettingInvalid("partitions", len(self.partitions) + 1, f"at most {MAX_PARTITIONS}")
        self.partitions.append(partition)
        return len(self.partitions) - 1

    def take(self, group: int, n_pages: int, partition: int) -> list[int]:
        """Move pages from the free list to a partition, each with one reference.

        The partition has checked its quota, and quotas never exceed the pool: there is always room.
        """
        free = self._free[group]
        assert len(free) >= n_pages, "quotas exceed the pool"
        pages = [free.pop() for _ in range(n_pages)]
        for page in pages:
            self.table.write(page, PageState.HELD, partition, 1)
        if pages:
            self.salience.clear(torch.tensor(pages, device=self.config.device))
        return pages

    def put_back(self, page: int) -> None:
        """Move a page to the free list. Its owner has dropped every reference and its quota count."""
        self.table.write(page, PageState.FREE, 0, 0)
        self._free[page // self.config.pages].append(page)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page's bytes, in all layers of its group, and its salience."""
        group, source_row = divmod(source, self.config.pages)
        layers = slice(group * self.layers_per_group, (group + 1) * self.layers_per_group)
        self.storage[layers, :, target % self.config.pages] = self.storage[layers, :, source_row]
        self.salience.copy_page(source, target)

    def audit(self) -> Audit:
        """Count everything again from the holders and compare it with the ledger.

        Raises: BooksUnbalanced with every difference found.
        """
        holders: Counter[int] = Counter()
        cached: set[int] = set()
        for partition in self.partitions:
            for branch in partition.branches:
                holders.update(page for table in branch.tables for page in table)
            cached |= partition.cached_pages()
        faults = []
        states: Counter[int] = Counter()
        owned: Counter[int] = Counter()
        for page in range(self.total_pages):
            word = self.table.read(page)
            states[word.state] += 1
            if word.state != PageState.FREE:
                owned[word.partition] += 1
            expected = (
                PageState.HELD if holders[page] else PageState.CACHED if page in cached else PageState.FREE
            )
            if word.state != expected or word.references != holders[page]:
                faults.append(f"page {page}: {word}, but {holders[page]} holders, cached={page in cached}")
        free = [page for group in self._free for page in group]
        if len(free) != len(set(free)) or len(free) != states[PageState.FREE]:
            faults.append(f"free lists name {len(free)} pages, the table has {states[PageState.FREE]}")
        for index, partition in enumerate(self.partitions):
            if sum(partition.owned_pages) != owned[index]:
                faults.append(
                    f"partition {partition.name}: counts {partition.owned_pages}, owns {owned[index]}"
                )
        if faults:
            raise BooksUnbalanced("; ".join(faults[:20]))
        return Audit(
            total_pages=self.total_pages,
            free_pages=states[PageState.FREE],
            held_pages=states[PageState.HELD],
            cached_pages=states[PageState.CACHED],
            by_partition={partition.name: sum(partition.owned_pages) for partition in self.partitions},
        )

    def close(self) -> None:
        self.table.close()
