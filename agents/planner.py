"""Planners: from a goal to a plan of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

import msgspec

from .agent import Agent
from .errors import PlanInvalid


class TaskResult(msgspec.Struct, frozen=True):
    """How a task ended, for the tasks that need it."""

    accepted: bool
    value: Any
    """None if it was not accepted"""
    reason: str
    """why it was not accepted; empty if it was"""


MakeInput = Callable[[Mapping[str, TaskResult]], Any]


class PlannedTask(msgspec.Struct, frozen=True):
    """One task of a plan."""

    id: str
    agent: str
    input: Any
    """a value, or a function that makes it from the results of the needed tasks, in the coordinator"""
    needs: tuple[str, ...] = ()
    """ids of tasks that must end first"""
    after_failures: bool = False
    """run even if a needed task was not accepted"""


class Plan:
    """Tasks in the order in which they should begin.

    Raises: PlanInvalid for double ids, unknown needs and cycles.
    """

    def __init__(self, tasks: Iterable[PlannedTask]) -> None:
        self.tasks = tuple(tasks)
        ids = [task.id for task in self.tasks]
        doubles = {id_ for id_ in ids if ids.count(id_) > 1} if len(set(ids)) != len(ids) else set()
        if doubles:
            raise PlanInvalid(f"two tasks have one id: {', '.join(sorted(doubles))}")
        known = set(ids)
        for task in self.tasks:
            unknown = [need for need in task.needs if need not in known]
            if unknown:
                raise PlanInvalid(f"task {task.id!r} needs {unknown[0]!r}, which is not in the plan")
        try:
            TopologicalSorter({task.id: task.needs for task in self.tasks}).prepare()
        except CycleError as error:
            raise PlanInvalid(f"tasks need each other in a circle: {' ▶ '.join(error.args[1])}") from error

    def check(self, agents: Mapping[str, Agent[Any]]) -> None:
        """Raises: PlanInvalid if the plan is empty or names an agent that is not there."""
        if not self.tasks:
            raise PlanInvalid("the plan has no task")
        for task in self.tasks:
            if task.agent not in agents:
                raise PlanInvalid(f"task {task.id!r} is for agent {task.agent!r}; there are {', '.join(agents)}")


class Planner(Protocol):
    """Turns a goal into a plan."""

    async def plan(self, goal: str, agents: Mapping[str, Agent[Any]]) -> Plan: ...


class StaticPlanner:
    """The same plan for every goal."""

    def __init__(self, plan: Plan | Sequence[PlannedTask]) -> None:
        self._plan = plan if isinstance(plan, Plan) else Plan(plan)

    async def plan(self, goal: str, agents: Mapping[str, Agent[Any]]) -> Plan:
        return self._plan


Items = Iterable[tuple[str, Any]]

REDUCE_TASK = "reduce"
"""id of the last task of a MapReduce plan"""


class MapReduce:
    """One task an item, and, with `reduce`, one that needs them all and runs even if some were not accepted.

    items     (task id, input) pairs, or a function of the goal that gives them
    map       the agent of the items' tasks
    reduce    the agent of the last task, "reduce"; None for none
    combine   makes its input from the results
    """

    def __init__(
        self,
        items: Items | Callable[[str], Items],
        *,
        map: str,
        reduce: str | None = None,
        combine: MakeInput | None = None,
    ) -> None:
        if (reduce is None) != (combine is None):
            raise PlanInvalid("MapReduce takes reduce and combine together, or neither")
        self._items, self._map, self._reduce, self._combine = items, map, reduce, combine

    async def plan(self, goal: str, agents: Mapping[str, Agent[Any]]) -> Plan:
        items = self._items(goal) if callable(self._items) else self._items
        tasks = [PlannedTask(task_id, self._map, input) for task_id, input in items]
        if self._reduce is not None:
            needs = tuple(task.id for task in tasks)
            tasks.append(PlannedTask(REDUCE_TASK, self._reduce, self._combine, needs, after_failures=True))
        return Plan(tasks)
