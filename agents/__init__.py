"""What users write with: agents, tools, planners, and the seam to models.

General layout
--------------
An `Agent` is a value; `run_attempt` carries out one attempt of it against a `Backend`; a `Planner` turns a
goal into a `Plan`. Nothing here knows processes: the runtime (`swarmkv.swarm`) brings them together.
"""

from __future__ import annotations

if __name__ == "agents":
    raise ImportError("import this package as swarmkv.agents, not as agents")

from ..verify import check
from .agent import Agent, AgentRef, find_agent
from .attempt import AttemptOutput, AttemptRequest, run_attempt
from .backend import Backend
from .context import Context
from .errors import AgentError, AgentInvalid, AgentNotImportable, NotPortable, PlanInvalid, ToolFailed
from .message import AttemptKey, Generation, Message, Sampling, Usage
from .planner import MapReduce, Plan, PlannedTask, Planner, StaticPlanner, TaskResult
from .portable import ensure_portable
from .tool import Tool, tool

__all__ = [
    "Agent",
    "AgentError",
    "AgentInvalid",
    "AgentNotImportable",
    "AgentRef",
    "AttemptKey",
    "AttemptOutput",
    "AttemptRequest",
    "Backend",
    "Context",
    "Generation",
    "MapReduce",
    "Message",
    "NotPortable",
    "Plan",
    "PlanInvalid",
    "PlannedTask",
    "Planner",
    "Sampling",
    "StaticPlanner",
    "TaskResult",
    "Tool",
    "ToolFailed",
    "Usage",
    "check",
    "ensure_portable",
    "find_agent",
    "run_attempt",
    "tool",
]
