from __future__ import annotations

import math
from typing import ClassVar

import torch

from .base import Candidates

PEAK_LIMIT = 1 / math.e


class LowestEntropy:
    """Evicts the pages with the lowest attention-entropy term per query seen.

    -p ln p is largest at p = 1/e and falls to 0 as p goes to 1, so a page on which a query has put more than
    1/e of its attention would score as worthless although it is a sink or a needle: such pages are never victims.
    """

    needs_entropy: ClassVar[bool] = True

    def score(self, candidates: Candidates) -> torch.Tensor:
        return candidates.entropy.masked_fill(candidates.peak > PEAK_LIMIT, math.inf)
