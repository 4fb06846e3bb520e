"""Choosing the next token from logits."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch

from .errors import SettingInvalid

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-6, 1e6
"""beyond these nothing changes but that float32 overflows"""


class SamplingSettings(msgspec.Struct, frozen=True):
    """How one sequence samples. temperature 0 takes the most likely token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SettingInvalid("temperature", self.temperature, "a finite number of 0 or more")
        if not 0 < self.top_p <= 1:
            raise SettingInvalid("top_p", self.top_p, "a number over 0 and up to 1")
        if self.top_k < 0:
            raise SettingInvalid("top_k", self.top_k, "0 (no limit) or more")


class Sampler:
    """Draws tokens for one sequence; the same settings and logits give the same tokens."""

    def __init__(self, settings: SamplingSettings) -> None:
        self.settings = settings
        self._generator = torch.Generator().manual_seed(settings.seed & (2**63 - 1))

    def choose(self, logits: torch.Tensor) -> int:
        """Shapes: logits float32[vocabulary], -inf where a token is not allowed."""
        settings = self.settings
        if settings.temperature == 0:
            return int(logits.argmax())
        kept, ids = torch.topk(logits, min(settings.top_k or len(logits), len(logits)))
        temperature = min(max(settings.temperature, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE)
        weights = torch.softmax((kept - kept[0]) / temperature, -1)
        if settings.top_p < 1:
            beyond = weights.cumsum(-1) - weights >= settings.top_p
            weights = weights.masked_fill(beyond, 0.0)
        drawn = torch.multinomial(weights.cpu(), 1, generator=self._generator)
        return int(ids[int(drawn)])


def apply_bitmask(logits: torch.Tensor, bitmask: Any) -> None:
    """Hide in place what a grammar forbids.

    Shapes: logits float32[vocabulary]; bitmask int32[ceil(vocabulary / 32)] as NumPy or torch, bit set = allowed.
    """
    words = torch.as_tensor(bitmask, device=logits.device).view(-1, 1)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (words >> bits & 1).bool().view(-1)[: len(logits)]
    logits[: len(allowed)].masked_fill_(~allowed, float("-inf"))
    logits[len(allowed) :] = float("-inf")
