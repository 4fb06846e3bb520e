from __future__ import annotations

from typing import ClassVar

import torch

from .base import Candidates


class Recency:
    """Evicts from the branch that has been idle longest, its oldest positions first (least recently used)."""

    needs_entropy: ClassVar[bool] = False

    def score(self, candidates: Candidates) -> torch.Tensor:
        age = candidates.length - candidates.position
        return (candidates.last_used - age / (age.max() + 1)).to(torch.float32)
