"""Branches, partitions and the prefix tree against a plain model: the books balance after every operation."""

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from swarmkv.kvcore import Branch, Checkpoint, PageState, Partition, Pool, PoolConfig, PrefixTree
from swarmkv.kvcore.errors import (
    BranchClosed,
    CheckpointInvalid,
    PoolExhausted,
    SettingInvalid,
    VictimRefused,
)

PAGE = 4


def small_pool(pages: int = 24, groups: int = 2) -> Pool:
    return Pool(
        PoolConfig(
            layers=2,
            kv_heads=1,
            head_dim=4,
            pages=pages,
            page_size=PAGE,
            layer_groups=groups,
            dtype=torch.float32,
        )
    )


class Books(RuleBasedStateMachine):
    """Random forks, extensions, checkpoints, rollbacks, commits, prefix inserts and closes."""

    branches: Bundle[Branch] = Bundle("branches")
    checkpoints: Bundle[tuple[Branch, Checkpoint]] = Bundle("checkpoints")

    def __init__(self) -> None:
        super().__init__()
        self.pool = small_pool()
        self.tree = PrefixTree()
        self.tree.bind(Partition(self.pool, "shared", 4, prefixes=self.tree))
        self.partitions = [
            Partition(self.pool, name, 10, policy="window", prefixes=self.tree) for name in ("a", "b")
        ]
        self.expected: dict[Branch, list[int]] = {}

    @rule(target=branches, which=st.integers(0, 1), prompt=st.lists(st.integers(0, 1), max_size=12))
    def begin(self, which: int, prompt: list[int]) -> Branch:
        branch = self.partitions[which].branch()
        self.tree.match(branch, prompt)
        self.expected[branch] = list(branch.tokens)
        return branch

    @rule(branch=branches, tokens=st.lists(st.integers(0, 1), max_size=9))
    def extend(self, branch: Branch, tokens: list[int]) -> None:
        refusal: PoolExhausted | None = None
        closed = branch.closed
        try:
            branch.extend(tokens)
        except PoolExhausted as error:
            refusal = error
        except BranchClosed:
            assert closed
        else:
            self.expected[branch] += tokens
        assert refusal is None or refusal.needed_pages > refusal.free_pages

    @rule(target=branches, branch=branches)
    def fork(self, branch: Branch) -> Any:
        if branch.closed:
            return multiple()
        child = branch.fork()
        self.expected[child] = list(self.expected[branch])
        return child

    @rule(target=checkpoints, branch=branches)
    def checkpoint(self, branch: Branch) -> Any:
        return multiple() if branch.closed else (branch, branch.checkpoint())

    @rule(pair=consumes(checkpoints))
    def rollback(self, pair: tuple[Branch, Checkpoint]) -> None:
        branch, to = pair
        try:
            branch.rollback(to)
        except (BranchClosed, CheckpointInvalid):
            return
        del self.expected[branch][to.length :]

    @rule(branch=branches)
    def commit(self, branch: Branch) -> None:
        parent = branch.parent
        try:
            branch.commit()
        except (BranchClosed, CheckpointInvalid):
            return
        if parent is not None:
            self.expected[parent] = list(self.expected[branch])

    @rule(branch=branches)
    def insert(self, branch: Branch) -> None:
        if not branch.closed:
            self.tree.insert(branch, branch.length)

    @rule(branch=consumes(branches))
    def close(self, branch: Branch) -> None:
        branch.close()
        assert branch.close() == 0

    @invariant()
    def balanced(self) -> None:
        books = self.pool.audit()
        assert books.free_pages + books.held_pages + books.cached_pages == books.total_pages
        for partition in (*self.partitions, self.tree.partition):
            assert partition is not None
            assert all(0 <= owned <= partition.quota_pages for owned in partition.owned_pages)

    @invariant()
    def contents(self) -> None:
        for branch, tokens in self.expected.items():
            if branch.closed:
                continue
            assert branch.tokens == tokens
            for table, starts in zip(branch.tables, branch.starts, strict=True):
                assert len(table) == len(starts) == len(set(table))
                assert starts == sorted(starts)
                assert all(start % PAGE == 0 for start in starts)
                assert not tokens or starts[-1] == (len(tokens) - 1) // PAGE * PAGE


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_full_partition_evicts_or_says_what_is_missing() -> None:
    pool = small_pool(groups=1)
    branch = Partition(pool, "p", 6, policy="window").branch()
    branch.extend([0] * PAGE * 6)
    assert branch.extend([1]) == 1
    checkpoint = branch.checkpoint()
    with pytest.raises(PoolExhausted) as caught:
        branch.extend([1] * PAGE * 2)
    assert caught.value.evictable_pages == 0
    assert branch.length == checkpoint.length
    pool.audit()


