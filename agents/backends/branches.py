"""The branches of a local backend: which pages each task holds, and what its attempts did to them.

Everything here runs in the backend's step thread. A task's branch holds its prompt; each attempt decodes on a
fork of it. A rejected attempt's fork is closed, which is the rollback to the checkpoint; an accepted one is
committed, and with the task's end its pages are given up, except those that the prefix tree shares.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...kvcore.errors import PoolExhausted
from ..message import AttemptKey, Message, Usage
from .chat import ChatFormat, common_prefix

if TYPE_CHECKING:
    from ...kvcore import Branch, Partition, PrefixTree, Request


class Turn:
    """What a generate call begins with: the branch to extend and the tokens that it lacks."""

    def __init__(self, branch: Branch, missing: list[int], reused_tokens: int) -> None:
        self.branch, self.missing, self.reused_tokens = branch, missing, reused_tokens


class TaskBranch:
    """One task's prompt branch and its attempt in progress."""

    def __init__(self, partition: Partition, prefixes: PrefixTree, chat: ChatFormat) -> None:
        self.partition, self.prefixes, self.chat = partition, prefixes, chat
        self.branch = partition.branch()
        self.attempt = 0
        self.fork: Branch | None = None
        self.taken_back_tokens = 0
        """tokens that a rejection of the attempt in progress takes back"""
        self.request: Request | None = None

    def begin(self, key: AttemptKey, messages: Sequence[Message]) -> Turn:
        """Bring the task's branch to the longest beginning of the conversation that it holds."""
        ids = self.chat.ids(messages)
        if key.attempt != self.attempt:
            self.attempt, self.taken_back_tokens = key.attempt, 0
            assert self.fork is None, "an attempt begins before the last one was settled"
        branch = self.fork or self.branch
        if branch.length == 0:
            return self._missing(branch, ids, self.prefixes.match(branch, ids))
        kept = min(common_prefix(branch.tokens, ids), len(ids) - 1)
        resident = all(not starts or _covers(starts, kept, self._page_size) for starts in branch.starts)
        if self.fork is None and not resident:
            branch.close()
            branch = self.branch = self.partition.branch()
            return self._missing(branch, ids, self.prefixes.match(branch, ids))
        branch.truncate(kept)
        return self._missing(branch, ids, kept)

    def prefilled(self, request: Request, messages: Sequence[Message]) -> None:
        """The conversation is in the branch: share the instructions, and fork for the attempt."""
        if self.fork is not None:
            self.taken_back_tokens += request.prefilled_tokens
            return
        shared = self.chat.instruction_tokens(messages, self.branch.tokens)
        self.prefixes.insert(self.branch, shared)
        request.evicted_pages += self._make_room(request.max_tokens)
        self.fork = request.branch = self.branch.fork()

    def reject(self) -> Usage:
        """Take back what the attempt in progress added."""
        if self.fork is not None:
            self.fork.close()
            self.fork = None
        taken_back, self.taken_back_tokens = self.taken_back_tokens, 0
        return Usage(rolled_back_tokens=taken_back)

    def accept(self) -> Usage:
        """Commit the attempt and give up the pages that only served the task."""
        freed = self.fork.commit() if self.fork is not None else 0
        self.fork = None
        return Usage(evicted_pages=freed + self.branch.close())

    def close(self) -> Usage:
        """Give up everything, whatever the state."""
        freed = self.fork.close() if self.fork is not None else 0
        self.fork = None
        return Usage(evicted_pages=freed + self.branch.close())

    def _make_room(self, max_tokens: int) -> int:
        """Evict for the answer while it is possible: from the fork on, the prompt's pages stay for a retry.

        A long answer gets a share of the partition and evicts its own pages from then on. Where other tasks
        hold the pages nothing is evicted: they may be done before the answer needs them.
        """
        partition = self.partition
        pages = min(-(-max_tokens // self._page_size) + 1, partition.answer_pages)
        with contextlib.suppress(PoolExhausted):
            return sum(partition.make_room(group, pages) for group in range(len(self.branch.tables)))
        return 0

    @property
    def _page_size(self) -> int:
        return self.partition.pool.config.page_size

    @staticmethod
    def _missing(branch: Branch, ids: list[int], reused: int) -> Turn:
        return Turn(branch, ids[reused:], reused)


def _covers(starts: Sequence[int], length: int, page_size: int) -> bool:
    """Whether a cut at `length` falls on a page border or into a page that is still held."""
    return length % page_size == 0 or length - length % page_size in starts
