"""The proof against a lost wake-up: every interleaving of one sleeper and one waker, with store buffers.

Each side is a list of steps on shared words. A store first goes into its processor's buffer (as on x86-64)
and reaches memory later, at any time, in order; a fence empties the buffer. The sleeper is
`RingReader.announce_sleep` and the waker `push` then `doorbell_due`; waiting for room is the same with head
for tail.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest


class State(NamedTuple):
    sleeper: int
    waker: int
    memory: frozenset[str]  # words that were stored
    buffers: tuple[tuple[str, ...], tuple[str, ...]]
    asleep: bool
    rung: bool


def lost_wakeups(sleeper: list[str], waker: list[str]) -> list[State]:
    """The final states in which the sleeper sleeps, the frame is there, and nobody rang."""
    start = State(0, 0, frozenset(), ((), ()), False, False)
    seen, todo, lost = {start}, [start], []
    while todo:
        state = todo.pop()
        following = successors(state, sleeper, waker)
        if not following and state.asleep and "tail" in state.memory and not state.rung:
            lost.append(state)
        todo += following - seen
        seen |= following
    assert len(seen) > 10
    return lost


def successors(state: State, sleeper: list[str], waker: list[str]) -> set[State]:
    found = set()
    for side, (steps, at) in enumerate(((sleeper, state.sleeper), (waker, state.waker))):
        if state.buffers[side]:
            found.add(drain_one(state, side))
        if at < len(steps):
            after = take_step(state, side, steps[at], len(steps))
            if after is not None:
                found.add(after)
    return found


def drain_one(state: State, side: int) -> State:
    word, *rest = state.buffers[side]
    buffers = [*state.buffers]
    buffers[side] = tuple(rest)
    return state._replace(memory=state.memory | {word}, buffers=(buffers[0], buffers[1]))


def take_step(state: State, side: int, step: str, end: int) -> State | None:
    done = state._replace(**{("sleeper", "waker")[side]: (state.sleeper, state.waker)[side] + 1})
    if step.startswith("store "):
        buffers = [*state.buffers]
        buffers[side] = (*buffers[side], step.removeprefix("store "))
        return done._replace(buffers=(buffers[0], buffers[1]))
    if step == "fence":
        return None if state.buffers[side] else done
    word, _, outcome = step.removeprefix("load ").partition(" ")
    there = word in state.memory or word in state.buffers[side]
    if outcome == "sleep-unless":
        return done._replace(asleep=not there)
    return done._replace(rung=there)


ANNOUNCE = ["store asleep", "fence", "load tail sleep-unless"]
PUBLISH = ["store tail", "fence", "load asleep ring-if"]


def without(steps: list[str]) -> list[str]:
    return [step for step in steps if step != "fence"]


def test_announce_then_look_again_loses_no_wakeup() -> None:
    assert lost_wakeups(ANNOUNCE, PUBLISH) == []


@pytest.mark.parametrize(
    ("sleeper", "waker"),
    [
        (without(ANNOUNCE), PUBLISH),
        (ANNOUNCE, without(PUBLISH)),
        ([ANNOUNCE[2], ANNOUNCE[0]], PUBLISH),
        (ANNOUNCE, [PUBLISH[2], PUBLISH[0]]),
    ],
)
def test_each_fence_and_each_order_is_needed(sleeper: list[str], waker: list[str]) -> None:
    assert lost_wakeups(sleeper, waker) != []
