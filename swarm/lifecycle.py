"""The life of a task, as a pure state machine: an event in, the next state and instruction out.

No I/O, no clock. Waiting for needs and for a free worker is the flow's; a cancelled task just ends there.

begin ─▶ Dispatch ─▶ OutputArrived ─▶ Judge ─▶ Accepted ─▶ Commit ─▶ Committed ─▶ Report(accepted)
            │   ▲                        └───▶ Rejected ─▶ RollBack ─▶ RolledBack ─┐
            │   └──────────────── the next attempt, if there is one ◀──────────────┤
            ├─▶ AttemptFailed (retryable) ─▶ RollBack ─▶ …                         │
            ├─▶ AttemptFailed (final) ─▶ Report(reason)     no attempt left ─▶ Report(reason)
            └─▶ WorkerLost ─▶ Dispatch of the same attempt; too many losses ─▶ Report(reason)
"""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True):
    """Root of events, instructions and the state: values without behaviour."""


# What happened.


class OutputArrived(Value, frozen=True):
    pass


class AttemptFailed(Value, frozen=True):
    """The attempt ended without an output."""

    reason: str
    retryable: bool


class WorkerLost(Value, frozen=True):
    """The process that carried the attempt out is gone; the attempt does not count."""

    reason: str


class Accepted(Value, frozen=True):
    pass


class Rejected(Value, frozen=True):
    reason: str


class RolledBack(Value, frozen=True):
    pass


class Committed(Value, frozen=True):
    pass


Event = OutputArrived | AttemptFailed | WorkerLost | Accepted | Rejected | RolledBack | Committed


# What to do next.


class Dispatch(Value, frozen=True):
    attempt: int


class Judge(Value, frozen=True):
    attempt: int


class RollBack(Value, frozen=True):
    attempt: int


class Commit(Value, frozen=True):
    attempt: int


class Report(Value, frozen=True):
    """The end."""

    accepted: bool
    reason: str = ""


Instruction = Dispatch | Judge | RollBack | Commit | Report


class State(Value, frozen=True):
    """Where a task stands: it waits for the outcome of `doing`."""

    doing: Instruction
    max_attempts: int
    max_losses: int
    losses: int = 0
    last_reason: str = ""
    story: tuple[Event, ...] = ()
    """every event so far; bounded, since attempts and losses are"""

    @property
    def ended(self) -> bool:
        return isinstance(self.doing, Report)

    @property
    def committed(self) -> bool:
        return isinstance(self.doing, Report) and self.doing.accepted


class IllegalTransition(Exception):
    """An event that cannot follow: a bug of the runtime. Carries the task's story."""

    def __init__(self, state: State, event: Event) -> None:
        self.state, self.event = state, event
        story = " ▶ ".join(str(past) for past in state.story) or "nothing"
        super().__init__(f"{event} while doing {state.doing}; so far: {story}")


def begin(max_attempts: int, max_losses: int) -> tuple[State, Instruction]:
    """A new task, ready for its first attempt.

    max_losses: workers that it may lose before it is taken to be what kills them.
    """
    assert max_attempts >= 1
    assert max_losses >= 1
    state = State(Dispatch(1), max_attempts, max_losses)
    return state, state.doing


def advance(state: State, event: Event) -> tuple[State, Instruction]:
    """What follows an event. After its end a task stays as it is, whatever comes.

    Raises: IllegalTransition for an event that cannot answer what the task is doing.
    """
    if state.ended:
        return state, state.doing
    doing = _next(state, event)
    changes: dict[str, object] = {"doing": doing, "story": (*state.story, event)}
    if isinstance(event, WorkerLost):
        changes["losses"] = state.losses + 1
    if isinstance(event, AttemptFailed | Rejected):
        changes["last_reason"] = event.reason
    return msgspec.structs.replace(state, **changes), doing


def _next(state: State, event: Event) -> Instruction:
    match state.doing, event:
        case Dispatch(attempt), OutputArrived():
            return Judge(attempt)
        case Dispatch(attempt), AttemptFailed(reason, retryable):
            return RollBack(attempt) if retryable else Report(False, reason)
        case Dispatch(attempt), WorkerLost(reason):
            if state.losses + 1 >= state.max_losses:
                return Report(False, f"poisonous: {state.max_losses} times {reason} while it ran")
            return Dispatch(attempt)
        case Judge(attempt), Accepted():
            return Commit(attempt)
        case Judge(attempt), Rejected():
            return RollBack(attempt)
        case RollBack(attempt), RolledBack():
            if attempt >= state.max_attempts:
                times = "once" if attempt == 1 else f"{attempt} times"
                return Report(False, f"not accepted after it was tried {times}: {state.last_reason}")
            return Dispatch(attempt + 1)
        case Commit(), Committed():
            return Report(True)
        case _:
            raise IllegalTransition(state, event)
