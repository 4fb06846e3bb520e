from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import pytest

from swarmkv.agents import Context, Tool, ToolFailed, tool
from swarmkv.agents.errors import ToolInvalid

if TYPE_CHECKING:
    from fractions import Fraction

NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]
CTX = Context(input={"text": "a lamp, a moth"}, task_id="t")


class Range(msgspec.Struct):
    first: int
    last: int = 9


@tool
def grep(pattern: NotEmpty, where: Range, ctx: Context, limit: int = 2) -> Any:
    """Find words
    in the text.

    Not for the model: this paragraph.
    """
    return [pattern, where.first, where.last, limit, ctx.task_id]


@tool
async def fetch(*, count: int) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"count": count}


@tool
def thread_name() -> str:
    return threading.current_thread().name


def test_a_tool_is_its_function_with_a_schema() -> None:
    assert (grep.name, grep.description) == ("grep", "Find words in the text.")
    assert grep("a", Range(1), CTX, limit=3) == ["a", 1, 9, 3, "t"]
    schema = msgspec.json.decode(grep.schema)["$defs"]["grep_arguments"]
    assert list(schema["properties"]) == ["pattern", "where", "limit"]
    assert schema["additionalProperties"] is False


async def test_a_call_decodes_runs_and_encodes() -> None:
    arguments = b'{"pattern":"moth","where":{"first":1}}'
    assert await grep.call(arguments, CTX) == '["moth",1,9,2,"t"]'
    assert await fetch.call('{"count":3}', CTX) == '{"count":3}'


async def test_a_plain_function_runs_in_a_thread() -> None:
    assert await thread_name.call("{}", CTX) != f'"{threading.current_thread().name}"'


async def test_plain_functions_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3)

    @tool
    def meet() -> int:
        return barrier.wait(timeout=20)

    met: list[str] = []

    async def call() -> None:
        met.append(await meet.call("{}", CTX))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(call)
    assert sorted(met) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{", "wrong arguments"),
        ('{"pattern":"a","where":{"first":"1"}}', "$.where.first"),
        ('{"pattern":"a","where":{"first":1},"limti":1}', "limti"),
        ('{"pattern":"a","pattern":"b","where":{"first":1}}', "twice"),
        ('{"pattern":"a","where":{"first":1},"ctx":{}}', "ctx"),
        ('{"where":{"first":1}}', "pattern"),
    ],
)
async def test_wrong_arguments_are_told_to_the_model(arguments: str, reason: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        await grep.call(arguments, CTX)
    assert caught.value.tool == "grep"
    assert reason in caught.value.reason


async def test_whatever_a_tool_does_is_a_tool_failure() -> None:
    def fail(error: BaseException) -> Any:
        raise error

    for act, reason in [
        (lambda: fail(OSError("no such file")), "OSError: no such file"),
        (lambda: fail(StopIteration()), "StopIteration"),
        (lambda: fail(SystemExit(3)), "SystemExit: 3"),
        (lambda: object(), "TypeError"),
        (lambda: "x" * 30_000, "30002 characters"),
    ]:

        @tool
        def act_now(act: Any = None, *, ctx: Any) -> Any:
            return ctx()

        with pytest.raises(ToolFailed, match=reason):
            await act_now.call("{}", act)  # type: ignore[arg-type]


async def test_a_tool_that_takes_too_long_fails_at_its_limit() -> None:
    release = threading.Event()

    @tool(timeout_s=0.01)
    def hang() -> None:
        release.wait(30)

    @tool(timeout_s=0.01)
    async def wait() -> None:
        await asyncio.sleep(30)

    for slow in (hang, wait):
        with pytest.raises(ToolFailed, match=r"did not end within 0\.01 s"):
            await slow.call("{}", CTX)
    release.set()


async def test_a_cancelled_call_ends_at_once() -> None:
    began, release = threading.Event(), threading.Event()

    @tool
    def hang() -> None:
        began.set()
        release.wait(30)

    call = asyncio.create_task(hang.call("{}", CTX))
    await asyncio.to_thread(began.wait, 20)
    call.cancel()
    with anyio.fail_after(5):
        await asyncio.wait([call])
    assert call.cancelled()
    release.set()


def test_a_type_that_only_the_checker_knows_may_stand_beside_the_parameters() -> None:
    @tool
    def halve(number: int, ctx: Fraction | None = None) -> Fraction:
        raise NotImplementedError

    assert b"number" in halve.schema


def untyped(pattern) -> str:  # type: ignore[no-untyped-def]
    return pattern


def many(*patterns: str) -> str:
    return ""


def any_names(**patterns: str) -> str:
    return ""


def by_place(pattern: str, /) -> str:
    return ""


def unknown_type(number: Fraction) -> str:
    return ""


def a_lock(lock: threading.Event) -> str:
    return ""


def changeable(words: list[str] = ["a"]) -> str:  # noqa: B006
    return ""


@pytest.mark.parametrize(
    ("fn", "field", "reason"),
    [
        (untyped, "pattern", "annotate it"),
        (many, "patterns", "named parameters only"),
        (any_names, "patterns", "named parameters only"),
        (by_place, "pattern", "named parameters only"),
        (unknown_type, "", "'Fraction' is not defined"),
        (a_lock, "lock", "no JSON form"),
        (changeable, "", "default"),
        (grep, "", "no function"),
        (7, "", "no function"),
    ],
)
def test_a_function_that_json_cannot_call_is_no_tool(fn: Any, field: str, reason: str) -> None:
    with pytest.raises(ToolInvalid) as caught:
        tool(fn)
    assert caught.value.field == field
    assert reason in caught.value.reason


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), "5"])
def test_a_limit_of_no_time_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ToolInvalid, match="seconds"):
        Tool(by_name, timeout_s=timeout_s)


def by_name(pattern: str) -> str:
    return pattern
