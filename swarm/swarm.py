"""`Swarm`: what an application holds. It starts and ends the processes, and turns calls into tasks of runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ..agents import (
    Agent,
    Backend,
    Plan,
    PlanInvalid,
    PlannedTask,
    Planner,
    TaskResult,
    Usage,
    ensure_portable,
)
from .config import Config
from .errors import SettingInvalid, SwarmClosed
from .fleet import Fleet, ProcessFleet
from .flow import Flow, Task, as_json
from .inline import InlineFleet
from .messages import AuditTaken
from .outcome import Event, Outcome, Pursuit
from .process import MainModule
from .recorder import Recorder
from .stores import Store, open_store

T = TypeVar("T")
OnEvent = Callable[[Event], None]


class Swarm:
    """Workers, an engine and a store, for as long as the `async with` lasts.

    Settings are the fields of `Config`, given as keywords. `backend` is an object that generates text, in place of
    the engine and its model. `main` names the script in which agents are defined, where it is not `__main__`.

    Raises: SettingInvalid at once for a bad setting; StartFailed from `async with`, with nothing left running.
    """

    def __init__(
        self, *, backend: Backend | None = None, main: MainModule | None = None, **settings: Any
    ) -> None:
        self.config = Config.read(settings)
        self._backend, self._main = backend, main
        self._fleet: Fleet | None = None
        self._store: Store | None = None
        self._recorder: Recorder | None = None
        self._runs: set[_PlanRun] = set()

    async def __aenter__(self) -> Self:
        if self._fleet is not None:
            raise SwarmClosed
        fleet: Fleet
        if self.config.isolation == "inline":
            fleet = InlineFleet(self.config, self._backend)
        else:
            fleet = ProcessFleet(self.config, self._backend, self._main)
        self._store = await open_store(self.config.store)
        try:
            await fleet.start()
        except BaseException:
            await self._close_store()
            raise
        self._fleet, self._recorder = fleet, Recorder(self._store)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fleet, self._fleet = self._fleet, None
        try:
            if fleet is not None:
                await asyncio.shield(self._end(fleet))
        finally:
            await self._close_store()

    async def run(self, agent: Agent[T], input: Any, *, on_event: OnEvent | None = None) -> Outcome[T]:
        """One task. A rejected task is an outcome, not an exception: see `Outcome.require`.

        Raises: NotPortable for an input that would not arrive unchanged, AgentNotImportable; nothing ran then.
        """
        return (await self.map(agent, [input], on_event=on_event))[0]

    async def map(
        self, agent: Agent[T], inputs: Iterable[Any], *, on_event: OnEvent | None = None
    ) -> list[Outcome[T]]:
        """One task an input, as many at a time as there are slots; outcomes in the order of the inputs.

        Raises: as `run`, before any task starts.
        """
        tasks = [PlannedTask(str(number), agent.name, input) for number, input in enumerate(inputs, 1)]
        if not tasks:
            self._open_fleet()
            return []
        pursuit = await self._carry_out_plan(f"map {agent.name}", Plan(tasks), {agent.name: agent}, on_event)
        return list(pursuit.tasks.values())

    async def pursue(
        self,
        goal: str,
        *,
        planner: Planner,
        agents: Sequence[Agent[Any]],
        on_event: OnEvent | None = None,
    ) -> Pursuit:
        """Have a planner turn a goal into tasks, and carry them out as their needs allow.

        Raises: PlanInvalid, NotPortable, AgentNotImportable; nothing ran then.
        """
        by_name = {agent.name: agent for agent in agents}
        if len(by_name) != len(agents):
            raise SettingInvalid("agents", [agent.name for agent in agents], "agents of different names")
        plan = await planner.plan(goal, by_name)
        return await self._carry_out_plan(goal, plan, by_name, on_event)

    async def stream(self, agent: Agent[Any], input: Any) -> AsyncIterator[Event]:
        """One task as events: pieces of text (not verified), rejections, and at last its outcome.

        Leaving the iteration cancels the task.
        """
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        running = asyncio.ensure_future(
            self._carry_out_plan(
                f"stream {agent.name}",
                Plan([PlannedTask("1", agent.name, input)]),
                {agent.name: agent},
                events.put_nowait,
                stream=True,
            )
        )
        running.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def audit(self) -> AuditTaken | None:
        """The KV pool's books: free + held + cached = total; None where the backend has no pool."""
        return await self._open_fleet().audit()

    @property
    def store(self) -> Store:
        """The store of the runs. Raises: SwarmClosed."""
        if self._store is None:
            raise SwarmClosed
        return self._store

    def pids(self) -> dict[str, int]:
        """Numbers of the swarm's processes by name; empty in inline mode."""
        fleet = self._open_fleet()
        return fleet.pids() if isinstance(fleet, ProcessFleet) else {}

    async def _carry_out_plan(
        self,
        goal: str,
        plan: Plan,
        agents: Mapping[str, Agent[Any]],
        on_event: OnEvent | None,
        *,
        stream: bool = False,
    ) -> Pursuit:
        fleet = self._open_fleet()
        recorder = self._recorder
        assert recorder is not None
        if not isinstance(plan, Plan):
            raise PlanInvalid(f"the planner gave a {type(plan).__name__}, not a Plan")
        plan.check(agents)
        for name in {task.agent for task in plan.tasks}:
            fleet.ensure_found(agents[name].reference())
        for planned in plan.tasks:
            if not callable(planned.input):
                ensure_portable(planned.input)
        run_id = secrets.token_hex(8)
        flow = Flow(
            run_id,
            fleet,
            recorder,
            max_losses=self.config.max_losses,
            seed=self.config.seed,
            stream=stream,
            on_event=on_event,
        )
        run = _PlanRun(flow, plan, agents, recorder, fleet.slots)
        self._runs.add(run)
        try:
            await recorder.started(run_id, goal, tuple(task.id for task in plan.tasks))
            outcomes = await run.carry_out()
            committed = sum(outcome.accepted for outcome in outcomes.values())
            await recorder.ended(run_id, committed, len(outcomes) - committed)
        finally:
            recorder.forget(run_id)
            self._runs.discard(run)
            run.ended.set_result(None)
        return Pursuit(
            goal=goal,
            run_id=run_id,
            trace_id=flow.trace_id,
            tasks={task.id: outcomes[task.id] for task in plan.tasks},
            usage=sum((outcome.usage for outcome in outcomes.values()), Usage()),
        )

    async def _end(self, fleet: Fleet) -> None:
        """Fail what still runs, so that nothing of it is left in the processes; then end them."""
        for run in self._runs:
            run.close()
        if self._runs:
            await asyncio.wait([run.ended for run in self._runs], timeout=self.config.stop_grace_s)
        await fleet.stop()

    def _open_fleet(self) -> Fleet:
        if self._fleet is None:
            raise SwarmClosed
        return self._fleet

    async def _close_store(self) -> None:
        store, self._store, self._recorder = self._store, None, None
        if store is not None and store is not self.config.store:
            await store.close()


