"""Salience, policies and the ring pool."""

import math

import pytest
import torch
from kvcore_models import Bench, llama_config, random_tokens

from swarmkv.kvcore import Candidates, RingKVPool
from swarmkv.kvcore.errors import SettingInvalid, VictimRefused
from swarmkv.kvcore.kernels.reference import decode_attention, prefill_attention
from swarmkv.kvcore.page_table import PageState
from swarmkv.kvcore.policies import POLICIES, EvictionPolicy, make_policy
from swarmkv.kvcore.salience import PageStats, SalienceTable

PAGE = 8


def dense_weights(query: torch.Tensor, key: torch.Tensor, scaling: float) -> torch.Tensor:
    """Shapes: query [kv_heads, group, n, d], key [kv_heads, t, d]; result [kv_heads, group, n, t], causal."""
    scores = torch.einsum("hgnd,htd->hgnt", query, key) * scaling
    n, t = scores.shape[-2:]
    return scores.masked_fill(~torch.ones(n, t, dtype=torch.bool).tril(t - n), -math.inf).softmax(-1)


def by_page(weights: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % PAGE))
    return padded.view(*padded.shape[:-1], -1, PAGE)


@pytest.mark.parametrize(("n", "t"), [(1, 5), (3, 40), (64, 64), (65, 100), (150, 200)])
def test_prefill_gives_output_and_page_stats(n: int, t: int) -> None:
    torch.manual_seed(n)
    query, key = torch.randn(2, 3, n, 16), torch.randn(2, -(-t // PAGE) * PAGE, 16)
    value = torch.randn_like(key)
    out, stats = prefill_attention(query, key, value, length=t, scaling=0.25, page_size=PAGE, entropy=True)
    weights = dense_weights(query, key[:, :t], 0.25)
    assert torch.allclose(out, torch.einsum("hgnt,htd->hgnd", weights, value[:, :t]), atol=1e-5)
    observed = by_page(weights[:, :, -64:])
    assert torch.allclose(stats.mass[0], observed.sum((0, 1, 2, 4)) / 6, atol=1e-4)
    assert stats.entropy is not None
    assert stats.peak is not None
    entropy = -torch.xlogy(observed, observed).sum((0, 1, 2, 4)) / 6
    assert torch.allclose(stats.entropy[0], entropy, atol=1e-4)
    assert torch.allclose(stats.peak[0], observed.amax((0, 1, 2, 4)), atol=1e-5)


def test_decode_masses_sum_to_one_and_hide_padding() -> None:
    torch.manual_seed(1)
    query, key = torch.randn(2, 2, 3, 16), torch.randn(2, 2, 24, 16)
    bias = torch.zeros(2, 1, 24)
    bias[1, :, 10:] = -math.inf
    out, stats = decode_attention(query, key, torch.randn_like(key), bias, scaling=0.25, page_size=PAGE)
    assert out.shape == query.shape
    assert torch.allclose(stats.mass.sum(1), torch.ones(2), atol=1e-5)
    assert stats.mass[1, 2] == 0


def test_salience_is_an_average_over_queries_seen() -> None:
    table = SalienceTable(3, decay=0.5)
    pages = torch.tensor([0, 1])
    table.observe(pages, torch.tensor([64.0, 64.0]), PageStats(torch.tensor([32.0, 8.0]), None, None))
    table.observe(pages[:1], torch.tensor([1.0]), PageStats(torch.tensor([0.5]), None, None))
    assert table.mass_per_query(torch.tensor([0, 1, 2])).tolist() == pytest.approx([0.5, 0.125, 0.0])


def test_pages_shared_by_two_branches_count_both_queries() -> None:
    table = SalienceTable(2)
    table.observe(torch.tensor([1, 1]), torch.ones(2), PageStats(torch.tensor([0.2, 0.6]), None, None))
    assert float(table.mass_per_query(torch.tensor([1]))) == pytest.approx(0.4)


def test_new_content_starts_without_salience() -> None:
    bench = Bench(llama_config(), pages=20)
    branch = bench.partition(20).branch()
    bench.feed((branch, random_tokens(64)))
    pages = torch.tensor(branch.tables[0])
    assert float(bench.pool.salience.mass_per_query(pages).sum()) == pytest.approx(1, abs=1e-3)
    branch.close()
    branch = next(iter(bench.pool.partitions)).branch()
    branch.extend(random_tokens(64))
    assert bench.pool.salience.mass_per_query(torch.tensor(branch.tables[0])).sum() == 0


def candidates(**columns: list[float]) -> Candidates:
    n = len(next(iter(columns.values())))
    whole = {"pages", "position", "length", "last_used"}
    default = {name: [0.0] * n for name in Candidates.__struct_fields__} | columns
    return Candidates(
        **{
            name: torch.tensor(column, dtype=torch.int64 if name in whole else torch.float32)
            for name, column in default.items()
        }
    )


@pytest.mark.parametrize(
    ("policy", "columns", "victim"),
    [
        ("salience", {"mass": [0.3, 0.1, 0.2]}, 1),
        ("window", {"position": [32, 16, 48], "length": [64, 64, 64]}, 1),
        ("recency", {"last_used": [5, 9, 5], "position": [16, 0, 32], "length": [64, 64, 64]}, 0),
        ("lowest_entropy", {"entropy": [0.2, 0.0, 0.1], "peak": [0.1, 0.9, 0.3]}, 2),
    ],
)
def test_policy_chooses(policy: str, columns: dict[str, list[float]], victim: int) -> None:
    assert int(make_policy(policy).score(candidates(**columns)).argmin()) == victim


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_contract(policy: str) -> None:
    made = make_policy(policy)
    assert isinstance(made, EvictionPolicy)
    scores = made.score(candidates(mass=[0.1] * 5))
    assert scores.shape == (5,)
    assert scores.dtype == torch.float32
    assert not scores.isnan().any()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stream_stays_within_its_quota(policy: str) -> None:
    bench = Bench(llama_config(num_hidden_layers=2), pages=16, layer_groups=2)
    partition = bench.partition(12, policy=policy)
    branch = partition.branch()
    for start in range(0, 640, 32):
        bench.feed((branch, random_tokens(32, seed=start)))
        assert max(partition.owned_pages) <= 12
    assert branch.length == 640
    assert branch.starts[0][0] == 0, "the sink stays"
    assert branch.evicted_pages == partition.evicted_pages == 2 * (40 - 12)
    bench.pool.audit()


def test_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(SettingInvalid, match="did you mean 'salience'"):
        make_policy("saliense")
    with pytest.raises(SettingInvalid):
        make_policy(object())  # type: ignore[arg-type]


def test_ring_evicts_the_slot_that_the_mask_names() -> None:
    bench = Bench(llama_config(), pages=16)
    partition = bench.partition(16, policy="lowest_entropy")
    branch = partition.branch()
    bench.feed((branch, random_tokens(14 * 16)))
    ring = RingKVPool(partition)
    mask = ring.mask()
    allowed = mask.evictable & (mask.peak <= 1 / math.e)
    expected = min((slot for slot in range(16) if allowed[slot]), key=lambda slot: float(mask.entropy[slot]))
    assert ring.evict_least_salient(mask) == expected
    assert bench.pool.table.read(ring.page(expected)).state == PageState.FREE
    with pytest.raises(VictimRefused):
        ring.evict_least_salient(mask)
    bench.pool.audit()


def test_a_needle_is_not_the_lowest_entropy_slot() -> None:
    from swarmkv.kvcore import SalienceMask

    mask = SalienceMask(
        entropy=torch.tensor([0.0, 0.05, 0.2]),
        peak=torch.tensor([0.99, 0.2, 0.3]),
        evictable=torch.ones(3, dtype=torch.bool),
    )
    assert mask.find_lowest_entropy_slot() == 1
    none = SalienceMask(mask.entropy, torch.ones(3), mask.evictable)
    with pytest.raises(VictimRefused):
        none.find_lowest_entropy_slot()
