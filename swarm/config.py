"""The settings of a swarm: one frozen struct, checked once, before anything starts."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..agents.backends.local import LocalSettings
from .errors import SettingInvalid

_UNITS = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """How a swarm runs. Every field is a keyword of `Swarm`."""

    model: str = "smollm2-135m"
    """an embedded model's name, a Hugging Face id or a local folder"""
    workers: int = 2
    """worker processes, each with a partition of the KV pool"""
    tasks_per_worker: int = 1
    """attempts that one worker carries out at the same time"""
    kv_budget: int | str = "256MiB"
    """memory of the KV pool, in bytes or with a unit"""
    store: Any = None
    """a file for SQLite, a Store, or None for memory"""
    isolation: Literal["process", "inline"] = "process"
    """inline: everything in this process, for tests, notebooks and debuggers"""
    policy: str = "salience"
    """eviction policy of the workers' partitions"""
    page_size: int = 16
    """tokens of a KV page"""
    layer_groups: int = 1
    """1: a page spans all layers; up to the number of layers"""
    dtype: str = "auto"
    device: str = "auto"
    engine_threads: int = 0
    """torch's threads in the engine; 0 leaves torch's choice"""
    seed: int = 0
    """of every sampled token, together with the agent's own: with equal seeds, tasks sample alike"""
    ring_bytes: int = 2**20
    """room of one ring; a message must fit half of it"""
    start_timeout_s: float = 120.0
    """how long the processes may take to come up"""
    stop_grace_s: float = 2.0
    """how long a process may take to end by itself"""
    max_losses: int = 3
    """workers that one task may lose before it fails as poisonous"""

    @classmethod
    def read(cls, settings: dict[str, Any]) -> Config:
        """Check settings by name, type and range.

        Raises: SettingInvalid naming the setting and what it takes, or the nearest name.
        """
        for name in settings:
            if name not in cls.__struct_fields__:
                near = difflib.get_close_matches(name, cls.__struct_fields__, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(cls.__struct_fields__)}"
                raise SettingInvalid(name, settings[name], f"nothing: there is no such setting; {hint}")
        if isinstance(settings.get("model"), Path):
            settings = settings | {"model": str(settings["model"])}
        try:
            config = msgspec.convert(settings, cls)
        except msgspec.ValidationError as error:
            named = re.search(r"`\$\.(\w+)", str(error))
            where = named[1] if named else "settings"
            raise SettingInvalid(where, settings.get(where), str(error)) from error
        config._check_ranges()
        return config

    @property
    def kv_budget_bytes(self) -> int:
        return parse_bytes(self.kv_budget)

    def local_settings(self) -> LocalSettings:
        """What a local backend is told of them."""
        return LocalSettings(
            model=self.model,
            kv_budget_bytes=self.kv_budget_bytes,
            partitions=self.workers,
            policy=self.policy,
            page_size=self.page_size,
            layer_groups=self.layer_groups,
            dtype=self.dtype,
            device=self.device,
            threads=self.engine_threads,
        )

    def _check_ranges(self) -> None:
        for name, lowest, highest in (
            ("workers", 1, 1024),
            ("tasks_per_worker", 1, 1024),
            ("page_size", 1, 2**16),
            ("layer_groups", 1, 2**16),
            ("engine_threads", 0, 1024),
            ("max_losses", 1, 1024),
            ("ring_bytes", 2**16, 2**30),
        ):
            if not lowest <= getattr(self, name) <= highest:
                raise SettingInvalid(
                    name, getattr(self, name), f"a whole number from {lowest:,} to {highest:,}"
                )
        if self.ring_bytes % 8:
            raise SettingInvalid("ring_bytes", self.ring_bytes, "a multiple of 8")
        for name in ("start_timeout_s", "stop_grace_s"):
            if not getattr(self, name) > 0:
                raise SettingInvalid(name, getattr(self, name), "seconds, more than 0")
        parse_bytes(self.kv_budget)


def parse_bytes(size: int | str) -> int:
    """Bytes from a number or a text such as "256MiB".

    Raises: SettingInvalid if it is neither, or not from 1 to 2**63 - 1.
    """
    allowed = 'bytes as a number, or a text such as "256MiB" (KiB, MiB, GiB, kB, MB, GB)'
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", size)
        if match is None or match[2].lower() not in _UNITS:
            raise SettingInvalid("kv_budget", size, allowed)
        size_bytes = int(float(match[1]) * _UNITS[match[2].lower()])
    else:
        size_bytes = size
    if not 0 < size_bytes < 2**63:
        raise SettingInvalid("kv_budget", size, allowed + ", more than 0 and below 2**63")
    return size_bytes
