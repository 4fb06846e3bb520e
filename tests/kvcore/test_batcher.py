"""Continuous batching: the same tokens as alone, fair turns, constraints, and failures that stay with one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from kvcore_models import VOCABULARY, Bench, llama_config, random_tokens

from swarmkv.kvcore import (
    Batcher,
    BatchLimits,
    Branch,
    Finish,
    Partition,
    Request,
    Runner,
    SamplingSettings,
)
from swarmkv.kvcore.batcher import plan_step
from swarmkv.kvcore.errors import ConstraintFailed, ContextTooLong, PoolExhausted, SettingInvalid
from swarmkv.kvcore.step import Work

NEVER = frozenset[int]()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The models are so small that a second thread only waits, and long where the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_bench(pages: int = 200, **settings: Any) -> Bench:
    return Bench(llama_config(num_hidden_layers=2), pages=pages, **settings)


def make_request(branch: Branch, prompt: list[int], **settings: Any) -> Request:
    return Request(branch, prompt, **({"max_tokens": 12, "stop_ids": NEVER} | settings))


def run_all(batcher: Batcher) -> None:
    for _ in range(500):
        if not batcher.step():
            return
    raise AssertionError("the batch does not come to an end")


def decoded(
    bench: Bench, requests: Sequence[Request], limits: BatchLimits = BatchLimits()
) -> list[list[int]]:
    batcher = Batcher(bench.runner, limits=limits)
    for request in requests:
        batcher.add(request)
    run_all(batcher)
    assert len(batcher) == 0
    bench.pool.audit()
    return [request.produced for request in requests]


def greedy(bench: Bench, prompt: list[int], n_tokens: int) -> list[int]:
    """What Hugging Face's own model says."""
    tokens = list(prompt)
    for _ in range(n_tokens):
        tokens.append(int(bench.dense(tokens).argmax()))
    return tokens[len(prompt) :]


