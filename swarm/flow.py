"""The flow, on one page: how tasks become outcomes.

    goal ─▶ plan ─▶ per task: dispatch ─▶ attempt on a worker ─▶ gate ─▶ commit ─▶ outcome
                                 ▲                              │ reject: roll back, append the feedback
                                 └──────────────────────────────┘

`lifecycle` decides what happens next (pure); this module makes it happen: each instruction is one method here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..agents import Agent, AttemptKey, Context, Usage
from ..verify import Reject, Verdict
from . import lifecycle as life
from .errors import EngineBroken
from .fabric import FrameTooLarge, MessageInvalid
from .fleet import Fleet, Slot
from .messages import AttemptFailed, Dispatch, Output
from .outcome import Attempt, Event, EventKind, Outcome
from .recorder import Recorder
from .sending import why_unsendable
from .worker_process import WorkerLost

SHOWN_CHARS = 160
"""of a committed value in an event"""


def as_json(value: Any) -> str:
    """An accepted value without what the model wrapped it into; its gate takes it again."""
    return msgspec.json.encode(value).decode()


class Task(msgspec.Struct, frozen=True):
    """One unit of work: an agent, its input, and the values of the tasks that it needs, as JSON."""

    id: str
    agent: Agent[Any]
    input: Any
    results: Mapping[str, Any]


class Flow:
    """Carries out the tasks of one run."""

    def __init__(
        self,
        run_id: str,
        fleet: Fleet,
        recorder: Recorder,
        *,
        max_losses: int,
        seed: int = 0,
        stream: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.trace_id = hashlib.blake2b(run_id.encode(), digest_size=16).hexdigest()
        self._fleet, self._recorder = fleet, recorder
        self._max_losses, self._seed = max_losses, seed
        self._stream, self._on_event = stream, on_event

    async def carry_out(self, task: Task) -> Outcome[Any]:
        """One task from its dispatch to its outcome. Cancelled, nothing of it is left on worker or engine."""
        progress = _Progress(task)
        state, todo = life.begin(task.agent.attempts, self._max_losses)
        try:
            while not isinstance(todo, life.Report):
                event = await self._perform(todo, progress)
                state, todo = life.advance(state, event)
        finally:
            if progress.slot is not None:
                self._fleet.release(progress.slot)
            if not state.committed:
                await asyncio.shield(self._fleet.forget(self.run_id, task.id))
        return self._report(progress, todo)

    def not_started(self, task_id: str, agent: str, reason: str) -> Outcome[Any]:
        """The outcome of a task that could not begin."""
        outcome: Outcome[Any] = Outcome(
            task=task_id,
            agent=agent,
            accepted=False,
            value=None,
            reason=reason,
            attempts=(),
            usage=Usage(),
            run_id=self.run_id,
            trace_id=self.trace_id,
        )
        if self._on_event is not None:
            self._on_event(Event("failed", task_id, 0, reason[:SHOWN_CHARS], outcome))
        return outcome

    async def _perform(self, todo: life.Instruction, progress: _Progress) -> life.Event:
        match todo:
            case life.Dispatch(attempt):
                return await self._dispatch(progress, attempt)
            case life.Judge():
                return await self._judge(progress)
            case life.RollBack(attempt):
                return await self._roll_back(progress, attempt)
            case life.Commit(attempt):
                return await self._commit(progress, attempt)
            case _:
                raise AssertionError(f"no method for {todo}")

    async def _dispatch(self, progress: _Progress, attempt: int) -> life.Event:
        """Give the attempt to a worker and wait for what it writes. A retry stays where its branch is."""
        task = progress.task
        progress.begin(attempt)
        if progress.slot is None:
            try:
                progress.slot = await self._fleet.take()
            except EngineBroken as error:
                return life.AttemptFailed(str(error), retryable=False)
        self._emit("dispatched", task, attempt, f"worker {progress.slot.worker}")
        dispatch = Dispatch(
            key=AttemptKey(self.run_id, task.id, attempt),
            agent=task.agent.reference(),
            input=msgspec.Raw(msgspec.msgpack.encode(task.input)),
            results=msgspec.Raw(msgspec.msgpack.encode(task.results)),
            feedback=tuple(progress.feedback),
            stream=self._stream,
            seed=self._seed,
        )
        try:
            answer = await progress.slot.attempt(
                dispatch, lambda piece: self._emit("text", task, attempt, piece)
            )
        except WorkerLost:
            return await self._lost(progress, attempt, "its worker died")
        except (FrameTooLarge, MessageInvalid) as error:
            return life.AttemptFailed(why_unsendable("the input", error), retryable=False)
        if isinstance(answer, AttemptFailed):
            if answer.kind == "BackendLost":
                return await self._lost(progress, attempt, "the engine died")
            progress.fail(answer)
            self._emit("rejected", task, attempt, answer.message)
            return life.AttemptFailed(answer.message, retryable=answer.retryable)
        progress.output = answer
        return life.OutputArrived()

    async def _lost(self, progress: _Progress, attempt: int, reason: str) -> life.Event:
        """The attempt is gone with its process: free its slot and branch, and begin it anew elsewhere."""
        self._emit("lost", progress.task, attempt, reason)
        if progress.slot is not None:
            self._fleet.release(progress.slot)
            progress.slot = None
        await self._fleet.forget(self.run_id, progress.task.id)
        return life.WorkerLost(reason)

    async def _judge(self, progress: _Progress) -> life.Event:
        """Hold the output against the agent's gate, in this process."""
        task, output = progress.task, progress.output
        assert output is not None
        ctx = Context(
            input=task.input,
            run_id=self.run_id,
            task_id=task.id,
            agent=task.agent.name,
            attempt=output.key.attempt,
            results=task.results,
        )
        verdict = await task.agent.gate.judge(output.text, ctx)
        if not verdict.accepted and output.finish == "length":
            cut = Reject(f"the answer was cut off after {output.usage.decoded_tokens} tokens; write less")
            verdict = Verdict(accepted=False, reasons=(cut, *verdict.reasons))
        if verdict.accepted:
            progress.judged(verdict)
            return life.Accepted()
        verdict, feedback = _phrased(task.agent, verdict, ctx)
        progress.judged(verdict)
        progress.feedback.append(feedback)
        reason = "; ".join(reason.sentence() for reason in verdict.reasons)
        self._emit("rejected", task, output.key.attempt, reason)
        return life.Rejected(reason)

    async def _roll_back(self, progress: _Progress, attempt: int) -> life.Event:
        """Take the attempt's tokens back out of the cache; the retry begins at the checkpoint."""
        key = AttemptKey(self.run_id, progress.task.id, attempt)
        progress.add_usage(await self._fleet.settle(key, accepted=False))
        return life.RolledBack()

    async def _commit(self, progress: _Progress, attempt: int) -> life.Event:
        """Make the value durable, then give up the pages that only served to reach it."""
        task = progress.task
        assert progress.output is not None
        await self._recorder.committed(self.run_id, task.id, attempt, as_json(progress.value))
        key = AttemptKey(self.run_id, task.id, attempt)
        progress.add_usage(await self._fleet.settle(key, accepted=True))
        return life.Committed()

    def _report(self, progress: _Progress, report: life.Report) -> Outcome[Any]:
        task = progress.task
        outcome: Outcome[Any] = Outcome(
            task=task.id,
            agent=task.agent.name,
            accepted=report.accepted,
            value=progress.value if report.accepted else None,
            reason=report.reason,
            attempts=tuple(progress.attempts),
            usage=sum((attempt.usage for attempt in progress.attempts), Usage()),
            run_id=self.run_id,
            trace_id=self.trace_id,
        )
        kind: EventKind = "committed" if report.accepted else "failed"
        shown = progress.attempts[-1].text if report.accepted else report.reason
        self._emit(kind, task, len(progress.attempts), shown[:SHOWN_CHARS], outcome)
        return outcome

    def _emit(
        self, kind: EventKind, task: Task, attempt: int, text: str, outcome: Outcome[Any] | None = None
    ) -> None:
        if self._on_event is not None:
            self._on_event(Event(kind, task.id, attempt, text, outcome))


