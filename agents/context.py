"""What checks, tools and prompts see of the task that they work on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt's surroundings. A value: changing what it holds changes nothing elsewhere."""

    input: Any
    run_id: str = ""
    task_id: str = ""
    agent: str = ""
    attempt: int = 1
    results: Mapping[str, Any] = {}
    """accepted outputs of the tasks that this one needs, as JSON text by task id"""
