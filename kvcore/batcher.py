"""Continuous batching: many sequences share each forward pass, and join and leave between passes.

A sequence first feeds its prompt, in chunks, then decodes. Each step takes the waiting tokens of every decoding
sequence and fills a token budget with prompt chunks, the sequences taking turns: a long prompt delays the others
by one chunk at most. A sequence begins when its partition has room for all of it beside those that have begun
there, or alone: it evicts for its own length only, and what it sees does not depend on its neighbours.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import torch

from .branch import Branch
from .errors import ConstraintFailed, KVCoreError, PoolExhausted, SettingInvalid
from .partition import Partition
from .runner import Runner
from .sampling import Sampler, SamplingSettings, apply_bitmask
from .step import Work


class Constraint(Protocol):
    """What may follow in one sequence. Implemented outside: kvcore knows no grammar."""

    @property
    def finished(self) -> bool:
        """Nothing may follow."""
        ...

    def mask(self) -> Any:
        """int32[ceil(vocabulary / 32)], bit set = allowed next. Raises: ConstraintFailed."""
        ...

    def accept(self, token: int) -> None:
        """The token was chosen. Raises: ConstraintFailed."""
        ...

    def forced(self) -> list[int]:
        """Tokens that must follow now whatever the model says; empty if there is a choice."""
        ...


class Finish(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Request:
    """One sequence of the batch: feed `prompt` into `branch`, then decode until a stop token or a limit.

    A chosen stop token is neither kept in `produced` nor added to the branch. The callbacks run in the thread
    that calls `Batcher.step`; `on_prefilled` runs once the whole prompt is in the branch and may put a fork in
    the branch's place.
    """

    def __init__(
        self,
        branch: Branch,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        stop_ids: frozenset[int],
        sampling: SamplingSettings = SamplingSettings(),
        constraint: Constraint | None = None,
        on_prefilled: Callable[[Request], None] | None = None,
        on_tokens: Callable[[Request, list[int]], None] | None = None,
        on_finish: Callable[[Request], None] | None = None,
    ) -> None:
        if not prompt:
            raise SettingInvalid("prompt", prompt, "one token or more: there must be a query to decode from")
        if max_tokens < 1:
            raise SettingInvalid("max_tokens", max_tokens, "1 or more")
        self.branch = branch
        self.waiting: list[int] = list(prompt)
        """tokens that are not in the branch yet: the rest of the prompt, later what was chosen last"""
        self.max_tokens, self.stop_ids = max_tokens, stop_ids
        self.sampler, self.constraint = Sampler(sampling), constraint
        self.on_prefilled, self.on_tokens, self.on_finish = on_prefilled, on_tokens, on_finish
        self.prefilled_tokens = 0
        self.evicted_pages = 0
        self.produced: list[int] = []
        self.admitted = False
        """may take pages"""
        self.decoding = False
        self.finish: Finish | None = None
        self.error: KVCoreError | None = None


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one step takes."""

    sequences: int = 32
    """sequences in one forward pass"""
    prefill_tokens: int = 512
    """prompt tokens of a step in which nothing decodes"""
    mixed_prefill_tokens: int = 256
    """prompt tokens of a step that others wait in to decode"""
    room_wait_s: float = 10.0
    """how long requests of a full partition wait, none of them running, for pages that are held between requests"""


def plan_step(requests: Sequence[Request], limits: BatchLimits) -> list[tuple[Request, int]]:
    """Which sequences run in the next step and with how many of their waiting tokens. Changes nothing."""
    decoding = [request for request in requests if request.decoding][: limits.sequences]
    plan = [(request, len(request.waiting)) for request in decoding]
    budget = limits.mixed_prefill_tokens if decoding else limits.prefill_tokens
    for request in requests:
        if len(plan) == limits.sequences or budget <= 0:
            break
        if not request.decoding:
            taken = min(budget, len(request.waiting), _largest_chunk(request.branch))
            plan.append((request, taken))
            budget -= taken
    return plan


