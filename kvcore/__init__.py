"""The paged KV cache: pool, partitions, branches, eviction, and the batching runner over Hugging Face models.

General layout
--------------
`Pool` holds the tensor and the ledger; a `Partition` is a quota of it with an eviction policy; a `Branch` is a
copy-on-write sequence of pages in a partition; `PrefixTree` shares the beginnings of prompts; `Runner` makes one
ragged forward pass over branches; `Batcher` decides what each pass takes. `kvcore.model` fetches and loads models.

Public names load on first use, so that `kvcore.model`, `kvcore.errors` and `kvcore.page_table` stay free of torch.
"""

from __future__ import annotations

if __name__ == "kvcore":
    raise ImportError("import this package as swarmkv.kvcore, not as kvcore")

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import ATTENTION_NAME as ATTENTION_NAME
    from .batcher import Batcher as Batcher
    from .batcher import BatchLimits as BatchLimits
    from .batcher import Constraint as Constraint
    from .batcher import Finish as Finish
    from .batcher import Request as Request
    from .branch import Branch as Branch
    from .branch import Checkpoint as Checkpoint
    from .errors import KVCoreError as KVCoreError
    from .page_table import PageState as PageState
    from .page_table import PageTable as PageTable
    from .page_table import PageWord as PageWord
    from .partition import Partition as Partition
    from .partition import Protection as Protection
    from .policies import Candidates as Candidates
    from .policies import EvictionPolicy as EvictionPolicy
    from .pool import Audit as Audit
    from .pool import Pool as Pool
    from .pool import PoolConfig as PoolConfig
    from .prefix import PrefixTree as PrefixTree
    from .ring_pool import RingKVPool as RingKVPool
    from .ring_pool import SalienceMask as SalienceMask
    from .runner import Runner as Runner
    from .runner import model_shape as model_shape
    from .runner import prepare_model as prepare_model
    from .sampling import SamplingSettings as SamplingSettings

_HOMES = {
    "ATTENTION_NAME": "attention",
    "Batcher": "batcher",
    "BatchLimits": "batcher",
    "Constraint": "batcher",
    "Finish": "batcher",
    "Request": "batcher",
    "Branch": "branch",
    "Checkpoint": "branch",
    "KVCoreError": "errors",
    "PageState": "page_table",
    "PageTable": "page_table",
    "PageWord": "page_table",
    "Partition": "partition",
    "Protection": "partition",
    "Candidates": "policies",
    "EvictionPolicy": "policies",
    "Audit": "pool",
    "Pool": "pool",
    "PoolConfig": "pool",
    "PrefixTree": "prefix",
    "RingKVPool": "ring_pool",
    "SalienceMask": "ring_pool",
    "Runner": "runner",
    "model_shape": "runner",
    "prepare_model": "runner",
    "SamplingSettings": "sampling",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load a public name's module when it is first used, so that `kvcore.model` stays free of torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
