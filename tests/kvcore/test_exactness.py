"""Logits over pages equal Hugging Face's own forward passes (float32, max abs difference < 1e-4)."""

import pytest
import torch
from kvcore_models import VOCABULARY, Bench, difference, llama_config, random_tokens
from transformers import (
    Gemma2Config,
    GptOssConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from swarmkv.kvcore.attention import paged_attention
from swarmkv.kvcore.errors import AttentionUnsupported, ContextTooLong, StepContextMissing
from swarmkv.kvcore.runner import require_supported

TOLERANCE = 1e-4
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
MODELS = {
    "llama": llama_config(),
    "llama_one_kv_head": llama_config(num_key_value_heads=1),
    "llama_no_groups": llama_config(num_key_value_heads=6),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "mistral_sliding": MistralConfig(**SMALL, sliding_window=40),
    "phi3": Phi3Config(**SMALL, pad_token_id=0),
    "olmo2": Olmo2Config(**SMALL),
}


@pytest.mark.parametrize("name", MODELS)
def test_ragged_batch_equals_separate_dense_passes(name: str) -> None:
    bench = Bench(MODELS[name])
    partition = bench.partition(150)
    prompts = [random_tokens(n, seed=n) for n in (5, 70, 200, 33, 1, 16)]
    branches = [partition.branch() for _ in prompts]
    logits = bench.feed(*zip(branches, prompts, strict=True))
    for row, prompt in enumerate(prompts):
        assert difference(logits[row], bench.dense(prompt)) < TOLERANCE
    more = [random_tokens(n, seed=100 + n) for n in (1, 1, 65, 1, 1, 2)]
    logits = bench.feed(*zip(branches, more, strict=True))
    for row, (prompt, new) in enumerate(zip(prompts, more, strict=True)):
        assert difference(logits[row], bench.dense(prompt + new)) < TOLERANCE
    bench.pool.audit()


@pytest.mark.parametrize("layer_groups", [1, 2, 4])
@pytest.mark.parametrize("page_size", [8, 16, 64])
def test_groups_and_page_sizes_change_nothing(layer_groups: int, page_size: int) -> None:
    bench = Bench(llama_config(), layer_groups=layer_groups, page_size=page_size)
    branch, prompt = bench.partition(100).branch(), random_tokens(150)
    for start in range(0, 150, 50):
        logits = bench.feed((branch, prompt[start : start + 50]))
    assert difference(logits[0], bench.dense(prompt)) < TOLERANCE


def test_packed_and_plain_weights_agree() -> None:
    prompt = random_tokens(40)
    results = []
    for pack in (True, False):
        bench = Bench(llama_config(), pack=pack)
        results.append(bench.feed((bench.partition(50).branch(), prompt))[0])
    assert difference(*results) < TOLERANCE


def test_fork_and_rollback_are_exact() -> None:
    bench = Bench(llama_config())
    prompt, left, right = random_tokens(37), random_tokens(20, seed=1), random_tokens(9, seed=2)
    trunk = bench.partition(100).branch()
    bench.feed((trunk, prompt))
    one, other = trunk.fork(), trunk.fork()
    logits = bench.feed((one, left), (other, right))
    assert difference(logits[0], bench.dense(prompt + left)) < TOLERANCE
    assert difference(logits[1], bench.dense(prompt + right)) < TOLERANCE
    checkpoint = one.checkpoint()
    bench.feed((one, right))
    assert one.rollback(checkpoint) == len(right)
    logits = bench.feed((one, [7]), (trunk, [9]))
    assert difference(logits[0], bench.dense([*prompt, *left, 7])) < TOLERANCE
    assert difference(logits[1], bench.dense([*prompt, 9])) < TOLERANCE
    bench.pool.audit()


def test_shared_prefix_is_exact() -> None:
    bench = Bench(llama_config())
    tree = bench.shared_prefixes(20)
    instructions, tail = random_tokens(50), random_tokens(30, seed=3)
    first = bench.partition(40, prefixes=tree).branch()
    bench.feed((first, instructions))
    assert tree.insert(first, len(instructions)) == 3
    second = bench.partition(40, prefixes=tree).branch()
    reused = tree.match(second, instructions + tail)
    assert reused == 48
    logits = bench.feed((second, (instructions + tail)[reused:]), (first, [5]))
    assert difference(logits[0], bench.dense(instructions + tail)) < TOLERANCE
    assert difference(logits[1], bench.dense([*instructions, 5])) < TOLERANCE
    bench.pool.audit()


def test_evicted_equals_masked_dense() -> None:
    bench = Bench(llama_config(num_hidden_layers=1), pages=20)
    partition = bench.partition(8, policy="window")
    branch, prompt = partition.branch(), random_tokens(128)
    bench.feed((branch, prompt))
    assert branch.extend([3]) == 1
    assert branch.starts[0][:2] == [0, 32]
    branch.truncate(128)
    logits = bench.feed((branch, [3]))
    seen = torch.ones(129, 129, dtype=torch.bool).tril()
    seen[128, 16:32] = False
    assert difference(logits[0], bench.dense([*prompt, 3], seen)) < TOLERANCE


def test_too_many_positions_are_refused() -> None:
    bench = Bench(llama_config())
    bench.runner.max_positions = 10
    with pytest.raises(ContextTooLong) as caught:
        bench.feed((bench.partition(20).branch(), random_tokens(11)))
    assert caught.value.limit_tokens == 10


def test_attention_without_a_step_is_an_error() -> None:
    bench = Bench(llama_config())
    with pytest.raises(StepContextMissing):
        bench.runner.model(torch.tensor([[1, 2, 3]]), use_cache=False)
    with pytest.raises(StepContextMissing):
        paged_attention(torch.nn.Identity(), *[torch.zeros(1, 1, 1, 4)] * 3, None)


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(),
        GptOssConfig(),
        llama_config(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
    ],
    ids=["softcap", "sinks", "dynamic-rope"],
)
def test_models_that_cannot_be_right_are_refused(config: object) -> None:
    with pytest.raises(AttentionUnsupported):
        require_supported(config)
