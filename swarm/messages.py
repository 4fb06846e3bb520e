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


class Dispatch(Frame):
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


class CancelTask(Frame):
    key: AttemptKey


class StopWorker(Frame):
    pass


ToWorker = Dispatch | CancelTask | StopWorker


# worker to coordinator


class WorkerReady(Frame):
    pid: int


class WorkerFailed(Frame):
    """The worker cannot start: the module of the agents does not import."""

    message: str


class Output(Frame):
    """An attempt's raw output, for the gate."""

    key: AttemptKey
    text: str
    finish: str
    usage: Usage


class AttemptFailed(Frame):
    """An attempt that ended without an output."""

    key: AttemptKey
    kind: str
    message: str
    retryable: bool
    usage: Usage


class Text(Frame):
    key: AttemptKey
    piece: str


FromWorker = WorkerReady | WorkerFailed | Output | AttemptFailed | Text


# worker to engine


class Generate(Frame):
    serial: int
    key: AttemptKey
    messages: tuple[Message, ...]
    sampling: Sampling
    schema: bytes | None
    stream: bool


class CancelGenerate(Frame):
    serial: int


WorkerToEngine = Generate | CancelGenerate


# engine to worker


class Generated(Frame):
    serial: int
    generation: Generation


class GenerateFailed(Frame):
    serial: int
    kind: str
    message: str
    retryable: bool


class GenerateText(Frame):
    serial: int
    piece: str


EngineToWorker = Generated | GenerateFailed | GenerateText


# coordinator to engine


class Settle(Frame):
    """The gate's verdict on an attempt."""

    serial: int
    key: AttemptKey
    accepted: bool


class Release(Frame):
    """Forget a task's branch."""

    serial: int
    run: str
    task: str


class DetachWorker(Frame):
    """A worker is gone: drop its mailbox and cancel what it had asked for."""

    worker: int


class TakeAudit(Frame):
    serial: int


class StopEngine(Frame):
    pass


ToEngine = Settle | Release | DetachWorker | TakeAudit | StopEngine


# engine to coordinator


class EngineReady(Frame):
    pid: int
    model: str
    dtype: str
    device: str
    total_pages: int
    partition_pages: int
    page_size: int


class EngineFailed(Frame):
    """The engine cannot start, or its model or device broke."""

    kind: str
    message: str


class Settled(Frame):
    """The answer to Settle and Release."""

    serial: int
    usage: Usage


class AuditTaken(Frame):
    serial: int
    total_pages: int
    free_pages: int
    held_pages: int
    cached_pages: int
    fault: str = ""
    """what does not balance; empty if the books do"""


FromEngine = EngineReady | EngineFailed | Settled | AuditTaken
