from __future__ import annotations

from typing import Any

import pytest

from swarmkv.agents import Agent, MapReduce, Plan, PlanInvalid, PlannedTask, StaticPlanner, TaskResult

AGENTS: dict[str, Agent[Any]] = {
    name: Agent(name, "Do it.", output=str) for name in ("reader", "writer", "critic")
}


def task(id_: str, *needs: str, agent: str = "reader") -> PlannedTask:
    return PlannedTask(id_, agent, "input", needs)


def test_a_plan_keeps_its_tasks_in_order() -> None:
    tasks = [task("c", "a", "b"), task("a"), task("b", "a")]
    plan = Plan(iter(tasks))
    assert plan.tasks == tuple(tasks)
    plan.check(AGENTS)


@pytest.mark.parametrize(
    ("tasks", "faults"),
    [
        ([task("a"), task("b"), task("a"), task("a")], ("3 tasks have the id 'a'",)),
        (
            [task("a", "x", "y"), task("b", "z", "a")],
            ("task 'a' needs 'x', 'y', not in the plan", "task 'b' needs 'z', not in the plan"),
        ),
        ([task("")], ("the id '' is no printable text of 1 to 200 characters",)),
        ([task("a\nb")], ("the id 'a\\nb' is no printable text of 1 to 200 characters",)),
        ([task("\ud800")], ("the id '\\ud800' is no printable text of 1 to 200 characters",)),
        ([PlannedTask("b", "reader", 1, "a")], ("task 'b': needs is a text; it takes a tuple of ids",)),
        ([("a", "reader", 1)], ("('a', 'reader', 1) is no PlannedTask",)),
    ],
)
def test_a_plan_that_cannot_work_names_all_its_faults(tasks: list[Any], faults: tuple[str, ...]) -> None:
    with pytest.raises(PlanInvalid) as caught:
        Plan(tasks)
    assert caught.value.faults == faults
    assert str(caught.value) == "; ".join(faults)


@pytest.mark.parametrize("tasks", [[task("a", "a")], [task("a", "c"), task("b", "a"), task("c", "b")]])
def test_a_circle_is_refused_and_drawn(tasks: list[PlannedTask]) -> None:
    with pytest.raises(PlanInvalid, match=r"circle: .*a.* ▶ "):
        Plan(tasks)


def test_unknown_agents_and_an_empty_plan_are_refused() -> None:
    with pytest.raises(PlanInvalid) as caught:
        Plan([task("a", agent="poet"), task("b"), task("c", agent="judge")]).check(AGENTS)
    assert caught.value.faults == (
        "task 'a' is for agent 'poet'; there are reader, writer, critic",
        "task 'c' is for agent 'judge'; there are reader, writer, critic",
    )
    with pytest.raises(PlanInvalid, match="no task"):
        Plan([]).check(AGENTS)


async def test_a_static_planner_gives_its_plan_for_every_goal() -> None:
    plan = Plan([task("a")])
    assert await StaticPlanner(plan).plan("goal", AGENTS) is plan
    assert (await StaticPlanner([task("a")]).plan("goal", AGENTS)).tasks == plan.tasks


async def test_map_reduce_makes_a_task_an_item_and_one_that_needs_them_all() -> None:
    def combine(results: Any) -> list[Any]:
        return [result.value for result in results.values()]

    planner = MapReduce([("a", 1), ("b", 2)], map="reader", reduce="writer", combine=combine)
    plan = await planner.plan("goal", AGENTS)
    plan.check(AGENTS)
    assert plan.tasks[:2] == (PlannedTask("a", "reader", 1), PlannedTask("b", "reader", 2))
    last = plan.tasks[2]
    assert (last.id, last.agent, last.needs, last.after_failures) == ("reduce", "writer", ("a", "b"), True)
    assert last.input({"a": TaskResult(True, "x", ""), "b": TaskResult(False, None, "bad")}) == ["x", None]


async def test_map_reduce_reads_its_items_from_the_goal_and_plans_again_and_again() -> None:
    planner = MapReduce(lambda goal: ((word, word) for word in goal.split()), map="reader")
    assert [task.id for task in (await planner.plan("one two", AGENTS)).tasks] == ["one", "two"]
    drained = MapReduce(iter([("a", 1)]), map="reader")
    for _ in range(2):
        assert [task.id for task in (await drained.plan("goal", AGENTS)).tasks] == ["a"]


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([], "no items"),
        (["abc"], "pairs"),
        ([7], "pairs"),
        ([("a", 1), ("a", 2)], "2 tasks have the id 'a'"),
        ([("reduce", 1)], "2 tasks have the id 'reduce'"),
    ],
)
async def test_map_reduce_refuses_items_that_make_no_plan(items: list[Any], reason: str) -> None:
    planner = MapReduce(items, map="reader", reduce="writer", combine=lambda results: "")
    with pytest.raises(PlanInvalid, match=reason):
        await planner.plan("goal", AGENTS)


def test_reduce_and_combine_come_together() -> None:
    with pytest.raises(PlanInvalid, match="together"):
        MapReduce([("a", 1)], map="reader", reduce="writer")
    with pytest.raises(PlanInvalid, match="together"):
        MapReduce([("a", 1)], map="reader", combine=lambda results: "")
