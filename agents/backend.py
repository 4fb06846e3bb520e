"""The seam to models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .message import AttemptKey, Generation, Message, Sampling, Usage


class Backend(Protocol):
    """What turns messages into text. A task has one branch; an attempt's text can be taken back from it."""

    async def generate(
        self,
        key: AttemptKey,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        schema: bytes | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """Answer a conversation, given whole each time; what the task's branch holds of it already is reused.

        `schema` is a JSON schema that the answer must follow, `on_text` gets the answer piece by piece. The
        first call of an attempt sets the checkpoint, after its prompt. A call for a later attempt waits until
        the one before it was settled. Cancelled, it stops generating and leaves the branch usable.
        """
        ...

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        """The gate's verdict on an attempt.

        Accepted: the task's branch goes, and with it the pages that only served it (`evicted_pages`).
        Rejected: the branch returns to the checkpoint (`rolled_back_tokens`).
        A verdict on what is no attempt in progress changes nothing.
        """
        ...

    async def release(self, run: str, task: str) -> Usage:
        """Forget a task's branch, whatever its state. Idempotent."""
        ...
