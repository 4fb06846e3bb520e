"""A partition seen as a ring of slots, for callers that place and evict pages themselves.

Here a slot is one page of the partition's quota, and the mask says which slot attention cares for least.
"""

from __future__ import annotations

import math

import msgspec
import torch

from .branch import Branch
from .errors import VictimRefused
from .partition import Partition
from .policies.lowest_entropy import PEAK_LIMIT


class SalienceMask(msgspec.Struct, frozen=True):
    """What attention says of every slot of a ring at one moment.

    Shapes: entropy, peak float32[slots], evictable bool[slots].
    """

    entropy: torch.Tensor
    """B per query seen: sum of -p ln p over the slot's tokens"""
    peak: torch.Tensor
    """X: the decayed maximum of one attention weight"""
    evictable: torch.Tensor
    """False for free, shared, protected and foreign slots"""

    def find_lowest_entropy_slot(self) -> int:
        """The evictable slot with the lowest entropy term, the first one of equals.

        Not the lowest of all: -p ln p falls to 0 as p goes to 1, so a slot that holds a sink or a needle scores
        as worthless. A slot with a peak over 1/e is therefore never named.
        Raises: VictimRefused if no slot may be evicted.
        """
        entropy = self.entropy.masked_fill(~self.evictable | (self.peak > PEAK_LIMIT), math.inf)
        slot = int(entropy.argmin())
        if not math.isfinite(float(entropy[slot])):
            raise VictimRefused(slot, "every slot is free, protected, shared or holds a sink or needle")
        return slot


class RingKVPool:
    """One layer group of a partition as slots 0..slots-1. The slot of a page keeps its number while it is held."""

    def __init__(self, partition: Partition, *, group: int = 0) -> None:
        self.partition, self.group = partition, group
        pages = partition.pool.config.pages
        self._pages = range(group * pages, (group + 1) * pages)

    def __len__(self) -> int:
        return len(self._pages)

    def page(self, slot: int) -> int:
        """The page id of a slot.

        Raises: VictimRefused if there is no such slot.
        """
        if not 0 <= slot < len(self._pages):
            raise VictimRefused(slot, f"the ring has slots 0 to {len(self._pages) - 1}")
        return self._pages[slot]

    def mask(self) -> SalienceMask:
        """The salience of every slot now."""
        pages = torch.arange(self._pages.start, self._pages.stop)
        evictable = torch.zeros(len(self._pages), dtype=torch.bool)
        for branch in self.partition.branches:
            for page in self._evictable(branch):
                evictable[page - self._pages.start] = True
        salience = self.partition.pool.salience
        return SalienceMask(salience.entropy_per_query(pages), salience.peak(pages), evictable)

    def evict_least_salient(self, mask: SalienceMask) -> int:
        """Free the page that the mask names, clear its page-table word, and return its slot.

        Raises: VictimRefused if the mask names no slot, or one that is free, shared, protected or another
                partition's by now; nothing has changed then.
        """
        slot = mask.find_lowest_entropy_slot()
        self.partition.evict(self.page(slot))
        return slot

    def _evictable(self, branch: Branch) -> list[int]:
        protection = self.partition.protection
        return branch.evictable(self.group, protection.sink_pages, protection.recent_pages)
