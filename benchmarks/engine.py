"""The engine's speed beside Hugging Face `generate` and llama.cpp, on the same weights, in the same run.

    decode    8 sequences of 1,000 tokens each: tokens/s over 32 steps, without the prompt's time
    prefill   one prompt of 2,048 tokens: tokens/s

Hugging Face runs the same bf16 (or float32) weights with its own cache; llama.cpp the GGUF that they came from.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from swarmkv.kvcore import (
    Batcher,
    BatchLimits,
    Partition,
    Pool,
    PoolConfig,
    Request,
    Runner,
    model_shape,
    prepare_model,
)
from swarmkv.kvcore.model import embedded_gguf, load_model

from .common import alternate, arguments, median, ratio, report, versions

SEQUENCES, CONTEXT, STEPS, PREFILL = 8, 1000, 32, 2048


class Ours:
    def __init__(self) -> None:
        loaded = load_model("smollm2-135m")
        self.dtype = loaded.dtype
        shape = model_shape(loaded.config)
        pages = -(-(CONTEXT + STEPS + 1) // 16) * SEQUENCES + PREFILL // 16 + 16
        pool = Pool(PoolConfig(**shape, pages=pages, dtype=loaded.dtype))
        self.partition = Partition(pool, "bench", pages)
        self.runner = Runner(prepare_model(loaded.model), pool, max_positions=loaded.max_positions)

    def decode(self, prompts: list[list[int]]) -> float:
        batcher = Batcher(self.runner, limits=BatchLimits())
        requests = [
            Request(self.partition.branch(), prompt, max_tokens=STEPS + 1, stop_ids=frozenset())
            for prompt in prompts
        ]
        for request in requests:  # one after the other, so that all begin to decode together
            batcher.add(request)
            while not request.decoding:
                batcher.step()
            batcher.cancel(request)
        running = [
            Request(request.branch, request.produced, max_tokens=STEPS, stop_ids=frozenset())
            for request in requests
        ]
        for request in running:
            batcher.add(request)
        started = time.perf_counter()
        while len(batcher):
            batcher.step()
        elapsed = time.perf_counter() - started
        for request in running:
            request.branch.close()
        return SEQUENCES * STEPS / elapsed

    def prefill(self, prompt: list[int]) -> float:
        batcher = Batcher(self.runner)
        request = Request(self.partition.branch(), prompt, max_tokens=1, stop_ids=frozenset())
        batcher.add(request)
        started = time.perf_counter()
        while len(batcher):
            batcher.step()
        elapsed = time.perf_counter() - started
        request.branch.close()
        return len(prompt) / elapsed


class HuggingFace:
    def __init__(self) -> None:
        self.model = load_model("smollm2-135m").model

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]]) -> float:
        ids = torch.tensor(prompts)
        return SEQUENCES * STEPS / (self._generate(ids, STEPS + 1) - self._generate(ids, 1))

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> float:
        ids = torch.tensor([prompt])
        started = time.perf_counter()
        self.model(ids, logits_to_keep=1)
        return len(prompt) / (time.perf_counter() - started)

    def _generate(self, ids: torch.Tensor, new_tokens: int) -> float:
        started = time.perf_counter()
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - started


class LlamaCpp:
    """llama.cpp as pip builds it, through its C interface: the high-level class decodes one sequence only."""

    def __init__(self) -> None:
        import llama_cpp

        self.lib: Any = llama_cpp
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, None)
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.use_extra_bufts = False
        self.model = llama_cpp.llama_model_load_from_file(str(embedded_gguf()).encode(), model)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = (CONTEXT + STEPS + 64) * SEQUENCES
        context.n_seq_max = SEQUENCES
        context.kv_unified = False
        context.n_batch = context.n_ubatch = 512
        context.n_threads = context.n_threads_batch = torch.get_num_threads()
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.unified = self._unified_context(PREFILL + 64)

    def decode(self, prompts: list[list[int]]) -> float:
        self._clear(self.context)
        for sequence, prompt in enumerate(prompts):
            self._feed(self.context, prompt, sequence)
        started = time.perf_counter()
        for step in range(STEPS):
            self._decode(self.context, [(100, CONTEXT + step, sequence) for sequence in range(SEQUENCES)])
        return SEQUENCES * STEPS / (time.perf_counter() - started)

    def prefill(self, prompt: list[int]) -> float:
        self._clear(self.unified)
        started = time.perf_counter()
        self._feed(self.unified, prompt, 0)
        return len(prompt) / (time.perf_counter() - started)

    def _unified_context(self, tokens: int) -> Any:
        context = self.lib.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = tokens, 512, 512
        context.n_threads = context.n_threads_batch = torch.get_num_threads()
        return self.lib.llama_init_from_model(self.model, context)

    def _clear(self, context: Any) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(context), True)

    def _feed(self, context: Any, prompt: list[int], sequence: int) -> None:
        for start in range(0, len(prompt), 512):
            chunk = prompt[start : start + 512]
            self._decode(
                context, [(token, start + i, sequence) for i, token in enumerate(chunk)], last_only=True
            )

    def _decode(self, context: Any, tokens: list[tuple[int, int, int]], last_only: bool = False) -> None:
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for index, (token, position, sequence) in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = not last_only or index == len(tokens) - 1
        status = self.lib.llama_decode(context, batch)
        self.lib.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")


def peers() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The contestants, and a row for each that cannot run here."""
    contestants: dict[str, Any] = {"swarmkv": Ours(), "huggingface": HuggingFace()}
    try:
        contestants["llama.cpp"] = LlamaCpp()
    except ImportError as error:
        return contestants, [{"engine": "llama.cpp", "measure": f"not installed: {error}"}]
    return contestants, []


def main() -> None:
    args = arguments(__doc__ or "")
    contestants, rows = peers()
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(1000, 40000, (SEQUENCES, CONTEXT), generator=generator).tolist()
    long = torch.randint(1000, 40000, (PREFILL,), generator=generator).tolist()
    repeats = 2 if args.quick else 7
    speeds: dict[str, dict[str, float]] = {}
    for measure, argument in (("decode", prompts), ("prefill", long)):
        results = alternate(
            repeats,
            **{name: lambda c=c: getattr(c, measure)(argument) for name, c in contestants.items()},  # noqa: B023
        )
        speeds[measure] = {name: median(values) for name, values in results.items()}
        rows += [
            {
                "engine": name,
                "measure": f"{measure} {'8 x 1,000' if measure == 'decode' else '2,048'}",
                "tokens/s": median(values),
                "least": min(values),
                "most": max(values),
                "ours / theirs": ratio(speeds[measure]["swarmkv"], median(values)),
            }
            for name, values in results.items()
        ]
    decode, prefill = speeds["decode"], speeds["prefill"]
    report(
        "engine",
        figures={
            "decode_8x1000_tokens_per_s": round(decode["swarmkv"], 1),
            "decode_8x1000_vs_hf_ratio": ratio(decode["swarmkv"], decode["huggingface"]),
            "decode_8x1000_vs_llamacpp_ratio": ratio(decode["swarmkv"], decode.get("llama.cpp")),
            "prefill_2048_tokens_per_s": round(prefill["swarmkv"], 1),
            "prefill_2048_vs_hf_ratio": ratio(prefill["swarmkv"], prefill["huggingface"]),
            "prefill_2048_vs_llamacpp_ratio": ratio(prefill["swarmkv"], prefill.get("llama.cpp")),
        },
        rows=rows,
        package_versions=versions("torch", "transformers", "llama-cpp-python"),
        args=args,
    )


if __name__ == "__main__":
    main()
