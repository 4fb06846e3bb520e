"""What checks, tools and prompts see of the task that they work on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt's surroundings, to read: what code in a worker changes of it reaches no gate."""

    input: Any
    run_id: str = ""
    task_id: str = ""
    agent: str = ""
    """its name"""
    attempt: int = 1
    results: Mapping[str, Any] = {}
    """accepted outputs of the tasks that this one needs, as JSON text by task id"""