class Recorder(Runner):
    """Notes the work of each step."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.model, runner.pool, max_positions=runner.max_positions)
        self.steps: list[dict[int, int]] = []
        """tokens by branch id"""

    def run(self, work: Sequence[Work]) -> torch.Tensor:
        self.steps.append({w.branch.id: w.n_tokens for w in work})
        return super().run(work)


class Script:
    """A constraint that allows, at each place, the tokens of a set; a set of one is forced."""

    def __init__(self, *places: set[int], force: bool = False) -> None:
        self.places, self.force = places, force
        self.taken: list[int] = []

    @property
    def finished(self) -> bool:
        return len(self.taken) == len(self.places)

    def mask(self) -> Any:
        words = np.zeros((VOCABULARY + 31) // 32, dtype=np.uint32)
        for token in self.places[len(self.taken)]:
            words[token // 32] |= np.uint32(1 << token % 32)
        return words.view(np.int32)

    def accept(self, token: int) -> None:
        if token not in self.places[len(self.taken)]:
            raise ConstraintFailed(f"token {token} is not allowed")
        self.taken.append(token)

    def forced(self) -> list[int]:
        tokens: list[int] = []
        for place in self.places[len(self.taken) :] if self.force else ():
            if len(place) > 1:
                break
            tokens.extend(place)
        return tokens


# What is decoded


def test_batched_alone_and_hugging_face_say_the_same() -> None:
    bench = make_bench()
    prompts = [random_tokens(n, seed=n) for n in (3, 17, 40, 64, 130, 16)]
    alone = [decoded(bench, [make_request(bench.partition(12).branch(), prompt)])[0] for prompt in prompts]
    partition = bench.partition(100)
    requests = [make_request(partition.branch(), prompt) for prompt in prompts]
    limits = BatchLimits(prefill_tokens=48, mixed_prefill_tokens=24)
    assert decoded(bench, requests, limits) == alone
    assert alone == [greedy(bench, prompt, 12) for prompt in prompts]
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.prefilled_tokens == len(prompt)
        # The last token chosen is told, but was not fed.
        assert request.branch.tokens == prompt + request.produced[:-1]


def test_a_sequence_that_joins_late_says_the_same() -> None:
    bench = make_bench()
    partition = bench.partition(100)
    prompts = [random_tokens(n, seed=n) for n in (20, 50)]
    first, late = (make_request(partition.branch(), prompt) for prompt in prompts)
    batcher = Batcher(bench.runner)
    batcher.add(first)
    for _ in range(4):
        batcher.step()
    batcher.add(late)
    run_all(batcher)
    assert [first.produced, late.produced] == [greedy(bench, prompt, 12) for prompt in prompts]


def test_samples_do_not_depend_on_the_company() -> None:
    bench = make_bench()
    partition = bench.partition(100)
    sampling = SamplingSettings(temperature=1.0, top_p=0.9, seed=7)
    prompt = random_tokens(30)
    alone = decoded(bench, [make_request(partition.branch(), prompt, sampling=sampling)])[0]
    company = [make_request(partition.branch(), random_tokens(25, seed=n), sampling=sampling) for n in (1, 2)]
    assert (
        decoded(bench, [company[0], make_request(partition.branch(), prompt, sampling=sampling), company[1]])[
            1
        ]
        == alone
    )


def test_a_request_ends_at_its_limit_or_at_a_stop_token() -> None:
    bench = make_bench()
    partition = bench.partition(100)
    prompt = random_tokens(20)
    said = greedy(bench, prompt, 12)
    stop = said[4]
    ends: list[Finish | None] = []
    limited = make_request(
        partition.branch(), prompt, max_tokens=5, on_finish=lambda r: ends.append(r.finish)
    )
    stopped = make_request(partition.branch(), prompt, stop_ids=frozenset({stop}))
    decoded(bench, [limited, stopped])
    assert (limited.finish, limited.produced) == (Finish.LENGTH, said[:5])
    assert (stopped.finish, stopped.produced) == (Finish.STOP, said[: said.index(stop)])
    assert stopped.branch.tokens == prompt + stopped.produced
    assert ends == [Finish.LENGTH]


def test_the_pieces_are_told_as_they_come() -> None:
    bench = make_bench()
    pieces: list[list[int]] = []
    request = make_request(
        bench.partition(20).branch(), random_tokens(20), on_tokens=lambda _, ids: pieces.append(list(ids))
    )
    decoded(bench, [request])
    assert len(pieces) == 12
    assert [token for piece in pieces for token in piece] == request.produced


def test_a_fork_may_take_the_branchs_place_after_the_prompt() -> None:
    bench = make_bench()
    trunk, prompt = bench.partition(30).branch(), random_tokens(40)
    seen: list[int] = []

    def fork(request: Request) -> None:
        seen.append(request.branch.length)
        request.branch = trunk.fork()

    request = make_request(trunk, prompt, on_prefilled=fork)
    said = decoded(bench, [request], BatchLimits(prefill_tokens=16))[0]
    assert seen == [40]
    assert said == greedy(bench, prompt, 12)
    assert trunk.tokens == prompt
    assert request.branch.tokens == prompt + said[:-1]


@pytest.mark.parametrize(("prompt", "max_tokens", "field"), [([], 5, "prompt"), ([1], 0, "max_tokens")])
def test_a_request_that_cannot_run_is_refused(prompt: list[int], max_tokens: int, field: str) -> None:
    branch = make_bench(pages=20).partition(10).branch()
    with pytest.raises(SettingInvalid) as caught:
        Request(branch, prompt, max_tokens=max_tokens, stop_ids=NEVER)
    assert caught.value.name == field


# Which tokens a step takes


def planned(
    partition: Partition, waiting: list[int], decoding: set[int], limits: BatchLimits
) -> list[tuple[int, int]]:
    requests = [make_request(partition.branch(), [1] * n) for n in waiting]
    for index in decoding:
        requests[index].decoding = True
    before = [list(request.waiting) for request in requests]
    plan = plan_step(requests, limits)
    assert plan == plan_step(requests, limits)
    assert [request.waiting for request in requests] == before
    assert all(request.branch.length == 0 for request in requests)
    return [(requests.index(request), n_tokens) for request, n_tokens in plan]


LIMITS = BatchLimits(sequences=4, prefill_tokens=100, mixed_prefill_tokens=30)


@pytest.mark.parametrize(
    ("waiting", "decoding", "plan"),
    [
        ([], set(), []),
        ([40], set(), [(0, 40)]),
        ([250], set(), [(0, 100)]),
        ([60, 60, 60], set(), [(0, 60), (1, 40)]),
        ([100, 60], set(), [(0, 100)]),
        ([20, 20, 20, 20, 20], set(), [(0, 20), (1, 20), (2, 20), (3, 20)]),
        ([1, 1], {0, 1}, [(0, 1), (1, 1)]),
        ([90, 1, 3], {1, 2}, [(1, 1), (2, 3), (0, 30)]),
        ([10, 1, 10, 25], {1}, [(1, 1), (0, 10), (2, 10), (3, 10)]),
        ([1, 1, 1, 1, 1, 9], {0, 1, 2, 3, 4}, [(0, 1), (1, 1), (2, 1), (3, 1)]),
        ([9, 1, 1, 1, 9], {1, 2, 3}, [(1, 1), (2, 1), (3, 1), (0, 9)]),
    ],
)
def test_a_plan_takes_decoders_first_and_shares_the_rest(
    waiting: list[int], decoding: set[int], plan: list[tuple[int, int]]
) -> None:
    assert planned(make_bench(pages=100).partition(100), waiting, decoding, LIMITS) == plan


@pytest.mark.parametrize(("quota_pages", "taken"), [(100, 100), (16, 80), (8, 16), (5, 16)])
def test_a_chunk_is_no_larger_than_a_small_partition_can_take(quota_pages: int, taken: int) -> None:
    partition = make_bench(pages=100).partition(quota_pages)
    assert planned(partition, [250], set(), LIMITS) == [(0, taken)]


def test_prompts_take_turns() -> None:
    bench = make_bench()
    runner = Recorder(bench.runner)
    partition = bench.partition(100)
    batcher = Batcher(runner, limits=BatchLimits(prefill_tokens=50))
    for n_tokens in (120, 120):
        batcher.add(make_request(partition.branch(), random_tokens(n_tokens), max_tokens=1))
    run_all(batcher)
    one, other = sorted({branch for step in runner.steps for branch in step})
    assert runner.steps == [{one: 50}, {other: 50}, {one: 50}, {other: 50}, {one: 20, other: 20}]


def test_a_long_prompt_does_not_hold_up_a_decoding_sequence() -> None:
    bench = make_bench()
    runner = Recorder(bench.runner)
    partition = bench.partition(150)
    batcher = Batcher(runner, limits=BatchLimits(mixed_prefill_tokens=64))
    decoder = make_request(partition.branch(), random_tokens(10), max_tokens=40)
    batcher.add(decoder)
    batcher.step()
    long_prompt = make_request(partition.branch(), random_tokens(600, seed=2), max_tokens=2)
    batcher.add(long_prompt)
    told = len(decoder.produced)
    while not long_prompt.decoding:
        batcher.step()
        told += 1
        assert len(decoder.produced) == told
        assert runner.steps[-1][decoder.branch.id] == 1
        assert runner.steps[-1][long_prompt.branch.id] <= 64
    assert sum(long_prompt.branch.id in step for step in runner.steps) == 10


# Constraints


def test_a_constraint_is_followed_to_its_end() -> None:
    bench = make_bench()
    places = [{5, 9}, {7}, {1, 2, 3}]
    script = Script(*places)
    request = make_request(bench.partition(20).branch(), random_tokens(20), constraint=script)
    free = make_request(bench.partition(20).branch(), random_tokens(20))
    decoded(bench, [request, free])
    assert request.finish is Finish.STOP
    assert [token in place for token, place in zip(request.produced, places, strict=True)] == [True] * 3
    assert script.taken == request.produced
    assert free.produced == greedy(bench, random_tokens(20), 12)


def test_of_what_is_allowed_the_most_likely_is_chosen() -> None:
    bench = make_bench()
    prompt, allowed = random_tokens(20), {3, 77, 150, 299}
    request = make_request(bench.partition(20).branch(), prompt, constraint=Script(allowed))
    decoded(bench, [request])
    logits = bench.dense(prompt)
    assert request.produced == [max(allowed, key=lambda token: float(logits[token]))]


def test_forced_tokens_cost_no_step_of_their_own() -> None:
    bench = make_bench()
    runner = Recorder(bench.runner)
    prompt = random_tokens(20)
    script = Script({11}, {12}, {4, 6}, {13}, {14}, {8, 9}, force=True)
    request = make_request(bench.partition(20).branch(), prompt, constraint=script)
    batcher = Batcher(runner)
    batcher.add(request)
    run_all(batcher)
    assert request.produced == script.taken
    assert [request.produced[place] for place in (0, 1, 3, 4)] == [11, 12, 13, 14]
    assert [list(step.values()) for step in runner.steps] == [[20], [2], [3]]
    fed = prompt + request.produced[:2]
    logits = bench.dense(fed)
    assert request.produced[2] == max((4, 6), key=lambda token: float(logits[token]))


@pytest.mark.parametrize("max_tokens", [1, 2, 4])
def test_forced_tokens_keep_within_the_limit(max_tokens: int) -> None:
    bench = make_bench()
    script = Script({1}, {2}, {3}, {4}, {5}, force=True)
    request = make_request(
        bench.partition(20).branch(), random_tokens(20), constraint=script, max_tokens=max_tokens
    )
    decoded(bench, [request])
    assert (request.finish, request.produced) == (Finish.LENGTH, [1, 2, 3, 4][:max_tokens])


def test_a_stop_token_ends_a_constrained_sequence_where_it_is_allowed() -> None:
    bench = make_bench()
    script = Script({5}, {0}, {6})
    request = make_request(
        bench.partition(20).branch(), random_tokens(20), constraint=script, stop_ids=frozenset({0, 8})
    )
    decoded(bench, [request])
    assert (request.finish, request.produced) == (Finish.STOP, [5])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_constraint_that_allows_nothing_fails_its_request_only(temperature: float) -> None:
    bench = make_bench()
    sampling = SamplingSettings(temperature=temperature)
    stuck = make_request(
        bench.partition(20).branch(), random_tokens(9), constraint=Script({5}, set()), sampling=sampling
    )
    other = make_request(bench.partition(20).branch(), random_tokens(20))
    decoded(bench, [stuck, other])
    assert (stuck.finish, stuck.produced) == (Finish.FAILED, [5])
    assert isinstance(stuck.error, ConstraintFailed)
    assert other.produced == greedy(bench, random_tokens(20), 12)


# Ends and failures


def test_a_cancelled_request_ends_between_steps_and_the_others_go_on() -> None:
    bench = make_bench()
    partition = bench.partition(100)
    ends: list[Finish | None] = []
    prompt = random_tokens(20)
    goes, ends_early, not_begun = (
        make_request(partition.branch(), prompt, on_finish=lambda r: ends.append(r.finish)) for _ in range(3)
    )
    batcher = Batcher(bench.runner, limits=BatchLimits(sequences=2))
    for request in (goes, ends_early, not_begun):
        batcher.add(request)
    batcher.step()
    batcher.step()
    for request in (ends_early, not_begun):
        batcher.cancel(request)
        batcher.cancel(request)
    assert ends == [Finish.CANCELLED] * 2
    assert len(batcher) == 1
    assert ends_early.branch.length == 21
    assert not_begun.branch.length == 0
    run_all(batcher)
    assert goes.produced == greedy(bench, prompt, 12)
    batcher.cancel(goes)
    assert goes.finish is Finish.LENGTH
    for branch in list(partition.branches):
        branch.close()
    assert bench.pool.audit().held_pages == 0


def test_all_can_be_cancelled() -> None:
    bench = make_bench()
    requests = [make_request(bench.partition(20).branch(), random_tokens(20)) for _ in range(3)]
    batcher = Batcher(bench.runner)
    for request in requests:
        batcher.add(request)
    batcher.step()
    batcher.cancel_all()
    assert [request.finish for request in requests] == [Finish.CANCELLED] * 3
    assert not batcher.step()
    bench.pool.audit()


def test_a_request_without_room_fails_alone() -> None:
    bench = make_bench()
    prompt = random_tokens(20)
    full = bench.partition(2)
    fails = make_request(full.branch(), random_tokens(60))
    goes = make_request(bench.partition(20).branch(), prompt)
    decoded(bench, [fails, goes])
    assert fails.finish is Finish.FAILED
    assert isinstance(fails.error, PoolExhausted)
    assert fails.error.partition == full.name
    assert fails.produced == []
    assert goes.produced == greedy(bench, prompt, 12)


def test_a_request_of_too_many_positions_fails_alone() -> None:
    bench = make_bench()
    bench.runner.max_positions = 40
    prompt = random_tokens(20)
    too_long = make_request(bench.partition(20).branch(), random_tokens(41))
    outgrows = make_request(bench.partition(20).branch(), random_tokens(38))
    goes = make_request(bench.partition(20).branch(), prompt)
    decoded(bench, [too_long, outgrows, goes])
    assert isinstance(too_long.error, ContextTooLong)
    assert too_long.branch.length == 0
    assert isinstance(outgrows.error, ContextTooLong)
    assert (len(outgrows.produced), outgrows.branch.length) == (3, 40)
    assert goes.produced == greedy(bench, prompt, 12)


# Room


def kept(partition: Partition, prompt: list[int], **settings: Any) -> Request:
    """A request whose prompt cannot be evicted, and whose pages go with its end."""
    return make_request(
        partition.branch(),
        prompt,
        on_prefilled=lambda request: request.branch.checkpoint(),
        on_finish=lambda request: request.branch.close(),
        **settings,
    )


def test_a_request_waits_for_the_pages_of_others() -> None:
    bench = make_bench()
    partition = bench.partition(12)
    prompts = [random_tokens(120, seed=seed) for seed in range(3)]
    requests = [kept(partition, prompt) for prompt in prompts]
    assert decoded(bench, requests) == [greedy(bench, prompt, 12) for prompt in prompts]
    assert partition.evicted_pages == 0


def test_of_requests_that_wait_for_each_other_the_last_one_fails() -> None:
    bench = make_bench()
    partition = bench.partition(24)
    prompts = [random_tokens(64, seed=seed) for seed in range(2)]
    first, last = (kept(partition, prompt, max_tokens=160) for prompt in prompts)
    for request in (first, last):  # nothing that they say may be evicted either
        request.on_tokens = lambda request, _: request.branch.checkpoint()
    decoded(bench, [first, last])
    assert isinstance(last.error, PoolExhausted)
    assert 0 < len(last.produced) < 160
    assert first.produced == greedy(bench, prompts[0], 160)


def test_a_request_waits_for_pages_that_are_held_between_requests() -> None:
    bench = make_bench()
    partition = bench.partition(12)
    judged = kept(partition, random_tokens(120))
    judged.on_finish = None
    prompt = random_tokens(120, seed=1)
    waits = kept(partition, prompt)
    batcher = Batcher(bench.runner)
    batcher.add(judged)
    batcher.add(waits)
    run_all(batcher)
    assert (judged.finish, waits.finish, len(batcher)) == (Finish.LENGTH, None, 1)
    judged.branch.close()
    run_all(batcher)
    assert waits.produced == greedy(bench, prompt, 12)


def test_a_wait_for_held_pages_ends() -> None:
    bench = make_bench()
    partition = bench.partition(12)
    holder = kept(partition, random_tokens(120))
    holder.on_finish = None
    decoded(bench, [holder])
    in_vain = kept(partition, random_tokens(120, seed=1))
    decoded(bench, [in_vain], BatchLimits(room_wait_s=0))
    assert isinstance(in_vain.error, PoolExhausted)
    assert in_vain.error.partition == partition.name


def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    bench = make_bench()
    partition = bench.partition(12)
    order: list[str] = []
    begun: list[str] = []

    def named(name: str, n_tokens: int) -> Request:
        request = kept(partition, random_tokens(n_tokens, seed=n_tokens))

        def finish(request: Request) -> None:
            order.append(name)
            request.branch.close()

        def prefilled(request: Request) -> None:
            begun.append(name)
            request.branch.checkpoint()

        request.on_prefilled, request.on_finish = prefilled, finish
        return request

    decoded(bench, [named("first", 120), named("large", 130), named("small", 20)])
    assert order[0] == "first"
    assert begun == ["first", "large", "small"]


@pytest.mark.parametrize("layer_groups", [1, 2])
@pytest.mark.parametrize("policy", ["salience", "recency", "window", "lowest_entropy"])
def test_prompts_larger_than_their_partition_go_through_by_evicting(policy: str, layer_groups: int) -> None:
    bench = make_bench(layer_groups=layer_groups)
    partition = bench.partition(16, policy=policy)
    request = make_request(partition.branch(), random_tokens(700))
    decoded(bench, [request])
    assert request.finish is Finish.LENGTH
    assert request.evicted_pages == partition.evicted_pages >= layer_groups * (700 // 16 - 16)
    assert max(partition.owned_pages) <= 16


def test_room_is_never_made_from_pages_of_the_same_step() -> None:
    bench = make_bench()
    partition = bench.partition(40)
    old = make_request(partition.branch(), random_tokens(400), max_tokens=30)
    new = [make_request(partition.branch(), random_tokens(200, seed=seed)) for seed in (2, 3)]
    batcher = Batcher(bench.runner, limits=BatchLimits(mixed_prefill_tokens=512))
    batcher.add(old)
    batcher.step()
    for request in new:
        batcher.add(request)
    evicted_while_prefilling = 0
    while len(batcher):
        prefilling = [request for request in new if not request.decoding]
        batcher.step()
        evicted_while_prefilling += sum(request.branch.evicted_pages for request in prefilling)
        bench.pool.audit()
    assert partition.evicted_pages > 0
    assert evicted_while_prefilling == 0
    assert [request.finish for request in (old, *new)] == [Finish.LENGTH] * 3
    assert new[0].produced[:1] == greedy(bench, random_tokens(200, seed=2), 1)
