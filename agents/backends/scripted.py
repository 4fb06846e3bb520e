"""A backend without a model: it says what its script says. For tests, and for trying a swarm's plumbing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ..errors import GenerationFailed
from ..message import AttemptKey, Generation, Message, Sampling, Usage

Script = Callable[[AttemptKey, Sequence[Message]], str]


class _Branch:
    def __init__(self) -> None:
        self.prompt: list[str] = []
        self.decoded: list[str] = []
        self.attempt = 0
        self.settled = asyncio.Event()


class ScriptedBackend:
    """Answers from a list, one entry a call, or from a function of (key, messages). A token is a word.

    It keeps branches as the local backend does, and counts the same usage, with words for tokens.
    """

    def __init__(
        self, script: Sequence[str] | Script, *, delay: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._replies = None if callable(script) else iter(script)
        self._script = script if callable(script) else None
        self._delay = delay
        self._branches: dict[tuple[str, str], _Branch] = {}
        self._instructions: set[tuple[str, ...]] = set()
        self.calls: list[tuple[AttemptKey, tuple[Message, ...]]] = []
        """every generate call, in order"""

    async def generate(
        self,
        key: AttemptKey,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        schema: bytes | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        branch = await self._branch(key)
        self.calls.append((key, tuple(messages)))
        usage = self._prefill(branch, messages)
        if self._delay is not None:
            await self._delay()
        words = self._reply(key, messages).split(" ")
        kept = words[: sampling.max_tokens]
        branch.decoded += kept
        text = " ".join(kept)
        if on_text is not None:
            for index, word in enumerate(kept):
                on_text(word if index == 0 else f" {word}")
        finish = "length" if len(kept) < len(words) else "stop"
        return Generation(text, finish, usage + Usage(decoded_tokens=len(kept)))  # type: ignore[arg-type]

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        branch = self._branches.get((key.run, key.task))
        if branch is None or branch.attempt != key.attempt:
            return Usage()
        taken_back, branch.decoded = len(branch.decoded), []
        branch.settled.set()
        if not accepted:
            return Usage(rolled_back_tokens=taken_back)
        del self._branches[key.run, key.task]
        return Usage(evicted_pages=1)

    async def release(self, run: str, task: str) -> Usage:
        branch = self._branches.pop((run, task), None)
        if branch is None:
            return Usage()
        branch.settled.set()
        return Usage(evicted_pages=1)

    async def _branch(self, key: AttemptKey) -> _Branch:
        name = (key.run, key.task)
        while True:
            branch = self._branches.setdefault(name, _Branch())
            if branch.attempt in (0, key.attempt):
                branch.attempt = key.attempt
                return branch
            if branch.settled.is_set():
                branch.attempt = key.attempt
                branch.settled = asyncio.Event()
                return branch
            await branch.settled.wait()

    def _prefill(self, branch: _Branch, messages: Sequence[Message]) -> Usage:
        words = [word for message in messages for word in message.content.split()]
        instructions = tuple(messages[0].content.split()) if messages[0].role == "system" else ()
        held = branch.prompt + branch.decoded
        if not held and instructions in self._instructions:
            held = list(instructions)
        reused = 0
        while reused < min(len(held), len(words) - 1) and held[reused] == words[reused]:
            reused += 1
        self._instructions.add(instructions)
        branch.prompt = words
        return Usage(prefilled_tokens=len(words) - reused, reused_tokens=reused)

    def _reply(self, key: AttemptKey, messages: Sequence[Message]) -> str:
        if self._script is not None:
            return self._script(key, messages)
        assert self._replies is not None
        try:
            return next(self._replies)
        except StopIteration:
            raise GenerationFailed("ScriptEnded", "the script has no more replies", retryable=False) from None
