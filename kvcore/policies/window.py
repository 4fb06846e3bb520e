from __future__ import annotations

from typing import ClassVar

import torch

from .base import Candidates


class Window:
    """Keeps sinks and the most recent positions: evicts the oldest position first.

    Source: StreamingLLM, arXiv:2309.17453. The sinks are the partition's `sink_pages`, which no policy sees.
    """

    needs_entropy: ClassVar[bool] = False

    def score(self, candidates: Candidates) -> torch.Tensor:
        return (candidates.position - candidates.length).to(torch.float32)
