"""What kvcore raises.

KVCoreError
├── BudgetTooSmall        the memory given cannot hold one working set; nothing was allocated
├── ContextTooLong        more tokens than the model has positions for; nothing was written
├── PoolExhausted         a partition is full and its policy finds too few pages to evict; nothing has changed
├── BranchClosed          an operation on a branch that was committed or closed
├── CheckpointInvalid     a rollback or commit that does not fit the branch's history
├── VictimRefused         a policy or mask named a page that may not be evicted; nothing has changed
├── SettingInvalid        a setting outside its range, named with the range
├── AttentionUnsupported  the model asks of attention what this build cannot do exactly
├── ConstraintFailed      the caller's constraint on the next token met an error
├── StepContextMissing    our attention function ran outside a Runner's step
└── BooksUnbalanced       the audit found pages that are lost or counted twice: a bug of ours, not of the caller
"""

from __future__ import annotations

from typing import ClassVar


class KVCoreError(Exception):
    """Root of what kvcore raises; `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False


class BudgetTooSmall(KVCoreError):
    def __init__(self, given_bytes: int, needed_bytes: int, why: str) -> None:
        self.given_bytes, self.needed_bytes = given_bytes, needed_bytes
        super().__init__(
            f"a KV budget of {given_bytes:,} bytes is too small: {why}; raise kv_budget to at least "
            f"{needed_bytes:,} bytes ({-(-needed_bytes // 2**20)}MiB)"
        )


class ContextTooLong(KVCoreError):
    def __init__(self, tokens: int, limit_tokens: int) -> None:
        self.tokens, self.limit_tokens = tokens, limit_tokens
        super().__init__(
            f"{tokens:,} tokens do not fit the model's {limit_tokens:,} positions; "
            "split the input into parts or choose a model with a longer context"
        )


class PoolExhausted(KVCoreError):
    retryable = True

    def __init__(self, partition: str, needed_pages: int, free_pages: int, evictable_pages: int) -> None:
        self.partition = partition
        self.needed_pages, self.free_pages, self.evictable_pages = needed_pages, free_pages, evictable_pages
        super().__init__(
            f"partition {partition!r} needs {needed_pages} pages and has {free_pages} free and "
            f"{evictable_pages} evictable; raise kv_budget, run fewer tasks per worker or shorten the prompt"
        )


class BranchClosed(KVCoreError):
    def __init__(self, branch_id: int) -> None:
        self.branch_id = branch_id
        super().__init__(f"branch {branch_id} is closed; fork a new one from its parent")


class CheckpointInvalid(KVCoreError):
    pass


class VictimRefused(KVCoreError):
    def __init__(self, page: int, reason: str) -> None:
        self.page, self.reason = page, reason
        super().__init__(f"page {page} may not be evicted: {reason}")


class SettingInvalid(KVCoreError):
    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(f"{name}={value!r} is not allowed; it takes {allowed}")


class AttentionUnsupported(KVCoreError):
    def __init__(self, feature: str, reason: str) -> None:
        self.feature, self.reason = feature, reason
        super().__init__(f"this model needs {feature}, and {reason}")


class ConstraintFailed(KVCoreError):
    pass


class StepContextMissing(KVCoreError):
    def __init__(self) -> None:
        super().__init__(
            "kvcore's attention ran without a step: call the model through kvcore.Runner, "
            "which says where each token's keys and values live"
        )


class BooksUnbalanced(KVCoreError):
    pass
