"""A partition: one worker's share of a pool. It has a quota of pages, a policy, and the branches that live in it."""

from __future__ import annotations

import math

import msgspec
import torch

from .branch import Branch
from .errors import PoolExhausted, SettingInvalid, VictimRefused
from .page_table import MAX_REFERENCES, PageState
from .policies import Candidates, EvictionPolicy, make_policy
from .pool import Pool
from .prefix import PrefixTree

ANSWER_SHARE = 4
"""one page in so many is kept for the answer to a prompt that fills its partition"""


class Protection(msgspec.Struct, frozen=True):
    """What no policy may evict from a branch, in pages."""

    sink_pages: int = 1
    recent_pages: int = 4


class Partition:
    """A quota of `quota_pages` pages in each layer group, kept by evicting with a policy.

    A page belongs to the partition that took it, and counts once against its quota however many branches
    share it. `prefixes` may be a tree that several partitions share; its pages belong to the tree's partition.
    """

    def __init__(
        self,
        pool: Pool,
        name: str,
        quota_pages: int,
        *,
        policy: str | EvictionPolicy = "salience",
        protection: Protection = Protection(),
        prefixes: PrefixTree | None = None,
    ) -> None:
        if quota_pages < 0:
            raise SettingInvalid("quota_pages", quota_pages, "0 or more")
        self.pool, self.name, self.quota_pages = pool, name, quota_pages
        self.policy, self.protection = make_policy(policy), protection
        self.prefixes = prefixes
        self.branches: set[Branch] = set()
        self.owned_pages = [0] * pool.config.layer_groups
        self.evicted_pages = 0
        """pages that the policy gave up since the partition was made"""
        self.index = pool.register(self)

    @property
    def answer_pages(self) -> int:
        """Pages that an answer gets beside any prompt; a longer one evicts its own from then on."""
        return max(self.quota_pages // ANSWER_SHARE, self.protection.recent_pages + 2)

    def branch(self) -> Branch:
        """An empty branch in this partition."""
        return Branch(self)

    def cached_pages(self) -> set[int]:
        """Pages that this partition's own prefix tree keeps."""
        if self.prefixes is None or self.prefixes.partition is not self:
            return set()
        return self.prefixes.pages()

    def holders(self) -> set[Branch]:
        """Roots of the branches that hold pages of this quota."""
        owner = self.pool.table.partition
        return {
            branch.root
            for branch in self.branches
            if any(owner(page) == self.index for pages in branch.tables for page in pages)
        }

    def room(self, group: int) -> int:
        """Pages that can be taken without evicting."""
        return self.quota_pages - self.owned_pages[group]

    def make_room(self, group: int, n_pages: int) -> int:
        """Evict until n_pages can be taken. Returns how many pages were evicted.

        Raises: PoolExhausted if quota and candidates do not suffice; nothing has changed then.
        """
        short = n_pages - self.room(group)
        if short <= 0:
            return 0
        if self.prefixes is not None and self.prefixes.partition is self:
            return self.prefixes.drop(group, short)
        owners, candidates = self._candidates(group)
        scores = self.policy.score(candidates) if owners else torch.empty(0)
        allowed = int((scores < math.inf).sum())
        if allowed < short:
            raise PoolExhausted(self.name, n_pages, self.room(group), allowed)
        for victim in torch.topk(scores, short, largest=False).indices.tolist():
            branch, page = owners[victim]
            branch.drop_page(group, page)
        self.evicted_pages += short
        return short

    def evict(self, page: int) -> None:
        """Evict one named page.

        Raises: VictimRefused if it is free, foreign, shared or protected; nothing has changed then.
        """
        if not 0 <= page < self.pool.total_pages:
            raise VictimRefused(page, f"the pool has pages 0 to {self.pool.total_pages - 1}")
        if self.pool.table.state(page) != PageState.HELD:
            raise VictimRefused(page, "no branch holds it")
        if self.pool.table.partition(page) != self.index:
            raise VictimRefused(page, f"it does not belong to partition {self.name!r}")
        group = page // self.pool.config.pages
        owner = next((branch for branch, held in self._evictable(group) if held == page), None)
        if owner is None:
            raise VictimRefused(page, "it is shared, a sink, recent or under a checkpoint")
        owner.drop_page(group, page)
        self.evicted_pages += 1

    def take(self, group: int, n_pages: int) -> list[int]:
        """Take pages, each with one reference, in allocation order. `make_room` has been called."""
        assert self.room(group) >= n_pages, "take without room"
        self.owned_pages[group] += n_pages
        return self.pool.take(group, n_pages, self.index)

    def share(self, page: int) -> None:
        """Count one more holder of a page, of whichever partition."""
        table = self.pool.table
        references = table.references(page)
        if references == MAX_REFERENCES:
            raise SettingInvalid("branches of one page", references + 1, f"at most {MAX_REFERENCES}")
        table.write(page, PageState.HELD, table.partition(page), references + 1)

    def release(self, page: int) -> bool:
        """Drop one holder of a page; the last one frees it, unless a prefix tree keeps it. True if it was freed."""
        table = self.pool.table
        owner = self.pool.partitions[table.partition(page)]
        references = table.references(page) - 1
        if references:
            table.write(page, PageState.HELD, owner.index, references)
            return False
        if owner.prefixes is not None and owner.prefixes.partition is owner and owner.prefixes.keeps(page):
            table.write(page, PageState.CACHED, owner.index, 0)
            return False
        owner.free(page)
        return True

    def free(self, page: int) -> None:
        """Give an unreferenced page of this partition back to the pool."""
        self.owned_pages[page // self.pool.config.pages] -= 1
        self.pool.put_back(page)

    def adopt(self, page: int) -> None:
        """Become the owner of a held page of another partition. There must be room."""
        group = page // self.pool.config.pages
        assert self.room(group) > 0, "adopt without room"
        table = self.pool.table
        self.pool.partitions[table.partition(page)].owned_pages[group] -= 1
        self.owned_pages[group] += 1
        table.write(page, PageState(table.state(page)), self.index, table.references(page))

    def _evictable(self, group: int) -> list[tuple[Branch, int]]:
        return [
            (branch, page)
            for branch in self.branches
            for page in branch.evictable(group, self.protection.sink_pages, self.protection.recent_pages)
        ]

    def _candidates(self, group: int) -> tuple[list[tuple[Branch, int]], Candidates]:
        owners = self._evictable(group)
        device = self.pool.config.device
        pages = torch.tensor([page for _, page in owners], dtype=torch.int64, device=device)
        positions = {
            page: start
            for branch in self.branches
            for page, start in zip(branch.tables[group], branch.starts[group], strict=True)
        }
        salience = self.pool.salience
        candidates = Candidates(
            pages=pages,
            position=torch.tensor([positions[page] for _, page in owners], dtype=torch.int64, device=device),
            length=torch.tensor([branch.length for branch, _ in owners], dtype=torch.int64, device=device),
            last_used=torch.tensor(
                [branch.last_used for branch, _ in owners], dtype=torch.int64, device=device
            ),
            mass=salience.mass_per_query(pages),
            entropy=salience.entropy_per_query(pages),
            peak=salience.peak(pages),
        )
        return owners, candidates
