"""What travels between the processes, one tagged struct a message.

    coordinator ⇄ worker     Dispatch, CancelTask, StopWorker        ⇄  WorkerReady, Output, AttemptFailed, Text
    worker      ⇄ engine     Generate, CancelGenerate                ⇄  Generated, GenerateFailed, GenerateText
    coordinator ⇄ engine     Settle, Release, DetachWorker, TakeAudit, StopEngine
                             ⇄  EngineReady, EngineFailed, Settled, AuditTaken

Frames are positional (arrays), so a field is added at the end and never moved. `serial` pairs an answer with its
question; it is unique for one mailbox.
"""

from __future__ import annotations

import msgspec

from ..agents import AgentRef, AttemptKey, Generation, Message, Sampling, Usage


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Root of all messages."""


# coordinator to worker


class Dispatch(Frame, frozen=True):
    """Carry out one attempt."""

    key: AttemptKey
    agent: AgentRef
    input: msgspec.Raw
    """the task's input, msgpack"""
    results: msgspec.Raw
    """values of the tasks it needs by task id, msgpack"""
    feedback: tuple[str, ...]
    """what the gate said of the earlier attempts, in order"""
    stream: bool
    """send the model's text as it grows"""
    seed: int
    """the swarm's, of every sampled token"""


class CancelTask(Frame, frozen=True):
    key: AttemptKey


class StopWorker(Frame, frozen=True):
    pass


ToWorker = Dispatch | CancelTask | StopWorker


# worker to coordinator


class WorkerReady(Frame, frozen=True):
    pid: int


class WorkerFailed(Frame, frozen=True):
    """The worker cannot start: the module of the agents does not import."""

    message: str


class Output(Frame, frozen=True):
    """An attempt's raw output, for the gate."""

    key: AttemptKey
    text: str
    finish: str
    usage: Usage


class AttemptFailed(Frame, frozen=True):
    """An attempt that ended without an output."""

    key: AttemptKey
    kind: str
    message: str
    retryable: bool
    usage: Usage


class Text(Frame, frozen=True):
    key: AttemptKey
    piece: str


FromWorker = WorkerReady | WorkerFailed | Output | AttemptFailed | Text


# worker to engine


class Generate(Frame, frozen=True):
    serial: int
    key: AttemptKey
    messages: tuple[Message, ...]
    sampling: Sampling
    schema: bytes | None
    stream: bool


class CancelGenerate(Frame, frozen=True):
    serial: int


WorkerToEngine = Generate | CancelGenerate


# engine to worker


class Generated(Frame, frozen=True):
    serial: int
    generation: Generation


class GenerateFailed(Frame, frozen=True):
    serial: int
    kind: str
    message: str
    retryable: bool


class GenerateText(Frame, frozen=True):
    serial: int
    piece: str


EngineToWorker = Generated | GenerateFailed | GenerateText


# coordinator to engine


class Settle(Frame, frozen=True):
    """The gate's verdict on an attempt."""

    serial: int
    key: AttemptKey
    accepted: bool


class Release(Frame, frozen=True):
    """Forget a task's branch."""

    serial: int
    run: str
    task: str


class DetachWorker(Frame, frozen=True):
    """A worker is gone: drop its mailbox and cancel what it had asked for."""

    worker: int


class TakeAudit(Frame, frozen=True):
    serial: int


class StopEngine(Frame, frozen=True):
    pass


ToEngine = Settle | Release | DetachWorker | TakeAudit | StopEngine


# engine to coordinator


class EngineReady(Frame, frozen=True):
    pid: int
    model: str
    dtype: str
    device: str
    total_pages: int
    partition_pages: int
    page_size: int


class EngineFailed(Frame, frozen=True):
    """The engine cannot start, or its model or device broke."""

    kind: str
    message: str


class Settled(Frame, frozen=True):
    """The answer to Settle and Release."""

    serial: int
    usage: Usage


class AuditTaken(Frame, frozen=True):
    serial: int
    total_pages: int
    free_pages: int
    held_pages: int
    cached_pages: int
    fault: str = ""
    """what does not balance; empty if the books do"""


FromEngine = EngineReady | EngineFailed | Settled | AuditTaken
