"""The prefix tree: full pages of prompts that later branches may begin with.

A node is one page of tokens, found by comparing the tokens themselves, so nothing depends on a hash. Tenants
are kept apart by a salt at the root. Only what its caller vouches for is inserted (instructions, committed
tokens): a rejected token can never be found here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import PoolExhausted
from .page_table import PageState

if TYPE_CHECKING:
    from .branch import Branch
    from .partition import Partition


class _Node:
    __slots__ = ("children", "last_used", "pages", "parent", "tokens")

    def __init__(self, parent: _Node | None, tokens: tuple[int, ...], pages: tuple[int, ...]) -> None:
        self.parent, self.tokens, self.pages = parent, tokens, pages
        self.children: dict[tuple[int, ...], _Node] = {}
        self.last_used = 0


class PrefixTree:
    """A tree of shared pages that belong to one partition, `partition`, and count against its quota."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._by_page: dict[int, _Node] = {}
        self._clock = itertools.count(1)
        self._partition: Partition | None = None

    @property
    def partition(self) -> Partition | None:
        return self._partition

    def bind(self, partition: Partition) -> None:
        """Say whose quota the tree's pages count against."""
        self._partition = partition

    def pages(self) -> set[int]:
        return set(self._by_page)

    def keeps(self, page: int) -> bool:
        return page in self._by_page

    def match(self, branch: Branch, tokens: Sequence[int], *, salt: str = "") -> int:
        """Begin an empty branch with the longest known prefix, leaving one token or more to compute.

        Returns the number of tokens that need not be computed.
        """
        page_size = branch.partition.pool.config.page_size
        node, path = self._roots.get(salt), list[_Node]()
        for start in range(0, len(tokens) - page_size, page_size):
            node = node.children.get(tuple(tokens[start : start + page_size])) if node else None
            if node is None:
                break
            node.last_used = next(self._clock)
            path.append(node)
        if not path:
            return 0
        reused = len(path) * page_size
        branch.attach_prefix(tokens[:reused], list(zip(*(node.pages for node in path), strict=True)))
        return reused

    def insert(self, branch: Branch, n_tokens: int, *, salt: str = "") -> int:
        """Keep the full pages of a branch's first n_tokens tokens. Returns the pages newly kept.

        Stops early where the branch no longer holds a page or where the tree's quota is used up by pages
        that branches hold.
        """
        owner = self._partition
        assert owner is not None, "the tree has no partition"
        page_size = branch.partition.pool.config.page_size
        node = self._roots.setdefault(salt, _Node(None, (), ()))
        kept = 0
        for index in range(min(n_tokens, branch.length) // page_size):
            if any(len(starts) <= index or starts[index] != index * page_size for starts in branch.starts):
                break
            tokens = tuple(branch.tokens[index * page_size : (index + 1) * page_size])
            child = node.children.get(tokens)
            if child is None:
                pages = tuple(table[index] for table in branch.tables)
                if any(page in self._by_page for page in pages) or not self._adopt(owner, pages):
                    break
                child = _Node(node, tokens, pages)
                node.children[tokens] = child
                self._by_page.update(dict.fromkeys(pages, child))
                kept += len(pages)
            child.last_used = next(self._clock)
            node = child
        return kept

    def drop(self, group: int, n_pages: int) -> int:
        """Evict least recently used leaves until n_pages of the group are freed. Returns the pages freed there.

        Raises: PoolExhausted if branches hold too many; what could be dropped has been dropped.
        """
        owner = self._partition
        assert owner is not None, "the tree has no partition"
        dropped = 0
        while dropped < n_pages:
            leaf = self._coldest_leaf()
            if leaf is None:
                raise PoolExhausted(owner.name, n_pages, owner.room(group), dropped)
            self._remove(leaf)
            dropped += 1
        return dropped

    def clear(self) -> None:
        """Forget every prefix: pages that branches hold stay theirs, the others are freed."""
        for node in list(self._by_page.values()):
            for page in node.pages:
                self._forget(page)
        self._roots.clear()

    def _adopt(self, owner: Partition, pages: tuple[int, ...]) -> bool:
        for group in range(len(pages)):
            while owner.room(group) < 1:
                leaf = self._coldest_leaf()
                if leaf is None:
                    return False
                self._remove(leaf)
        for page in pages:
            owner.adopt(page)
        return True

    def _coldest_leaf(self) -> _Node | None:
        """The least recently used node without children whose pages no branch holds."""
        assert self._partition is not None
        state = self._partition.pool.table.state
        leaves = (
            node
            for node in self._by_page.values()
            if not node.children and all(state(page) == PageState.CACHED for page in node.pages)
        )
        return min(leaves, key=lambda node: node.last_used, default=None)

    def _remove(self, node: _Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.tokens]
        for page in node.pages:
            self._forget(page)

    def _forget(self, page: int) -> None:
        del self._by_page[page]
        owner = self._partition
        assert owner is not None
        if owner.pool.table.state(page) == PageState.CACHED:
            owner.free(page)
