"""Planners: from a goal to a plan of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

import msgspec

from .agent import Agent
from .errors import PlanInvalid

MAX_ID_CHARS = 200
REDUCE_TASK = "reduce"
"""id of the last task of a MapReduce plan"""


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

    Raises: PlanInvalid, with a sentence for each bad id, double id and unknown need, or for a circle.
    """

    def __init__(self, tasks: Iterable[PlannedTask]) -> None:
        self.tasks = tuple(tasks)
        faults = [*_shape_faults(self.tasks)] or [*_need_faults(self.tasks)]
        if faults:
            raise PlanInvalid(*faults)
        try:
            TopologicalSorter({task.id: task.needs for task in self.tasks}).prepare()
        except CycleError as error:
            raise PlanInvalid(f"tasks need each other in a circle: {' ▶ '.join(error.args[1])}") from error

    def check(self, agents: Mapping[str, Agent[Any]]) -> None:
        """Raises: PlanInvalid if the plan is empty or names agents that are not there."""
        if not self.tasks:
            raise PlanInvalid("the plan has no task")
        unknown = [task for task in self.tasks if task.agent not in agents]
        if unknown:
            known = ", ".join(agents) or "none"
            raise PlanInvalid(
                *(f"task {task.id!r} is for agent {task.agent!r}; there are {known}" for task in unknown)
            )


def _shape_faults(tasks: Iterable[Any]) -> Iterator[str]:
    for task in tasks:
        if not isinstance(task, PlannedTask):
            yield f"{task!r} is no PlannedTask"
        elif not _is_id(task.id):
            yield f"the id {task.id!r} is no printable text of 1 to {MAX_ID_CHARS} characters"
        elif isinstance(task.needs, str):
            yield f"task {task.id!r}: needs is a text; it takes a tuple of ids"


def _is_id(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_ID_CHARS and text.isprintable()


def _need_faults(tasks: Sequence[PlannedTask]) -> Iterator[str]:
    ids = Counter(task.id for task in tasks)
    yield from (f"{count} tasks have the id {id_!r}" for id_, count in ids.items() if count > 1)
    for task in tasks:
        unknown = [repr(need) for need in task.needs if need not in ids]
        if unknown:
            yield f"task {task.id!r} needs {', '.join(unknown)}, not in the plan"


class Planner(Protocol):
    """Turns a goal into a plan."""

    async def plan(self, goal: str, agents: Mapping[str, Agent[Any]]) -> Plan:
        """Plan for the goal, with these agents by name. What it raises ends the pursuit before it starts."""
        ...


class StaticPlanner:
    """The same plan for every goal."""

    def __init__(self, plan: Plan | Sequence[PlannedTask]) -> None:
        self._plan = plan if isinstance(plan, Plan) else Plan(plan)

    async def plan(self, goal: str, agents: Mapping[str, Agent[Any]]) -> Plan:
        return self._plan


Items = Iterable[tuple[str, Any]]


class MapReduce:
    """One task an item, and, with `reduce`, one that needs them all and runs even if some were not accepted.

    items     (task id, input) pairs, or a function of the goal that gives them
    map       the agent of the items' tasks
    reduce    the agent of the last task, "reduce"; None for none
    combine   makes its input from the results

    Raises: PlanInvalid for reduce without combine or the reverse; from `plan`, for items that are no pairs.
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
        self._items = items if callable(items) else tuple(items)
        self._map, self._reduce, self._combine = map, reduce, combine

    async def plan(self, goal: str, agents: Mapping[str, Agent[Any]]) -> Plan:
        items = self._items(goal) if callable(self._items) else self._items
        try:
            tasks = [PlannedTask(task_id, self._map, input) for task_id, input in items]
        except (TypeError, ValueError) as error:
            raise PlanInvalid(f"MapReduce takes items as (task id, input) pairs: {error}") from error
        if not tasks:
            raise PlanInvalid("MapReduce has no items")
        if self._reduce is not None:
            needs = tuple(task.id for task in tasks)
            tasks.append(PlannedTask(REDUCE_TASK, self._reduce, self._combine, needs, after_failures=True))
        return Plan(tasks)
