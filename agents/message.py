"""What is said to a backend, and what comes back."""

from __future__ import annotations

from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(msgspec.Struct, frozen=True):
    """How the next tokens are chosen. temperature 0 takes the most likely one."""

    temperature: float = 0.0
    top_p: float = 1.0
    """the smallest set of tokens with this share of the probability"""
    top_k: int = 0
    """the k most likely tokens; 0 means all"""
    seed: int = 0
    max_tokens: int = 256
    """tokens of one answer"""


class Usage(msgspec.Struct, frozen=True):
    """What something cost."""

    prefilled_tokens: int = 0
    """prompt tokens that were computed"""
    reused_tokens: int = 0
    """prompt tokens whose keys and values were there already"""
    decoded_tokens: int = 0
    rolled_back_tokens: int = 0
    """decoded tokens that a rejection took back"""
    evicted_pages: int = 0
    """KV pages given up, by a policy or because they only served an attempt"""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class Generation(msgspec.Struct, frozen=True):
    """One answer of a model."""

    text: str
    finish: Literal["stop", "length"]
    usage: Usage


class AttemptKey(msgspec.Struct, frozen=True, array_like=True):
    """Names one attempt of one task of one run. `attempt` counts from 1."""

    run: str
    task: str
    attempt: int
