"""Choosing tokens: greedy, seeded, within top_k, top_p and a bitmask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from swarmkv.kvcore import SamplingSettings
from swarmkv.kvcore.errors import SettingInvalid
from swarmkv.kvcore.sampling import Sampler, apply_bitmask

LOGITS = torch.tensor([2.0, 5.0, 4.0, -1.0, 3.0, 4.5])
BY_RANK = [1, 5, 2, 4, 0, 3]


def drawn(settings: SamplingSettings, n: int = 300, logits: torch.Tensor = LOGITS) -> list[int]:
    sampler = Sampler(settings)
    return [sampler.choose(logits) for _ in range(n)]


def test_without_temperature_the_most_likely_token_is_taken() -> None:
    assert set(drawn(SamplingSettings(seed=3, top_k=4, top_p=0.5), n=5)) == {1}


def test_the_same_seed_draws_the_same_tokens() -> None:
    one = drawn(SamplingSettings(temperature=1.5, seed=1))
    assert drawn(SamplingSettings(temperature=1.5, seed=1)) == one
    assert drawn(SamplingSettings(temperature=1.5, seed=2)) != one


def test_draws_leave_the_logits_and_torchs_own_generator_alone() -> None:
    logits, state = LOGITS.clone(), torch.get_rng_state()
    drawn(SamplingSettings(temperature=1.0, top_p=0.9, top_k=3), n=3, logits=logits)
    assert torch.equal(logits, LOGITS)
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_follow_the_softmax() -> None:
    tokens = drawn(SamplingSettings(temperature=2.0), n=4000)
    shares = torch.bincount(torch.tensor(tokens), minlength=6) / 4000
    assert float((shares - torch.softmax(LOGITS / 2.0, -1)).abs().max()) < 0.03


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_top_k_leaves_the_k_most_likely(top_k: int) -> None:
    assert set(drawn(SamplingSettings(temperature=20.0, top_k=top_k))) == set(BY_RANK[:top_k])


@pytest.mark.parametrize("top_k", [0, 6, 10_000])
def test_top_k_of_none_or_of_more_than_there_are_leaves_all(top_k: int) -> None:
    assert set(drawn(SamplingSettings(temperature=20.0, top_k=top_k))) == set(BY_RANK)


def test_top_p_leaves_the_smallest_set_with_that_share() -> None:
    weights = torch.softmax(LOGITS, -1)[BY_RANK].cumsum(-1).tolist()
    for kept in range(1, 5):
        top_p = weights[kept - 1] - 1e-4
        assert set(drawn(SamplingSettings(temperature=1.0, top_p=top_p), n=600)) == set(BY_RANK[:kept])


def test_top_p_leaves_one_token_at_least() -> None:
    assert set(drawn(SamplingSettings(temperature=1.0, top_p=1e-9))) == {1}


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-45, 1e-9])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    hidden = LOGITS.clone()
    hidden[0] = -math.inf
    assert set(drawn(SamplingSettings(temperature=temperature), n=20, logits=hidden)) == {1}


@pytest.mark.parametrize("temperature", [1e9, 1e39, 1e308])
def test_a_huge_temperature_draws_evenly_among_what_is_allowed(temperature: float) -> None:
    hidden = LOGITS.clone()
    hidden[1] = -math.inf
    tokens = drawn(SamplingSettings(temperature=temperature), n=2000, logits=hidden)
    counts = torch.bincount(torch.tensor(tokens), minlength=6).tolist()
    assert counts[1] == 0
    assert min(counts[:1] + counts[2:]) > 300


def test_a_hidden_token_is_never_drawn_even_with_few_left() -> None:
    hidden = torch.full((6,), -math.inf)
    hidden[3] = -50.0
    assert set(drawn(SamplingSettings(temperature=1.0, top_k=4), n=50, logits=hidden)) == {3}


@pytest.mark.parametrize("as_torch", [True, False])
@pytest.mark.parametrize("vocabulary", [64, 70, 96])
def test_a_bitmask_hides_what_it_does_not_allow(vocabulary: int, as_torch: bool) -> None:
    allowed = [0, 31, 32, 63]
    words = np.zeros(2, dtype=np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    mask: Any = words.view(np.int32)
    logits = torch.arange(vocabulary, dtype=torch.float32)
    apply_bitmask(logits, torch.from_numpy(mask) if as_torch else mask)
    assert logits.isfinite().nonzero().flatten().tolist() == allowed
    assert logits[allowed].tolist() == allowed


def test_a_bitmask_may_be_longer_than_the_vocabulary() -> None:
    logits = torch.zeros(40)
    apply_bitmask(logits, np.full(2, -1, dtype=np.int32))
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
    ],
)
def test_a_setting_outside_its_range_is_named(field: str, value: float) -> None:
    with pytest.raises(SettingInvalid) as caught:
        SamplingSettings(**{field: value})  # type: ignore[arg-type]
    assert (caught.value.name, str(caught.value.value)) == (field, str(value))
    assert caught.value.allowed
