"""What a caller gets back: outcomes of tasks, and events while they run."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from ..agents import Usage
from ..verify import Verdict
from .errors import TaskFailed

T = TypeVar("T")


class Attempt(msgspec.Struct, frozen=True):
    """One try of a task."""

    number: int
    text: str
    """what the model wrote; empty if the attempt failed before it wrote anything"""
    verdict: Verdict[Any] | None
    """what the gate said; None if there was nothing to judge"""
    error: str
    """why there was nothing to judge; empty otherwise"""
    usage: Usage


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """How a task ended."""

    task: str
    agent: str
    accepted: bool
    value: T | None
    """the accepted output; None if there is none"""
    reason: str
    """why it was not accepted; empty if it was"""
    attempts: tuple[Attempt, ...]
    usage: Usage
    """of all attempts together"""
    run_id: str
    trace_id: str

    def require(self) -> T:
        """The value. Raises: TaskFailed if the task was not accepted."""
        if not self.accepted:
            raise TaskFailed(self.task, self.reason)
        return self.value  # type: ignore[return-value]


class Pursuit(msgspec.Struct, frozen=True):
    """How a plan ended: the outcome of each of its tasks, in the plan's order."""

    goal: str
    run_id: str
    trace_id: str
    tasks: dict[str, Outcome[Any]]
    usage: Usage

    @property
    def accepted(self) -> bool:
        """Whether every task was."""
        return all(outcome.accepted for outcome in self.tasks.values())


EventKind = Literal["dispatched", "text", "rejected", "lost", "committed", "failed"]


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a task.

    kind: dispatched (an attempt began on a worker), text (a piece of the model's text, not verified),
    rejected (by the gate, or the attempt failed), lost (the worker died), committed, failed.
    """

    kind: EventKind
    task: str
    attempt: int
    text: str = ""
    """the piece of text, the reason, or a short form of what was committed"""
    outcome: Outcome[Any] | None = None
    """with committed and failed"""
