from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkv.swarm import lifecycle as life
from swarmkv.swarm.lifecycle import (
    Accepted,
    AttemptFailed,
    Commit,
    Committed,
    Dispatch,
    IllegalTransition,
    Judge,
    OutputArrived,
    Rejected,
    Report,
    RollBack,
    RolledBack,
    State,
    WorkerLost,
    advance,
    begin,
)

EVENTS: tuple[life.Event, ...] = (
    OutputArrived(),
    AttemptFailed("no answer", retryable=True),
    AttemptFailed("no such tool", retryable=False),
    WorkerLost("its worker died"),
    Accepted(),
    Rejected("too short"),
    RolledBack(),
    Committed(),
)
# What may follow while an instruction is carried out, by the kind of the instruction: places in EVENTS.
LEGAL: dict[type[life.Instruction], tuple[int, ...]] = {
    Dispatch: (0, 1, 2, 3),
    Judge: (4, 5),
    RollBack: (6,),
    Commit: (7,),
    Report: (),
}


def after(*events: life.Event, attempts: int = 2, losses: int = 2) -> State:
    state, _ = begin(attempts, losses)
    for event in events:
        state, doing = advance(state, event)
        assert doing == state.doing
    return state


def test_a_task_begins_with_its_first_attempt() -> None:
    state, todo = begin(3, 2)
    assert todo == state.doing == Dispatch(1)
    assert (state.max_attempts, state.max_losses, state.losses, state.story) == (3, 2, 0, ())
    assert not state.ended
    assert not state.committed


REJECTED_ONCE = (OutputArrived(), Rejected("too short"), RolledBack())


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((OutputArrived(),), Judge(1)),
        ((OutputArrived(), Accepted()), Commit(1)),
        ((OutputArrived(), Accepted(), Committed()), Report(True)),
        ((OutputArrived(), Rejected("too short")), RollBack(1)),
        (REJECTED_ONCE, Dispatch(2)),
        ((*REJECTED_ONCE, OutputArrived()), Judge(2)),
        ((*REJECTED_ONCE, OutputArrived(), Accepted()), Commit(2)),
        ((AttemptFailed("no answer", retryable=True),), RollBack(1)),
        ((AttemptFailed("no answer", retryable=True), RolledBack()), Dispatch(2)),
        ((AttemptFailed("no such tool", retryable=False),), Report(False, "no such tool")),
        ((WorkerLost("its worker died"),), Dispatch(1)),
        ((*REJECTED_ONCE, WorkerLost("its worker died")), Dispatch(2)),
        (
            (*REJECTED_ONCE, OutputArrived(), Rejected("too long"), RolledBack()),
            Report(False, "not accepted after it was tried 2 times: too long"),
        ),
        (
            (*REJECTED_ONCE, AttemptFailed("no answer", retryable=True), RolledBack()),
            Report(False, "not accepted after it was tried 2 times: no answer"),
        ),
        (
            (WorkerLost("its worker died"), WorkerLost("its worker died")),
            Report(False, "poisonous: 2 times its worker died while it ran"),
        ),
        # A loss counts for the whole task, whichever attempt it hit.
        (
            (WorkerLost("its worker died"), *REJECTED_ONCE, WorkerLost("its worker died")),
            Report(False, "poisonous: 2 times its worker died while it ran"),
        ),
    ],
)
def test_what_follows(events: tuple[life.Event, ...], expected: life.Instruction) -> None:
    assert after(*events).doing == expected


def test_a_single_attempt_is_reported_as_tried_once() -> None:
    assert after(*REJECTED_ONCE, attempts=1).doing == Report(
        False, "not accepted after it was tried once: too short"
    )


def test_only_an_accepted_end_is_committed() -> None:
    accepted = after(OutputArrived(), Accepted(), Committed())
    failed = after(AttemptFailed("no such tool", retryable=False))
    assert (accepted.ended, accepted.committed) == (True, True)
    assert (failed.ended, failed.committed) == (True, False)


STATES = {
    Dispatch: after(),
    Judge: after(OutputArrived()),
    RollBack: after(OutputArrived(), Rejected("too short")),
    Commit: after(OutputArrived(), Accepted()),
}


@pytest.mark.parametrize(
    ("doing", "event"),
    [(doing, event) for doing in STATES for place, event in enumerate(EVENTS) if place not in LEGAL[doing]],
)
def test_an_event_that_cannot_follow_tells_the_story(
    doing: type[life.Instruction], event: life.Event
) -> None:
    state = STATES[doing]
    with pytest.raises(IllegalTransition) as caught:
        advance(state, event)
    assert (caught.value.state, caught.value.event) == (state, event)
    text = str(caught.value)
    assert text.startswith(f"{event} while doing {state.doing}; so far: ")
    assert text.endswith(" ▶ ".join(str(past) for past in state.story) or "nothing")


def test_a_story_holds_every_event_in_order_and_a_state_never_changes() -> None:
    first, _ = begin(2, 2)
    told = (WorkerLost("its worker died"), OutputArrived(), Rejected("too short"), RolledBack())
    state = after(*told)
    assert state.story == told
    assert (state.losses, state.last_reason) == (1, "too short")
    assert first.story == ()


@given(
    attempts=st.integers(1, 5),
    losses=st.integers(1, 4),
    choices=st.lists(st.integers(0, 3), min_size=60, max_size=60),
)
def test_every_life_ends_within_its_bounds(attempts: int, losses: int, choices: list[int]) -> None:
    state, doing = begin(attempts, losses)
    dispatched: list[int] = []
    for choice in choices:
        if isinstance(doing, Dispatch):
            dispatched.append(doing.attempt)
        legal = LEGAL[type(doing)]
        if not legal:
            break
        state, doing = advance(state, EVENTS[legal[choice % len(legal)]])
    assert isinstance(doing, Report), "at most 4 events an attempt and one a loss: fewer than 60"
    assert state.ended
    lost = sum(isinstance(event, WorkerLost) for event in state.story)
    assert lost == state.losses <= losses
    assert max(dispatched) <= attempts
    assert len(dispatched) == len(set(dispatched)) + lost - (lost == losses)
    assert dispatched == sorted(dispatched)
    assert doing.accepted == isinstance(state.story[-1], Committed)
    assert doing.accepted != bool(doing.reason)


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("accepted", [True, False])
def test_an_ended_task_stays_as_it_is(event: life.Event, accepted: bool) -> None:
    ended = (OutputArrived(), Accepted(), Committed()) if accepted else (EVENTS[2],)
    state = after(*ended)
    again, doing = advance(state, event)
    assert again is state
    assert doing == state.doing


@given(
    attempts=st.integers(1, 5),
    losses=st.integers(1, 4),
    events=st.lists(st.sampled_from(EVENTS), max_size=60),
)
def test_no_sequence_of_events_breaks_the_rules(attempts: int, losses: int, events: list[life.Event]) -> None:
    """Events in any order: each is refused or leads on by the rules."""
    state, _ = begin(attempts, losses)
    for event in events:
        before = state
        try:
            state, doing = advance(state, event)
        except IllegalTransition:
            assert event not in [EVENTS[place] for place in LEGAL[type(before.doing)]]
            continue
        if before.ended:
            assert state is before
            continue
        assert state.story == (*before.story, event)
        assert state.losses <= losses
        if isinstance(doing, Dispatch):
            again = isinstance(event, WorkerLost)
            assert again or isinstance(before.doing, RollBack)
            assert doing.attempt == getattr(before.doing, "attempt", 0) + (not again) <= attempts
        assert isinstance(doing, Commit) == (event == Accepted())
        assert state.committed == (event == Committed())
