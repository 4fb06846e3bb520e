"""The runtime: plan, dispatch, gate, commit. `Swarm` is the way in.

General layout
--------------
`swarm.Swarm` turns calls into tasks; `flow.Flow` is the life of one task, decided by the pure `lifecycle`; a
`fleet` carries attempts out, in processes (`worker`, `engine_main`) or `inline`; `fabric/` is the shared-memory
message fabric between them, `stores/` what makes a commit durable.
"""

from __future__ import annotations

if __name__ == "swarm":
    raise ImportError("import this package as swarmkv.swarm, not as swarm")

from .config import Config
from .errors import (
    EngineBroken,
    SettingInvalid,
    StartFailed,
    SwarmClosed,
    SwarmError,
    TaskFailed,
)
from .outcome import Attempt, Event, Outcome, Pursuit
from .stores import Store
from .swarm import Swarm

__all__ = [
    "Attempt",
    "Config",
    "EngineBroken",
    "Event",
    "Outcome",
    "Pursuit",
    "SettingInvalid",
    "StartFailed",
    "Store",
    "Swarm",
    "SwarmClosed",
    "SwarmError",
    "TaskFailed",
]
