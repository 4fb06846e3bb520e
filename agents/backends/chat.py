"""From messages to token ids and back, by a tokenizer's own chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..message import Message

_REPLACEMENT = "\ufffd"


class ChatFormat:
    """Renders conversations for one Hugging Face tokenizer.

    A tokenizer without a chat template gets plain text, one message after the other.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the conversation, up to where the model's answer begins."""
        return self._encode(messages, answer=True)

    def instruction_tokens(self, messages: Sequence[Message], ids: Sequence[int]) -> int:
        """How many of the conversation's first ids come from its system message alone."""
        if not messages or messages[0].role != "system":
            return 0
        return common_prefix(self._encode(messages[:1], answer=False), ids)

    def text(self, ids: Sequence[int]) -> str:
        """Text of generated tokens, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _encode(self, messages: Sequence[Message], *, answer: bool) -> list[int]:
        tokenizer = self.tokenizer
        if tokenizer.chat_template:
            turns = [{"role": message.role, "content": message.content} for message in messages]
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=answer)
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])
        text = "".join(f"{message.content}\n\n" for message in messages)
        return list(tokenizer(text)["input_ids"])


class TextStream:
    """Text of a growing token list, piece by piece; a piece never ends inside a character."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._ids: list[int] = []
        self._given = ""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        self._ids.extend(ids)
        text = self._chat.text(self._ids)
        if text.endswith(_REPLACEMENT):
            return ""
        piece, self._given = text[len(self._given) :], text
        return piece

    def rest(self) -> str:
        """What is left when no more tokens come."""
        return self._chat.text(self._ids)[len(self._given) :]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))
