"""A backend without a model: it says what its script says. For tests, and for trying a swarm's plumbing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

from ..errors import GenerationFailed
from ..message import AttemptKey, Generation, Message, Sampling, Usage

Script = Callable[[AttemptKey, Sequence[Message]], str]

PAGE_WORDS = 16


class ScriptedBackend:
    """Answers from a list, one entry a call, or from a function of (key, messages). A token is a word.

    It keeps branches as the local backend does, and counts the same usage, with words for tokens. `delay` is
    awaited before each word. It follows no schema: the script says what comes.
    Raises: GenerationFailed of kind ScriptEnded if the list has no entry left; whatever the function raises.
    """

    def __init__(
        self, script: Sequence[str] | Script, *, delay: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._script: Script = script if callable(script) else _recite(script)
        self._delay = delay
        self._branches: dict[tuple[str, str], _Branch] = {}
        self._instructions: set[tuple[str, ...]] = set()
        self.calls: list[tuple[AttemptKey, tuple[Message, ...]]] = []
        """every generate call that began, in order"""

    async def generate(
        self,
        key: AttemptKey,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        schema: bytes | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        branch = await self._branch_of(key)
        self.calls.append((key, tuple(messages)))
        usage = branch.prefill(_conversation(messages), self._shared_instructions(messages))
        said = _words(self._script(key, messages))
        kept = said[: sampling.max_tokens]
        for word in kept:
            if self._delay is not None:
                await self._delay()
            branch.decode(word)
            if on_text is not None:
                on_text(word)
        return Generation(
            text="".join(kept),
            finish="length" if len(kept) < len(said) else "stop",
            usage=usage + Usage(decoded_tokens=len(kept)),
        )

    async def settle(self, key: AttemptKey, accepted: bool) -> Usage:
        branch = self._branches.get((key.run, key.task))
        if branch is None or branch.attempt != key.attempt:
            return Usage()
        if accepted:
            return await self.release(key.run, key.task)
        branch.settled.set()
        return branch.roll_back()

    async def release(self, run: str, task: str) -> Usage:
        branch = self._branches.pop((run, task), None)
        if branch is None:
            return Usage()
        branch.settled.set()
        return Usage(evicted_pages=-(-len(branch.words) // PAGE_WORDS))

    async def _branch_of(self, key: AttemptKey) -> _Branch:
        """The task's branch, once it is this attempt's turn."""
        name = (key.run, key.task)
        while True:
            branch = self._branches.get(name)
            if branch is None:
                branch = self._branches[name] = _Branch(key.attempt)
            if branch.attempt == key.attempt:
                return branch
            if branch.settled.is_set():
                branch.begin(key.attempt)
                return branch
            await branch.settled.wait()

    def _shared_instructions(self, messages: Sequence[Message]) -> Sequence[str]:
        """Words of the system message, if another task's prompt began with it."""
        if not messages or messages[0].role != "system":
            return ()
        words = tuple(_conversation(messages[:1])[:-1])
        if words in self._instructions:
            return words
        self._instructions.add(words)
        return ()


class _Branch:
    """What a task holds: its prompt up to the checkpoint, and what its attempt in progress added."""

    def __init__(self, attempt: int) -> None:
        self.words: list[str] = []
        self.begin(attempt)

    def begin(self, attempt: int) -> None:
        self.attempt = attempt
        self.settled = asyncio.Event()
        self._checkpoint: int | None = None
        self._taken_back_tokens = 0

    def prefill(self, prompt: list[str], shared: Sequence[str]) -> Usage:
        held = self.words or shared
        reused = 0
        while reused < min(len(held), len(prompt) - 1) and held[reused] == prompt[reused]:
            reused += 1
        self.words = list(prompt)
        prefilled = len(prompt) - reused
        if self._checkpoint is None:
            self._checkpoint = len(prompt)
        else:
            self._taken_back_tokens += prefilled
        return Usage(prefilled_tokens=prefilled, reused_tokens=reused)

    def decode(self, word: str) -> None:
        self.words.append(word)
        self._taken_back_tokens += 1

    def roll_back(self) -> Usage:
        """To the checkpoint. A second time there is nothing to take back."""
        del self.words[self._checkpoint :]
        taken_back, self._taken_back_tokens = self._taken_back_tokens, 0
        return Usage(rolled_back_tokens=taken_back)


def _recite(replies: Sequence[str]) -> Script:
    left = iter(tuple(replies))

    def script(key: AttemptKey, messages: Sequence[Message]) -> str:
        for reply in left:
            return reply
        raise GenerationFailed(
            "ScriptEnded", f"the script's {len(replies)} replies are used up", retryable=False
        )

    return script


def _conversation(messages: Sequence[Message]) -> list[str]:
    """Words of the conversation up to where the answer begins, with a mark before and after each message."""
    marked = [[f"<{message.role}>", *_words(message.content), "<end>"] for message in messages]
    return [word for words in marked for word in words] + ["<assistant>"]


def _words(text: str) -> list[str]:
    """Each with the white space before it: together they are the text."""
    return re.findall(r"\s*\S+|\s+", text)
