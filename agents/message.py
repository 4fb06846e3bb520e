"""What is said to a backend, and what comes back."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from .errors import SamplingInvalid


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sampling(msgspec.Struct, frozen=True):
    """How the next tokens are chosen. temperature 0 takes the most likely one.

    Raises: SamplingInvalid for a field outside its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    """the smallest set of tokens with this share of the probability"""
    top_k: int = 0
    """the k most likely tokens; 0 means all"""
    seed: int = 0
    max_tokens: int = 256
    """tokens of one answer"""

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and self.temperature >= 0):
            raise SamplingInvalid("temperature", self.temperature, "a finite number of 0 or more")
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise SamplingInvalid("top_p", self.top_p, "a number over 0 and up to 1")
        for field, lowest in (("top_k", 0), ("seed", 0), ("max_tokens", 1)):
            value = getattr(self, field)
            if type(value) is not int or not lowest <= value < 2**63:
                raise SamplingInvalid(field, value, f"a whole number of {lowest} or more, of 63 bits")


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


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
