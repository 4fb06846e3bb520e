"""A branch: a copy-on-write sequence of pages.

The life of a branch: `fork` shares its pages, `extend` adds tokens (copying a shared tail page first),
`checkpoint` remembers a length, `rollback` returns to it, `commit` folds a fork into its parent, `close`
releases the pages. Tokens keep their positions when pages before them are evicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from .errors import BranchClosed, CheckpointInvalid

if TYPE_CHECKING:
    from .partition import Partition

_ids = itertools.count(1)


class Checkpoint(msgspec.Struct, frozen=True):
    """A length of one branch to which it can return."""

    branch_id: int
    length: int


class Branch:
    """Tokens and, per layer group, the pages that hold their keys and values.

    `tables[group]` lists page ids in order of position, `starts[group]` the position of each page's first
    token. Every page but the last one of a table is full; the last holds `length - start` tokens.
    """

    def __init__(self, partition: Partition, parent: Branch | None = None) -> None:
        self.id = next(_ids)
        self.partition = partition
        self.parent = parent
        self.tokens: list[int] = []
        self.tables: list[list[int]] = [[] for _ in range(partition.pool.config.layer_groups)]
        self.starts: list[list[int]] = [[] for _ in range(partition.pool.config.layer_groups)]
        self.evicted_pages = 0
        """pages of this branch that a policy gave up"""
        self.last_used = 0
        self._protected_tokens = 0
        self.closed = False
        partition.branches.add(self)

    @property
    def length(self) -> int:
        """Tokens, evicted ones included: the position of the next token."""
        return len(self.tokens)

    @property
    def root(self) -> Branch:
        """The branch that this one descends from by forks, itself if it is no fork."""
        return self if self.parent is None else self.parent.root

    def fork(self) -> Branch:
        """A branch that begins as this one. O(pages), no copy: both hold the same pages."""
        self._require_open()
        child = Branch(self.partition, parent=self)
        child.tokens = list(self.tokens)
        child.tables = [list(table) for table in self.tables]
        child.starts = [list(starts) for starts in self.starts]
        child.evicted_pages = self.evicted_pages
        child.last_used = self.last_used
        for table in self.tables:
            for page in table:
                self.partition.share(page)
        return child

    def attach_prefix(self, tokens: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Begin an empty branch with full pages that a prefix tree keeps. pages[group] covers the tokens."""
        self._require_open()
        assert not self.tokens, "a prefix goes to the start of an empty branch"
        page_size = self.partition.pool.config.page_size
        self.tokens = list(tokens)
        for group, shared in enumerate(pages):
            self.tables[group] = list(shared)
            self.starts[group] = list(range(0, len(tokens), page_size))
            for page in shared:
                self.partition.share(page)

    def pages_short(self, n_tokens: int) -> int:
        """Pages that `extend(n_tokens)` would take in each layer group, the copy of a shared tail included."""
        page_size = self.partition.pool.config.page_size
        fill = self.tail_tokens()
        new = -(-max(0, n_tokens - (page_size - fill if fill else 0)) // page_size)
        return new + (1 if fill and self._tail_is_shared() else 0)

    def extend(self, tokens: Sequence[int]) -> int:
        """Add tokens and make their slots writable. Returns how many pages were evicted for that.

        The tokens' keys and values are written by the step that called.
        Raises: PoolExhausted if the partition cannot make room (no token was added; pages may have been
        evicted in an earlier layer group), BranchClosed.
        """
        self._require_open()
        if not tokens:
            return 0
        pool, partition = self.partition.pool, self.partition
        page_size = pool.config.page_size
        short = self.pages_short(len(tokens))
        shared_tail = bool(self.tail_tokens()) and self._tail_is_shared()
        evicted = sum(partition.make_room(group, short) for group in range(len(self.tables)))
        end = self.length + len(tokens)
        for group, (table, starts) in enumerate(zip(self.tables, self.starts, strict=True)):
            fresh = partition.take(group, short)
            if shared_tail:
                copy = fresh.pop(0)
                pool.copy_page(table[-1], copy)
                partition.release(table[-1])
                table[-1] = copy
            table.extend(fresh)
            first = end - (end - 1) % page_size - 1 - (len(fresh) - 1) * page_size
            starts.extend(range(first, first + len(fresh) * page_size, page_size))
        self.tokens.extend(tokens)
        return evicted

    def checkpoint(self) -> Checkpoint:
        """Remember this length. Until commit or rollback no page under it is evicted."""
        self._require_open()
        self._protected_tokens = self.length
        return Checkpoint(self.id, self.length)

    def rollback(self, to: Checkpoint) -> int:
        """Return to a checkpoint. Returns the tokens dropped. O(pages freed).

        Raises: CheckpointInvalid if it is another branch's or longer than the branch.
        """
        self._require_open()
        if to.branch_id != self.id:
            raise CheckpointInvalid(f"checkpoint of branch {to.branch_id} used on branch {self.id}")
        if to.length > self.length:
            raise CheckpointInvalid(f"checkpoint at {to.length} tokens, the branch has {self.length}")
        dropped = self.truncate(to.length)
        self._protected_tokens = 0
        return dropped

    def truncate(self, length: int) -> int:
        """Drop the tokens from `length` on: whole pages are released, one is cut. Returns the tokens dropped.

        Raises: CheckpointInvalid if the cut would fall into a page that was evicted.
        """
        self._require_open()
        for group, starts in enumerate(self.starts):
            kept = [start for start in starts if start < length]
            page_size = self.partition.pool.config.page_size
            if length % page_size and (not kept or kept[-1] != length - length % page_size):
                raise CheckpointInvalid(f"the page at position {length} of group {group} was evicted")
        dropped = self.length - length
        for table, starts in zip(self.tables, self.starts, strict=True):
            while starts and starts[-1] >= length:
                starts.pop()
                self.partition.release(table.pop())
        del self.tokens[length:]
        self._protected_tokens = min(self._protected_tokens, length)
        return dropped

    def commit(self) -> int:
        """Make what this branch holds permanent. Returns how many pages that freed (a tail that was copied).

        A fork replaces its parent's content with its own and is closed; the parent must not have grown since.
        A branch without a parent forgets its checkpoints.
        Raises: CheckpointInvalid if the parent has changed since the fork, BranchClosed.
        """
        self._require_open()
        self._protected_tokens = 0
        parent = self.parent
        if parent is None:
            return 0
        parent._require_open()
        if self.tokens[: parent.length] != parent.tokens:
            raise CheckpointInvalid(f"branch {parent.id} has changed since branch {self.id} was forked")
        freed = sum(parent.partition.release(page) for table in parent.tables for page in table)
        parent.tokens, parent.tables, parent.starts = self.tokens, self.tables, self.starts
        parent.evicted_pages, parent.last_used = self.evicted_pages, self.last_used
        parent._protected_tokens = 0
        self.tokens, self.tables, self.starts = [], [[] for _ in self.tables], [[] for _ in self.starts]
        self.close()
        return freed

    def close(self) -> int:
        """Release every page. Returns how many went back to the pool. Idempotent."""
        if self.closed:
            return 0
        freed = sum(self.partition.release(page) for table in self.tables for page in table)
        self.tokens, self.tables, self.starts = [], [[] for _ in self.tables], [[] for _ in self.starts]
        self.partition.branches.discard(self)
        self.closed = True
        return freed

    def evictable(self, group: int, sink_pages: int, recent_pages: int) -> list[int]:
        """Pages that may be evicted: no sink, no recent page, no shared page, none under a checkpoint."""
        table, starts = self.tables[group], self.starts[group]
        pool = self.partition.pool
        page_size = pool.config.page_size
        last = len(table) - max(recent_pages, 1)
        return [
            page
            for page, start in zip(table[:last] if last > 0 else [], starts, strict=False)
            if start >= max(sink_pages * page_size, self._protected_tokens)
            and pool.table.references(page) == 1
            and pool.table.partition(page) == self.partition.index
        ]

    def drop_page(self, group: int, page: int) -> None:
        """Evict one page: later tokens no longer attend to it. The partition has chosen it."""
        index = self.tables[group].index(page)
        del self.tables[group][index], self.starts[group][index]
        self.partition.release(page)
        self.evicted_pages += 1

    def resident_tokens(self, group: int) -> int:
        """Tokens whose keys and values are still held in a layer group."""
        starts = self.starts[group]
        if not starts:
            return 0
        return (len(starts) - 1) * self.partition.pool.config.page_size + self.length - starts[-1]

    def tail_tokens(self) -> int:
        """Tokens in the last page if that is not full, else 0."""
        return self.length % self.partition.pool.config.page_size

    def _tail_is_shared(self) -> bool:
        references = self.partition.pool.table.references
        return any(references(table[-1]) > 1 for table in self.tables)

    def _require_open(self) -> None:
        if self.closed:
            raise BranchClosed(self.id)
