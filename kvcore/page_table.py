"""The page table: one 64-bit word a page, written by its engine alone and readable by any process.

Word layout, from the lowest bit:

    bits  0..1    state       0 free, 1 held (by one branch or more), 2 cached (by the prefix tree alone)
    bits  2..15   partition   index of the owner; meaningless while free
    bits 16..31   references  how many branches hold the page
    bits 32..63   generation  counts the page's reuses, so that a reader can tell a page from its successor

A word is stored whole (one aligned 64-bit store), so a reader never sees half of a change.
"""

from __future__ import annotations

import enum

import msgspec

_PARTITION_SHIFT, _PARTITION_MASK = 2, (1 << 14) - 1
_REFERENCES_SHIFT, _REFERENCES_MASK = 16, (1 << 16) - 1
_GENERATION_SHIFT, _GENERATION_MASK = 32, (1 << 32) - 1

MAX_PARTITIONS = _PARTITION_MASK + 1
MAX_REFERENCES = _REFERENCES_MASK


class PageState(enum.IntEnum):
    FREE = 0
    HELD = 1
    CACHED = 2


class PageWord(msgspec.Struct, frozen=True):
    """One page-table word, decoded."""

    state: PageState
    partition: int
    references: int
    generation: int


class PageTable:
    """Words of `n_pages` pages over a buffer of `8 * n_pages` bytes, for instance a shared segment.

    Without a buffer the table is private to this process. There is one writer; readers need no lock.
    """

    def __init__(self, n_pages: int, buffer: memoryview | None = None) -> None:
        if buffer is None:
            buffer = memoryview(bytearray(8 * n_pages))
        if buffer.nbytes < 8 * n_pages:
            raise ValueError(f"{n_pages} pages need a buffer of {8 * n_pages} bytes, got {buffer.nbytes}")
        self._words = buffer[: 8 * n_pages].cast("B").cast("Q")

    def __len__(self) -> int:
        return len(self._words)

    def read(self, page: int) -> PageWord:
        word = self._words[page]
        return PageWord(
            PageState(word & 3),
            word >> _PARTITION_SHIFT & _PARTITION_MASK,
            word >> _REFERENCES_SHIFT & _REFERENCES_MASK,
            word >> _GENERATION_SHIFT,
        )

    def write(self, page: int, state: PageState, partition: int, references: int) -> None:
        """Store a page's word, keeping its generation; a free page that becomes held gets the next one."""
        old = self._words[page]
        generation = old >> _GENERATION_SHIFT
        if old & 3 == PageState.FREE and state != PageState.FREE:
            generation = generation + 1 & _GENERATION_MASK
        self._words[page] = (
            state
            | partition << _PARTITION_SHIFT
            | references << _REFERENCES_SHIFT
            | generation << _GENERATION_SHIFT
        )

    def references(self, page: int) -> int:
        return self._words[page] >> _REFERENCES_SHIFT & _REFERENCES_MASK

    def partition(self, page: int) -> int:
        return self._words[page] >> _PARTITION_SHIFT & _PARTITION_MASK

    def state(self, page: int) -> int:
        return self._words[page] & 3

    def close(self) -> None:
        """Release the view, so that the segment under it can be unmapped."""
        self._words.release()
