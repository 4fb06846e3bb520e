"""A model's dtype and device: bf16 where the processor multiplies it faster than float32, found out once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .cache import cache_root, write_atomically
from .errors import ModelSettingInvalid

if TYPE_CHECKING:
    import torch

DTYPE_VARIABLE = "SWARMKV_DTYPE"
_NAMES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "float32": "float32"}
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
_ROWS = (8, 512)
"""tokens of a decode step and of a prompt's chunk"""
_SHAPE = (576, 1536)
_RUNS = 12
_RUN_LIMIT_S = 0.15
"""how long one layer is measured"""


class Processor(msgspec.Struct, frozen=True):
    """The CPU as the kernel describes it; empty where it does not tell."""

    model: str = ""
    flags: frozenset[str] = frozenset()


def choose_device(device: str) -> torch.device:
    """The device by name; "auto" is the first CUDA device, or else the CPU.

    Raises: ModelSettingInvalid for an unknown name, or a device that is not there.
    """
    import torch

    cuda = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if cuda else "cpu")
    allowed = "auto, cpu or cuda[:N]"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ModelSettingInvalid("device", device, allowed) from error
    if chosen.type == "cuda" and (not cuda or (chosen.index or 0) >= torch.cuda.device_count()):
        seen = torch.cuda.device_count() if cuda else 0
        raise ModelSettingInvalid("device", device, f"{allowed}, and torch sees {seen} CUDA devices here")
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The dtype by name; "auto" asks the environment variable SWARMKV_DTYPE, then the device.

    Raises: ModelSettingInvalid for a name other than auto, bfloat16 (bf16), float16 and float32.
    """
    import torch

    source, name = "dtype", dtype
    if name == "auto":
        source, name = DTYPE_VARIABLE, os.environ.get(DTYPE_VARIABLE, "auto")
    if name == "auto":
        bf16 = device.type != "cpu" or prefers_bf16(read_processor())
        return torch.bfloat16 if bf16 else torch.float32
    if name not in _NAMES:
        raise ModelSettingInvalid(source, name, f"auto, {', '.join(_NAMES)}")
    chosen: torch.dtype = getattr(torch, _NAMES[name])
    return chosen


def prefers_bf16(processor: Processor, measure: Callable[[torch.dtype], float] | None = None) -> bool:
    """Whether this CPU has bf16 arithmetic and, as measured once a CPU and torch version, gains from it.

    `measure` gives a dtype's seconds; its answer is kept in the cache folder, if that can be written.
    """
    if not processor.flags & _BF16_FLAGS:
        return False
    import torch

    key = f"{processor.model} {torch.__version__} {torch.get_num_threads()}"
    file = cache_root() / f"dtype-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        return bool(json.loads(file.read_bytes())["bfloat16"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    seconds = {name: (measure or _measure)(getattr(torch, name)) for name in ("bfloat16", "float32")}
    faster = seconds["bfloat16"] < seconds["float32"]
    _remember(file, {"bfloat16": faster, "cpu": processor.model, "seconds": seconds})
    return faster


def read_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """The first CPU of the kernel's list."""
    try:
        first = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return Processor()
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    return Processor(fields.get("model name", ""), frozenset(fields.get("flags", "").split()))


def _measure(dtype: torch.dtype) -> float:
    """Seconds of a decode step's and a chunk's linear layer as the runner has it, the best of several."""
    import torch

    from ..packed_linear import PackedLinear, can_pack

    with torch.inference_mode():
        linear = torch.nn.Linear(*_SHAPE, bias=False).to(dtype)
        layer = PackedLinear(linear) if can_pack("cpu", dtype) else linear
        return sum(_best_time(layer, torch.randn(rows, _SHAPE[0]).to(dtype)) for rows in _ROWS)


def _best_time(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    times: list[float] = []
    end = time.perf_counter() + _RUN_LIMIT_S
    while len(times) < 2 or (len(times) < _RUNS and time.perf_counter() < end):
        started = time.perf_counter()
        layer(x)
        times.append(time.perf_counter() - started)
    return min(times)


def _remember(file: Path, found: dict[str, object]) -> None:
    try:
        write_atomically(file, json.dumps(found))
    except OSError:
        return  # a cache that cannot be written costs the next process a measurement, no more