def _phrased(agent: Agent[Any], verdict: Verdict[Any], ctx: Context) -> tuple[Verdict[Any], str]:
    """A rejection and what the model is told of it; an agent's own function that fails is one more reason."""
    if agent.feedback is None:
        return verdict, verdict.feedback()
    try:
        return verdict, str(agent.feedback(verdict, ctx))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        fault = Reject(f"The agent's feedback function failed with {type(error).__name__}: {error}")
        return Verdict(accepted=False, reasons=(*verdict.reasons, fault)), verdict.feedback()


class _Progress:
    """What a task has gathered on its way."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.slot: Slot | None = None
        self.output: Output | None = None
        self.value: Any = None
        self.feedback: list[str] = []
        self.attempts: list[Attempt] = []

    def begin(self, number: int) -> None:
        """An attempt begins; one that was lost with its worker begins again under its number."""
        self.output = None
        if not self.attempts or self.attempts[-1].number != number:
            self.attempts.append(Attempt(number, "", None, "", Usage()))

    def judged(self, verdict: Verdict[Any]) -> None:
        assert self.output is not None
        self._change(text=self.output.text, verdict=verdict)
        self.add_usage(self.output.usage)
        self.value = verdict.value

    def fail(self, failed: AttemptFailed) -> None:
        self._change(error=failed.message)
        self.add_usage(failed.usage)

    def add_usage(self, usage: Usage) -> None:
        self._change(usage=self.attempts[-1].usage + usage)

    def _change(self, **fields: Any) -> None:
        self.attempts[-1] = msgspec.structs.replace(self.attempts[-1], **fields)
