"""What an eviction policy is: one method that says how much each candidate page is worth."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import msgspec
import torch


class Candidates(msgspec.Struct, frozen=True):
    """Pages that a partition may give up, as columns of one length.

    Shapes: every tensor [n]. Sinks, recent pages, shared pages and pages under a checkpoint are never among
    them: protection is the partition's, whatever the policy.
    """

    pages: torch.Tensor
    """int64, page ids"""
    position: torch.Tensor
    """int64, position of the page's first token in its branch"""
    length: torch.Tensor
    """int64, tokens of the page's branch"""
    last_used: torch.Tensor
    """int64, the step in which the page's branch ran last"""
    mass: torch.Tensor
    """float32, attention mass per query seen (A / n)"""
    entropy: torch.Tensor
    """float32, entropy term per query seen (B / n)"""
    peak: torch.Tensor
    """float32, decayed maximum of one attention weight (X)"""


@runtime_checkable
class EvictionPolicy(Protocol):
    """Chooses victims by their worth: the lowest scores go first."""

    needs_entropy: ClassVar[bool]
    """whether attention must compute the entropy term and the peak (some per cent of a decode step)"""

    def score(self, candidates: Candidates) -> torch.Tensor:
        """Worth of each candidate. Shapes: float32[n]; +inf means never."""
        ...
