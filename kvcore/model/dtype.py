"""Which dtype a model runs in: bf16 where the processor multiplies it faster than float32, found out once."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .embedded import cache_root
from .errors import ModelError

if TYPE_CHECKING:
    import torch

DTYPE_VARIABLE = "SWARMKV_DTYPE"
_ROWS = (8, 512)
"""tokens of a decode step and of a prompt's chunk"""
_SHAPE = (576, 1536)


def choose_dtype(dtype: str, device: str) -> torch.dtype:
    """The dtype by name; "auto" asks the environment variable SWARMKV_DTYPE, then the device.

    Raises: ModelError for a name other than auto, bfloat16, float16 and float32.
    """
    import torch

    names = {"bfloat16": torch.bfloat16, "bf16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if dtype == "auto":
        dtype = os.environ.get(DTYPE_VARIABLE, "auto")
    if dtype in names:
        return names[dtype]
    if dtype != "auto":
        raise ModelError(f"dtype={dtype!r} is unknown; it takes auto, {', '.join(names)}")
    if device != "cpu":
        return torch.bfloat16
    return torch.bfloat16 if _cpu_prefers_bf16() else torch.float32


def _cpu_prefers_bf16() -> bool:
    flags, model = _cpu()
    if not flags & {"amx_bf16", "avx512_bf16"}:
        return False
    import torch

    key = hashlib.sha256(f"{model} {torch.__version__} {torch.get_num_threads()}".encode()).hexdigest()[:16]
    file = cache_root() / f"dtype-{key}.json"
    try:
        return bool(json.loads(file.read_text(encoding="utf-8"))["bfloat16"])
    except (OSError, ValueError, KeyError):
        times = {name: _measure(getattr(torch, name)) for name in ("bfloat16", "float32")}
        prefers = times["bfloat16"] < times["float32"]
        _remember(file, {"bfloat16": prefers, "seconds": times, "cpu": model})
        return prefers


def _measure(dtype: torch.dtype) -> float:
    """Seconds of a decode step's and a chunk's linear layer, the best of several."""
    import torch

    from ..packed_linear import PackedLinear, can_pack

    total = 0.0
    with torch.inference_mode():
        linear = torch.nn.Linear(*_SHAPE, bias=False).to(dtype)
        layer = PackedLinear(linear) if can_pack("cpu", dtype) else linear
        for rows in _ROWS:
            x = torch.randn(rows, _SHAPE[0]).to(dtype)
            times = []
            for _ in range(12):
                started = time.perf_counter()
                layer(x)
                times.append(time.perf_counter() - started)
            total += min(times)
    return total


def _remember(file: Path, found: dict[str, object]) -> None:
    """Keep a measurement; a cache that cannot be written costs only the next one."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as work:
            json.dump(found, work)
        os.replace(work.name, file)
    except OSError:
        return


def _cpu() -> tuple[set[str], str]:
    """Feature flags and model name of the processor; empty where the kernel does not tell."""
    flags, model = set[str](), ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return flags, model
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = set(value.split())
        elif name.strip() == "model name":
            model = value.strip()
    return flags, model