def test_rollback_of_another_branch_or_the_future_is_refused() -> None:
    partition = Partition(small_pool(), "p", 10)
    one, other = partition.branch(), partition.branch()
    one.extend([1, 2, 3])
    ahead = one.checkpoint()
    with pytest.raises(CheckpointInvalid):
        other.rollback(ahead)
    one.truncate(1)
    with pytest.raises(CheckpointInvalid):
        one.rollback(ahead)


def test_commit_refuses_a_parent_that_changed() -> None:
    parent = Partition(small_pool(), "p", 10).branch()
    parent.extend([1, 2])
    child = parent.fork()
    child.extend([3])
    parent.extend([4])
    with pytest.raises(CheckpointInvalid):
        child.commit()


def test_quotas_may_not_exceed_the_pool() -> None:
    pool = small_pool(pages=8)
    Partition(pool, "a", 5)
    with pytest.raises(SettingInvalid, match="3 more pages"):
        Partition(pool, "b", 4)


def test_salts_share_nothing() -> None:
    pool, tree = small_pool(), PrefixTree()
    tree.bind(Partition(pool, "shared", 4, prefixes=tree))
    partition = Partition(pool, "a", 10, prefixes=tree)
    branch = partition.branch()
    branch.extend([1] * 9)
    assert tree.insert(branch, 9, salt="tenant-1") == 4
    assert tree.match(partition.branch(), [1] * 9, salt="tenant-2") == 0
    assert tree.match(partition.branch(), [1] * 9, salt="tenant-1") == 8


def test_a_full_prefix_leaves_one_token_to_compute() -> None:
    pool, tree = small_pool(), PrefixTree()
    tree.bind(Partition(pool, "shared", 4, prefixes=tree))
    partition = Partition(pool, "a", 10, prefixes=tree)
    branch = partition.branch()
    branch.extend([1] * 8)
    tree.insert(branch, 8)
    assert tree.match(partition.branch(), [1] * 8) == PAGE


def test_closed_prefix_pages_stay_cached_and_are_dropped_for_newer_ones() -> None:
    pool, tree = small_pool(groups=1), PrefixTree()
    shared = Partition(pool, "shared", 2, prefixes=tree)
    tree.bind(shared)
    partition = Partition(pool, "a", 10, prefixes=tree)
    for token in (1, 2, 3):
        branch = partition.branch()
        branch.extend([token] * PAGE)
        assert tree.insert(branch, PAGE) == 1
        assert branch.close() == 0
    books = pool.audit()
    assert (books.cached_pages, books.held_pages) == (2, 0)
    assert tree.match(partition.branch(), [1] * (PAGE + 1)) == 0
    assert tree.match(partition.branch(), [3] * (PAGE + 1)) == PAGE


def test_named_eviction_refuses_what_is_protected() -> None:
    pool = small_pool(groups=1)
    partition = Partition(pool, "p", 8, policy="window")
    branch = partition.branch()
    branch.extend([0] * PAGE * 7)
    table = list(branch.tables[0])
    for page in (table[0], table[-1], 23, 99):
        with pytest.raises(VictimRefused):
            partition.evict(page)
    foreign = Partition(pool, "q", 4)
    with pytest.raises(VictimRefused):
        foreign.evict(table[2])
    partition.evict(table[2])
    assert pool.table.read(table[2]).state == PageState.FREE
    assert branch.starts[0] == [0, 4, 12, 16, 20, 24]
    pool.audit()


def test_generation_changes_with_reuse() -> None:
    pool = small_pool(groups=1)
    partition = Partition(pool, "p", 8)
    branch = partition.branch()
    branch.extend([1])
    page = branch.tables[0][0]
    before = pool.table.read(page)
    branch.close()
    again = partition.branch()
    again.extend([1])
    after = pool.table.read(page)
    assert again.tables[0] == [page]
    assert after.generation == before.generation + 1


def test_page_table_in_a_foreign_buffer() -> None:
    buffer = bytearray(8 * 8)
    pool = Pool(
        PoolConfig(layers=1, kv_heads=1, head_dim=4, pages=8, dtype=torch.float32), table=memoryview(buffer)
    )
    Partition(pool, "p", 8).branch().extend([1])
    assert any(buffer)
    pool.close()