def _largest_chunk(branch: Branch) -> int:
    """Tokens that a partition can make room for: half of what is not protected in a branch that fills it."""
    partition = branch.partition
    protected = partition.protection.sink_pages + partition.protection.recent_pages
    pages = max((partition.quota_pages - protected) // 2, 1)
    return pages * partition.pool.config.page_size


def _must_wait(branch: Branch, n_tokens: int, work: Sequence[Work]) -> bool:
    """Whether room for the tokens might be made by evicting pages of this step, which are not written yet."""
    partition = branch.partition
    if not any(w.n_tokens > 1 and w.branch.partition is partition for w in work):
        return False
    short = branch.pages_short(n_tokens)
    return any(partition.room(group) < short for group in range(len(branch.tables)))


def _pages_to_come(request: Request) -> int:
    """Pages of each layer group that a request may still take; of a long answer the partition's share counts."""
    partition = request.branch.partition
    share = partition.answer_pages * partition.pool.config.page_size
    answer = min(request.max_tokens - len(request.produced), share)
    return (
        request.branch.pages_short(len(request.waiting) + answer) + 1
    )  # one for the tail that a fork copies


class Batcher:
    """The requests in flight. All methods are called from one thread."""

    def __init__(self, runner: Runner, *, limits: BatchLimits = BatchLimits()) -> None:
        self.runner, self.limits = runner, limits
        self._requests: list[Request] = []
        self._stuck_since: dict[Partition, float] = {}
        """partitions in which every request waits for room"""

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def cancel(self, request: Request) -> None:
        """End a request between steps; its branch is left as the last step made it. Idempotent."""
        if request.finish is None:
            self._end(request, Finish.CANCELLED)

    def cancel_all(self) -> None:
        """End every request."""
        for request in list(self._requests):
            self.cancel(request)

    @torch.inference_mode()
    def step(self) -> bool:
        """Run one forward pass. False if there was nothing to run: no request, or none that has room.

        A request that fails (too long, a constraint in error, no room even alone) ends with its error; the others go
        on. One that could only have room at the cost of another one's new pages waits for the next step.
        """
        work: list[tuple[Request, Work]] = []
        no_room: dict[Request, PoolExhausted] = {}
        before = len(self._requests)
        for request, n_tokens in plan_step(self._admitted(), self.limits):
            if _must_wait(request.branch, n_tokens, [w for _, w in work]):
                continue
            tokens = request.waiting[:n_tokens]
            try:
                self.runner.require_positions(request.branch.length + n_tokens)
                request.evicted_pages += request.branch.extend(tokens)
            except PoolExhausted as error:
                no_room[request] = error
                continue
            except KVCoreError as error:
                self._fail(request, error)
                continue
            del request.waiting[:n_tokens]
            work.append((request, Work(request.branch, n_tokens)))
        self._end_vain_waits(no_room, {w.branch.partition for _, w in work})
        if not work:
            return 0 < len(self._requests) < before
        logits = self.runner.run([w for _, w in work])
        for row, (request, w) in enumerate(work):
            try:
                self._advance(request, w.n_tokens, logits[row])
            except KVCoreError as error:
                self._fail(request, error)
        return True

    def _admitted(self) -> list[Request]:
        """The requests that may take pages: in each partition the first ones in turn that fit beside each other."""
        ready: list[Request] = []
        to_come: dict[Partition, int] = {}
        for request in self._requests:
            if request.admitted:
                partition = request.branch.partition
                to_come[partition] = to_come.get(partition, 0) + _pages_to_come(request)
        full: set[Partition] = set()
        for request in self._requests:
            partition = request.branch.partition
            if not request.admitted and partition not in full:
                needed = to_come.get(partition, 0) + _pages_to_come(request)
                groups = range(len(request.branch.tables))
                request.admitted = partition not in to_come or all(
                    needed <= partition.room(group) for group in groups
                )
                if request.admitted:
                    to_come[partition] = needed
                else:
                    full.add(partition)
            if request.admitted:
                ready.append(request)
        return ready

    def _end_vain_waits(self, no_room: dict[Request, PoolExhausted], running: set[Partition]) -> None:
        """In a partition where all wait, fail the last in turn: at once if they wait for each other only, after
        `room_wait_s` if pages are held between requests (while an output is judged, or a tool runs)."""
        stuck: dict[Partition, list[Request]] = {}
        for request in no_room:
            if request.branch.partition not in running:
                stuck.setdefault(request.branch.partition, []).append(request)
        now = time.monotonic()
        self._stuck_since = {partition: self._stuck_since.get(partition, now) for partition in stuck}
        for partition, requests in stuck.items():
            others = partition.holders() - {request.branch.root for request in requests}
            if not others or now - self._stuck_since[partition] >= self.limits.room_wait_s:
                del self._stuck_since[partition]
                self._fail(requests[-1], no_room[requests[-1]])

    def _advance(self, request: Request, n_tokens: int, logits: torch.Tensor) -> None:
        if not request.decoding:
            request.prefilled_tokens += n_tokens
            if request.waiting:
                # Turns: whoever got a chunk stands behind the others.
                self._requests.remove(request)
                self._requests.append(request)
                return
            request.decoding = True
            if request.on_prefilled is not None:
                request.on_prefilled(request)
        constraint = request.constraint
        chosen: list[int] = []
        if constraint is None or not constraint.finished:
            chosen = self._choose(request, logits)
        request.produced.extend(chosen)
        if chosen and request.on_tokens is not None:
            request.on_tokens(request, chosen)
        if not chosen or (constraint is not None and constraint.finished):
            self._end(request, Finish.STOP)
        elif len(request.produced) >= request.max_tokens:
            self._end(request, Finish.LENGTH)
        else:
            request.waiting = chosen

    def _choose(self, request: Request, logits: torch.Tensor) -> list[int]:
        """The next token and whatever must follow it; empty if the sequence stops."""
        constraint = request.constraint
        if constraint is not None:
            forced = self._forced(request, constraint, [])
            if forced:
                return forced
            mask = constraint.mask()
            if not mask.any():
                raise ConstraintFailed("the constraint is not finished, yet allows no token")
            apply_bitmask(logits, mask)
        token = request.sampler.choose(logits)
        if token in request.stop_ids:
            return []
        if constraint is None:
            return [token]
        constraint.accept(token)
        return self._forced(request, constraint, [token])

    @staticmethod
    def _forced(request: Request, constraint: Constraint, chosen: list[int]) -> list[int]:
        """Add forced tokens to the chosen ones, within the request's limit."""
        room = request.max_tokens - len(request.produced) - len(chosen)
        if constraint.finished or room <= 0:
            return chosen
        for token in constraint.forced()[:room]:
            constraint.accept(token)
            chosen.append(token)
        return chosen

    def _fail(self, request: Request, error: KVCoreError) -> None:
        request.error = error
        self._end(request, Finish.FAILED)

    def _end(self, request: Request, finish: Finish) -> None:
        request.finish = finish
        if request in self._requests:
            self._requests.remove(request)
        if request.on_finish is not None:
            request.on_finish(request)
