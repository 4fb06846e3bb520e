"""The engine's speed beside Hugging Face `generate` and llama.cpp, on the same weights, in the same run.

    decode    8 sequences of 1,000 tokens each: tokens/s over 32 steps (quick: 16), without the prompt's time
    prefill   one prompt of 2,048 tokens: tokens/s

Each contestant computes the 1,000 tokens once and copies them to eight sequences in memory of their own; after each
measurement it takes back what was decoded. Hugging Face runs the same bf16 (or float32) weights with its own cache;
llama.cpp the GGUF that they came from.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from swarmkv.kvcore import (
    Batcher,
    Branch,
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
TOKEN = 100
"""what each sequence decodes from"""


class Ours:
    def __init__(self) -> None:
        loaded = load_model("smollm2-135m")
        pages = -(-(CONTEXT + STEPS + 1) // 16) * SEQUENCES + PREFILL // 16 + 16
        shape: dict[str, Any] = model_shape(loaded.config)
        self.pool = Pool(PoolConfig(pages=pages, dtype=loaded.dtype, **shape))
        self.partition = Partition(self.pool, "bench", pages)
        self.runner = Runner(prepare_model(loaded.model), self.pool, max_positions=loaded.max_positions)
        self.filled: list[Branch] = []

    def fill(self, prompt: list[int]) -> None:
        self.filled = [self.partition.branch() for _ in range(SEQUENCES)]
        self._run([Request(self.filled[0], prompt, max_tokens=1, stop_ids=frozenset())])
        for copy in self.filled[1:]:
            copy.extend(prompt)
            for source, target in zip(self.filled[0].tables[0], copy.tables[0], strict=True):
                self.pool.copy_page(source, target)

    def decode(self, steps: int) -> float:
        requests = [
            Request(branch, [TOKEN], max_tokens=steps, stop_ids=frozenset()) for branch in self.filled
        ]
        elapsed = self._run(requests)
        for branch in self.filled:
            branch.truncate(CONTEXT)
        return SEQUENCES * steps / elapsed

    def prefill(self, prompt: list[int]) -> float:
        request = Request(self.partition.branch(), prompt, max_tokens=1, stop_ids=frozenset())
        elapsed = self._run([request])
        request.branch.close()
        return len(prompt) / elapsed

    def _run(self, requests: list[Request]) -> float:
        batcher = Batcher(self.runner)
        for request in requests:
            batcher.add(request)
        started = time.perf_counter()
        while batcher.step():
            pass
        return time.perf_counter() - started


class HuggingFace:
    def __init__(self) -> None:
        self.model: Any = load_model("smollm2-135m").model
        self.cache = DynamicCache(config=self.model.config)
        parameters = inspect.signature(self.model.forward).parameters
        self._cached = {"cache" if "cache" in parameters else "past_key_values": self.cache}
        self.prompt: list[int] = []

    @torch.inference_mode()
    def fill(self, prompt: list[int]) -> None:
        self.prompt = prompt
        self.model(torch.tensor([prompt]), **self._cached, logits_to_keep=1)
        self.cache.batch_repeat_interleave(SEQUENCES)

    @torch.inference_mode()
    def decode(self, steps: int) -> float:
        ids = torch.tensor([[*self.prompt, TOKEN]] * SEQUENCES)
        started = time.perf_counter()
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **self._cached,
            min_new_tokens=steps,
            max_new_tokens=steps,
            do_sample=False,
            pad_token_id=0,
        )
        elapsed = time.perf_counter() - started
        self.cache.crop(CONTEXT - self.cache.get_seq_length())
        return SEQUENCES * steps / elapsed

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        self.model(torch.tensor([prompt]), logits_to_keep=1)
        return len(prompt) / (time.perf_counter() - started)


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

    def fill(self, prompt: list[int]) -> None:
        memory = self.lib.llama_get_memory(self.context)
        self._feed(self.context, prompt, 0)
        for sequence in range(1, SEQUENCES):
            self.lib.llama_memory_seq_cp(memory, 0, sequence, -1, -1)

    def decode(self, steps: int) -> float:
        started = time.perf_counter()
        for step in range(steps):
            self._decode(self.context, [(TOKEN, CONTEXT + step, sequence) for sequence in range(SEQUENCES)])
        elapsed = time.perf_counter() - started
        memory = self.lib.llama_get_memory(self.context)
        for sequence in range(SEQUENCES):
            self.lib.llama_memory_seq_rm(memory, sequence, CONTEXT, -1)
        return SEQUENCES * steps / elapsed

    def prefill(self, prompt: list[int]) -> float:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.unified), True)
        started = time.perf_counter()
        self._feed(self.unified, prompt, 0)
        return len(prompt) / (time.perf_counter() - started)

    def _unified_context(self, tokens: int) -> Any:
        context = self.lib.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = tokens, 512, 512
        context.n_threads = context.n_threads_batch = torch.get_num_threads()
        return self.lib.llama_init_from_model(self.model, context)

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
    prompt = torch.randint(1000, 40000, (PREFILL,), generator=generator).tolist()
    repeats, steps = (1, STEPS // 2) if args.quick else (7, STEPS)
    for contestant in contestants.values():
        contestant.fill(prompt[:CONTEXT])
    runs: dict[str, Callable[[Any], float]] = {
        "decode": lambda contestant: contestant.decode(steps),
        "prefill": lambda contestant: contestant.prefill(prompt),
    }
    speeds: dict[str, dict[str, float]] = {}
    for measure, run in runs.items():
        results = alternate(
            repeats,
            {name: partial(run, contestant) for name, contestant in contestants.items()},
            warm_up=not args.quick,
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