class _PlanRun:
    """Carries out a plan: each task once its needs have ended, a bounded number at a time, in the plan's order."""

    def __init__(
        self, flow: Flow, plan: Plan, agents: Mapping[str, Agent[Any]], recorder: Recorder, slots: int
    ) -> None:
        self._flow, self._plan, self._agents, self._recorder = flow, plan, agents, recorder
        self._limit = slots + 1
        """tasks in flight: one more than the slots, so that a slot that becomes free is taken at once"""
        self._outcomes: dict[str, Outcome[Any]] = {}
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """done when nothing of it is left"""

    def close(self) -> None:
        """Its swarm closes: `carry_out` raises SwarmClosed. Idempotent."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def carry_out(self) -> dict[str, Outcome[Any]]:
        """Outcomes by task id, in the order in which the tasks ended. Raises: SwarmClosed."""
        waiting = {task.id: task for task in self._plan.tasks}
        running: dict[asyncio.Task[Outcome[Any]], str] = {}
        try:
            while waiting or running:
                for task in self._startable(waiting, self._limit - len(running)):
                    del waiting[task.id]
                    work = asyncio.ensure_future(self._carry_out_task(task))
                    running[work] = task.id
                waits: list[asyncio.Future[Any]] = [*running, self._closed]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if self._closed.done():
                    raise SwarmClosed
                for work in [work for work in running if work.done()]:
                    self._outcomes[running.pop(work)] = work.result()
        finally:
            for work in running:
                work.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return self._outcomes

    def _startable(self, waiting: Mapping[str, PlannedTask], room: int) -> list[PlannedTask]:
        ready: list[PlannedTask] = []
        for task in waiting.values():
            if len(ready) >= room:
                break
            if all(need in self._outcomes for need in task.needs):
                ready.append(task)
        return ready

    async def _carry_out_task(self, planned: PlannedTask) -> Outcome[Any]:
        needs = {need: self._outcomes[need] for need in planned.needs}
        missing = [need for need, outcome in needs.items() if not outcome.accepted]
        if missing and not planned.after_failures:
            return await self._failed(planned, f"it needs {', '.join(missing)}, which was not accepted")
        input = planned.input
        if callable(input):
            results = {
                need: TaskResult(outcome.accepted, outcome.value, outcome.reason)
                for need, outcome in needs.items()
            }
            try:
                input = input(results)
                ensure_portable(input)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the planner's code: its task fails
                return await self._failed(planned, f"making its input: {type(error).__name__}: {error}")
        values = {need: as_json(outcome.value) for need, outcome in needs.items() if outcome.accepted}
        task = Task(planned.id, self._agents[planned.agent], input, values)
        outcome = await self._flow.carry_out(task)
        if not outcome.accepted:
            await self._recorder.failed(outcome.run_id, outcome.task, outcome.reason)
        return outcome

    async def _failed(self, planned: PlannedTask, reason: str) -> Outcome[Any]:
        outcome = self._flow.not_started(planned.id, planned.agent, reason)
        await self._recorder.failed(outcome.run_id, outcome.task, reason)
        return outcome
