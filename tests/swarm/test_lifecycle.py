from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkv.swarm import lifecycle as life

EVENTS = [
    life.OutputArrived(),
    life.AttemptFailed("no memory", True),
    life.AttemptFailed("no such tool", False),
    life.WorkerLost("its worker died"),
    life.Accepted(),
    life.Rejected("too short"),
    life.RolledBack(),
    life.Committed(),
]
events = st.lists(st.sampled_from(EVENTS), max_size=60)
limits = st.tuples(st.integers(1, 5), st.integers(1, 4))


def drive(max_attempts: int, max_losses: int, *happened: life.Event) -> tuple[life.State, life.Instruction]:
    state, todo = life.begin(max_attempts, max_losses)
    for event in happened:
        state, todo = life.advance(state, event)
    return state, todo


REJECTED = (life.OutputArrived(), life.Rejected("too short"), life.RolledBack())


def test_an_accepted_output_is_committed_and_reported() -> None:
    state, todo = life.begin(3, 3)
    assert todo == life.Dispatch(1)
    for event, follows in [
        (life.OutputArrived(), life.Judge(1)),
        (life.Accepted(), life.Commit(1)),
        (life.Committed(), life.Report(True)),
    ]:
        state, todo = life.advance(state, event)
        assert todo == follows == state.doing
    assert state.ended
    assert state.committed
    assert state.story == (life.OutputArrived(), life.Accepted(), life.Committed())


def test_a_rejected_output_is_rolled_back_before_the_next_attempt() -> None:
    assert drive(2, 3, *REJECTED[:2])[1] == life.RollBack(1)
    assert drive(2, 3, *REJECTED)[1] == life.Dispatch(2)


def test_the_last_rejection_fails_the_task() -> None:
    state, todo = drive(2, 3, *REJECTED, *REJECTED)
    assert todo == life.Report(False, "not accepted after it was tried 2 times: too short")
    assert not state.committed


def test_a_retryable_failure_uses_up_an_attempt() -> None:
    failed = (life.AttemptFailed("no memory", True), life.RolledBack())
    assert drive(2, 3, *failed)[1] == life.Dispatch(2)
    assert drive(1, 3, *failed)[1] == life.Report(False, "not accepted after it was tried once: no memory")


def test_a_final_failure_ends_the_task() -> None:
    assert drive(3, 3, life.AttemptFailed("no such tool", False))[1] == life.Report(False, "no such tool")


def test_a_lost_worker_uses_up_no_attempt_but_too_many_are_poison() -> None:
    lost = life.WorkerLost("its worker died")
    assert drive(1, 3, lost, lost)[1] == life.Dispatch(1)
    todo = drive(1, 3, lost, lost, lost)[1]
    assert isinstance(todo, life.Report)
    assert not todo.accepted
    assert "poisonous" in todo.reason
    assert "its worker died" in todo.reason


def test_losses_count_over_all_attempts() -> None:
    lost = life.WorkerLost("its worker died")
    assert isinstance(drive(5, 2, lost, *REJECTED, lost)[1], life.Report)


def test_an_event_that_cannot_follow_tells_the_story() -> None:
    state, _ = drive(3, 3, *REJECTED)
    with pytest.raises(life.IllegalTransition) as caught:
        life.advance(state, life.Committed())
    assert caught.value.state == state
    assert caught.value.event == life.Committed()
    for told in ("Dispatch(attempt=2)", "OutputArrived()", "too short", "RolledBack()"):
        assert told in str(caught.value)


@given(limits, events)
def test_no_sequence_of_events_breaks_the_rules(limits: tuple[int, int], happening: list[life.Event]) -> None:
    max_attempts, max_losses = limits
    state, todo = life.begin(max_attempts, max_losses)
    for event in happening:
        before = state
        try:
            state, todo = life.advance(state, event)
        except life.IllegalTransition:
            assert not before.ended
            continue
        assert state.doing == todo
        assert isinstance(todo, get_args(life.Instruction))
        assert 0 <= state.losses <= max_losses
        assert getattr(todo, "attempt", 1) <= max_attempts
        check_step(before, event, state)


def check_step(before: life.State, event: life.Event, after: life.State) -> None:
    if before.ended:
        assert after is before
        return
    assert after.story == (*before.story, event)
    if isinstance(after.doing, life.Dispatch):
        again = isinstance(event, life.WorkerLost)
        assert again or isinstance(before.doing, life.RollBack)
        assert after.doing.attempt == getattr(before.doing, "attempt", 0) + (not again)
    if isinstance(after.doing, life.Commit):
        assert event == life.Accepted()
    assert after.committed == (event == life.Committed())


@given(limits, st.data())
def test_whatever_happens_a_task_ends(limits: tuple[int, int], data: st.DataObject) -> None:
    max_attempts, max_losses = limits
    state, _ = life.begin(max_attempts, max_losses)
    while not state.ended:
        state, _ = life.advance(state, data.draw(st.sampled_from(answers(state.doing))))
        assert len(state.story) <= 3 * max_attempts + max_losses


def answers(doing: life.Instruction) -> list[life.Event]:
    match doing:
        case life.Dispatch():
            return EVENTS[:4]
        case life.Judge():
            return EVENTS[4:6]
        case life.RollBack():
            return [life.RolledBack()]
        case _:
            return [life.Committed()]
