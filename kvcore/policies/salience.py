from __future__ import annotations

from typing import ClassVar

import torch

from .base import Candidates


class Salience:
    """Evicts the pages with the least attention mass per query seen (the default).

    Source: heavy hitters, H2O, arXiv:2306.14048, per page and averaged instead of summed.
    """

    needs_entropy: ClassVar[bool] = False

    def score(self, candidates: Candidates) -> torch.Tensor:
        return candidates.mass
