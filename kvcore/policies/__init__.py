"""Eviction policies, one a file. To add one: a class with `needs_entropy` and `score`, a line in POLICIES."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from ..errors import SettingInvalid
from .base import Candidates, EvictionPolicy
from .lowest_entropy import LowestEntropy
from .recency import Recency
from .salience import Salience
from .window import Window

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "salience": Salience,
    "lowest_entropy": LowestEntropy,
    "window": Window,
    "recency": Recency,
}


def make_policy(policy: str | EvictionPolicy) -> EvictionPolicy:
    """A policy by name, or the given one.

    Raises: SettingInvalid for an unknown name (it names the nearest) or an object without `score`.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            near = difflib.get_close_matches(policy, POLICIES, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise SettingInvalid("policy", policy, f"one of {', '.join(POLICIES)} or an EvictionPolicy{hint}")
        return POLICIES[policy]()
    if not isinstance(policy, EvictionPolicy):
        raise SettingInvalid("policy", policy, "a name or an object with needs_entropy and score(candidates)")
    return policy


__all__ = [
    "POLICIES",
    "Candidates",
    "EvictionPolicy",
    "LowestEntropy",
    "Recency",
    "Salience",
    "Window",
    "make_policy",
]
