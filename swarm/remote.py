"""The engine as a worker sees it: `agents.Backend` over a mailbox."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from ..agents import AttemptKey, Generation, Message, Sampling, Usage
from ..agents.errors import AgentError, BackendLost, GenerationFailed
from .fabric import Mailbox
from .messages import (
    CancelGenerate,
    EngineToWorker,
    Generate,
    Generated,
    GenerateFailed,
    GenerateText,
    WorkerToEngine,
)
from .sending import Sender, Unsendable, why_unsendable


class _Waiting:
    """A generate call that waits for its answer."""

    def __init__(self, future: asyncio.Future[Generation], on_text: Callable[[str], None] | None) -> None:
        self.future, self.on_text = future, on_text

    def fail(self, error: AgentError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class EngineClient:
    """Sends generate requests to the engine and pairs its answers. The engine may be replaced under it.

    Verdicts are not a worker's to give: `settle` and `release` are the coordinator's, and refuse here.
    """

    def __init__(self) -> None:
        self._mailbox: Mailbox[WorkerToEngine, EngineToWorker] | None = None
        self._sender: Sender[WorkerToEngine] | None = None
        self._attached = asyncio.Event()
        self._serials = itertools.count(1)
        self._calls: dict[int, _Waiting] = {}

    def attach(self, mailbox: Mailbox[WorkerToEngine, EngineToWorker]) -> None:
        """Talk to this engine from now on; calls to the one before it raise BackendLost."""
        self.detach()
        self._mailbox, self._sender = mailbox, Sender(mailbox)
        mailbox.on_message = self._receive
        self._attached.set()

    def detach(self) -> None:
        """Close the mailbox; calls in flight raise BackendLost. Idempotent."""
        self._attached.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(BackendLost())
        if self._sender is not None:
            self._sender.close()
        if self._mailbox is not None:
            self._mailbox.close()
        self._mailbox = self._sender = None

    async def generate(
        self,
        key: AttemptKey,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        schema: bytes | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """See `agents.Backend.generate`. Raises: BackendLost, GenerationFailed with the engine's error."""
        await self._attached.wait()
        assert self._sender is not None
        serial = next(self._serials)
        call = _Waiting(asyncio.get_running_loop().create_future(), on_text)
        self._calls[serial] = call
        sender = self._sender
        try:
            sender.push(
                Generate(serial, key, tuple(messages), sampling, schema, on_text is not None),
                lambda error: call.fail(_not_sent(error)),
            )
            return await call.future
        except asyncio.CancelledError:
            sender.push(CancelGenerate(serial))
            raise
        finally:
            self._calls.pop(serial, None)

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        raise PermissionError("a worker gives no verdicts")

    async def release(self, run: str, task: str) -> Usage:
        raise PermissionError("a worker releases no branches")

    def _receive(self, message: EngineToWorker) -> None:
        call = self._calls.get(message.serial)
        if call is None or call.future.done():
            return
        if isinstance(message, GenerateText):
            if call.on_text is not None:
                call.on_text(message.piece)
        elif isinstance(message, Generated):
            call.future.set_result(message.generation)
        else:
            assert isinstance(message, GenerateFailed)
            call.fail(GenerationFailed(message.kind, message.message, retryable=message.retryable))


def _not_sent(error: Unsendable) -> GenerationFailed:
    return GenerationFailed(type(error).__name__, why_unsendable("the prompt", error), retryable=False)
