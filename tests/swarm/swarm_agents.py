"""Agents for the tests of the runtime, in a module that workers import."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import msgspec

from swarmkv.agents import Agent, Context, Sampling, tool
from swarmkv.verify import Reject, check


class Answer(msgspec.Struct, frozen=True):
    text: Annotated[str, msgspec.Meta(min_length=3)]


class Items(msgspec.Struct, frozen=True):
    a: str
    items: list[str]


def answer(text: str) -> str:
    """What a model says that gives this answer."""
    return msgspec.json.encode({"text": text}).decode()


def output(text: str) -> str:
    """The same of an agent with tools."""
    return msgspec.json.encode({"output": {"text": text}}).decode()


def call(tool: str, **arguments: Any) -> str:
    return msgspec.json.encode({"tool": tool, "arguments": arguments}).decode()


@check
def is_allowed(answer: Answer, ctx: Context) -> Reject | None:
    if isinstance(ctx.input, dict) and answer.text == ctx.input.get("forbidden"):
        return Reject("that word is forbidden", path="$.text")
    return None


@check
def crashes(answer: Answer, ctx: Context) -> Reject | None:
    raise ZeroDivisionError("in the check")


@tool
def kill_worker() -> None:
    """Kill the process that this runs in."""
    os.kill(os.getpid(), signal.SIGKILL)


@tool
def kill_worker_once(mark: str) -> str:
    """Kill the process that this runs in, the first time."""
    if Path(mark).exists():
        return "alive"
    Path(mark).touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


@tool(timeout_s=300)
async def hold(mark: str) -> None:
    """Begin, and end only by being cancelled; both are marked in files."""
    Path(mark + ".began").touch()
    try:
        await asyncio.sleep(120)
    except asyncio.CancelledError:
        Path(mark + ".cancelled").touch()
        raise


def failing_prompt(input: Any, ctx: Context) -> str:
    raise LookupError(f"no {input} here")


def exiting_prompt(input: Any, ctx: Context) -> str:
    raise SystemExit("from the prompt")


@check
def exits(answer: Answer, ctx: Context) -> Reject | None:
    raise SystemExit("from the check")


def exiting_feedback(verdict: Any, ctx: Context) -> str:
    raise SystemExit("from the feedback")


def quoting_prompt(input: Any, ctx: Context) -> str:
    return "\n".join(f"{task} said {msgspec.json.decode(text)['text']}" for task, text in ctx.results.items())


plain = Agent("plain", "Answer.", output=Answer, checks=[is_allowed])
other = Agent("other", "Answer something else.", output=Answer)
listing = Agent("listing", "List.", output=Items, attempts=1)
crashing = Agent("crashing", "Answer.", output=Answer, checks=[crashes], attempts=2)
brief = Agent("brief", "Answer.", output=Answer, attempts=1, sampling=Sampling(max_tokens=1))
unprompted = Agent("unprompted", "Answer.", output=Answer, prompt=failing_prompt)
exiting_in_prompt = Agent("exiting_in_prompt", "Answer.", output=Answer, prompt=exiting_prompt)
exiting_in_check = Agent(
    "exiting_in_check", "Answer.", output=Answer, checks=[exits], feedback=exiting_feedback, attempts=2
)
asking = Agent("asking", "Answer.", output=Answer, prompt=quoting_prompt)
deadly = Agent("deadly", "Answer.", output=Answer, tools=[kill_worker], attempts=2)
deadly_once = Agent("deadly_once", "Answer.", output=Answer, tools=[kill_worker_once], attempts=1)
holding = Agent("holding", "Answer.", output=Answer, tools=[hold], attempts=1)

# For the embedded model.
speaker = Agent(
    "speaker",
    "You answer each question with one single word, as a JSON object with the field text, and nothing else at all. "
    "Do not explain, do not apologise, do not ask back, and do not write more than that one word.",
    output=Answer,
    sampling=Sampling(max_tokens=24),
)


@check
def second_try(answer: Answer, ctx: Context) -> Reject | None:
    return Reject("give another word", path="$.text") if ctx.attempt == 1 else None


retrying = Agent(
    "retrying", speaker.instructions, output=Answer, checks=[second_try], sampling=Sampling(max_tokens=24)
)
# Long enough to be killed in the middle: it must write many words.
Long = Annotated[str, msgspec.Meta(min_length=400, max_length=600)]
writer = Agent("writer", "Write a long story.", output=Long, attempts=1, sampling=Sampling(max_tokens=400))
