import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from swarmkv.verify import CheckUnusable, Gate, Reject, SchemaUnsupported, Verdict, check


class Answer(msgspec.Struct, frozen=True):
    x: int
    items: list[int] = []


def rejecting(message: str) -> Any:
    return check(lambda value, ctx: Reject(message))


@check
async def slow(value: Answer, ctx: Any) -> Reject | None:
    await anyio.sleep(3600)
    return None


async def test_an_accepted_output_has_its_value() -> None:
    @check
    def context_agrees(value: Answer, ctx: Any) -> Reject | None:
        return None if ctx["x"] == value.x else Reject("x differs", path="x")

    gate = Gate(Answer, [context_agrees])
    verdict: Verdict[Answer] = await gate.judge('{"x":1}', {"x": 1})
    assert verdict == Verdict(accepted=True, value=Answer(1))
    verdict = await gate.judge('{"x":1}', {"x": 2})
    assert verdict == Verdict(accepted=False, reasons=(Reject("x differs", path="x"),))


async def test_a_wrong_schema_rejects_before_any_check() -> None:
    called: list[Any] = []
    gate = Gate(Answer, [check(lambda value, ctx: called.append(value))])
    verdict = await gate.judge('{"x":1,"items":null}', None)
    assert not verdict.accepted
    assert verdict.value is None
    assert [reason.path for reason in verdict.reasons] == ["$.items"]
    assert called == []


@pytest.mark.parametrize(
    "raw",
    ['\ufeff{"x":1}', '```json\n{"x":1}\n```', 'Sure: {"x":1} Bye!', '"{\\"x\\":1}"', b'Sure: {"x":1}'],
)
async def test_the_json_is_extracted_unless_switched_off(raw: str | bytes) -> None:
    assert (await Gate(Answer).judge(raw, None)).value == Answer(1)
    assert not (await Gate(Answer, extract=False).judge(raw, None)).accepted


async def test_an_extracted_document_is_judged_strictly() -> None:
    verdict = await Gate(Answer).judge('Sure:\n```json\n{"x":1,"y":2}\n```', None)
    assert [reason.path for reason in verdict.reasons] == ["$.y"]
    verdict = await Gate(Answer).judge('Sure: {"x":1,"items":[', None)
    assert [reason.path for reason in verdict.reasons] == ["$.items[0]"]
    verdict = await Gate(Answer).judge("I do not know.", None)
    assert "holds no JSON" in verdict.reasons[0].message


async def test_a_string_is_never_unwrapped_for_a_type_that_is_a_string() -> None:
    assert (await Gate(str).judge('"{\\"x\\":1}"', None)).value == '{"x":1}'


async def test_all_reasons_stand_in_the_order_of_the_checks() -> None:
    second_done = anyio.Event()

    @check
    async def first(value: Answer, ctx: Any) -> Reject | None:
        await second_done.wait()
        return Reject("first")

    @check
    async def second(value: Answer, ctx: Any) -> Reject | None:
        second_done.set()
        return Reject("second")

    gate = Gate(Answer, [first, rejecting("sync"), second])
    verdict = await gate.judge('{"x":1}', None)
    assert [reason.message for reason in verdict.reasons] == ["first", "sync", "second"]


async def test_a_check_that_raises_rejects_by_name() -> None:
    @check
    def breaks(value: Answer, ctx: Any) -> Reject | None:
        raise KeyError("boo")

    @check
    async def breaks_later(value: Answer, ctx: Any) -> Reject | None:
        await anyio.lowlevel.checkpoint()
        raise RuntimeError("boo")

    verdict = await Gate(Answer, [breaks, breaks_later, rejecting("last")]).judge('{"x":1}', None)
    assert not verdict.accepted
    assert [reason.message for reason in verdict.reasons] == [
        "The check breaks failed with KeyError: 'boo'",
        "The check breaks_later failed with RuntimeError: boo",
        "last",
    ]


async def test_a_check_that_times_out_rejects_and_is_cancelled() -> None:
    verdict = await Gate(Answer, [slow], check_timeout_s=0.01).judge('{"x":1}', None)
    assert [reason.message for reason in verdict.reasons] == ["The check slow did not end within 0.01 s."]


@pytest.mark.parametrize("answer", [True, "no", 0, ()])
async def test_a_check_that_answers_something_else_rejects(answer: Any) -> None:
    faulty = check(lambda value, ctx: answer)
    verdict = await Gate(Answer, [faulty]).judge('{"x":1}', None)
    assert not verdict.accepted
    assert "is faulty" in verdict.reasons[0].message


async def test_a_cancellation_passes_through() -> None:
    started = asyncio.Event()

    @check
    async def waits(value: Answer, ctx: Any) -> Reject | None:
        started.set()
        await anyio.sleep(3600)
        return None

    task = asyncio.create_task(Gate(Answer, [waits, slow]).judge('{"x":1}', None))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_gate_judges_many_outputs_at_once() -> None:
    @check
    async def even(value: Answer, ctx: Any) -> Reject | None:
        await anyio.lowlevel.checkpoint()
        return Reject("odd") if value.x % 2 else None

    gate = Gate(Answer, [even])
    verdicts = await asyncio.gather(*(gate.judge(f'{{"x":{i}}}', None) for i in range(20)))
    assert [verdict.accepted for verdict in verdicts] == [i % 2 == 0 for i in range(20)]


async def test_too_long_an_output_is_not_searched() -> None:
    verdict = await Gate(Answer).judge("x" * (16 * 2**20 + 1), None)
    assert "at most" in verdict.reasons[0].message


def test_bad_definitions_are_refused_at_once() -> None:
    with pytest.raises(SchemaUnsupported):
        Gate(object)
    with pytest.raises(CheckUnusable, match="cannot be called"):
        Gate(Answer, ["no check"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="check_timeout_s"):
        Gate(Answer, check_timeout_s=0)
    with pytest.raises(ValueError, match="check_timeout_s"):
        Gate(Answer, check_timeout_s=float("nan"))


async def test_a_plain_function_is_taken_as_a_check() -> None:
    def plain(value: Answer, ctx: Any) -> Reject | None:
        return Reject("no")

    assert Gate(Answer, [plain]).checks[0].name == "plain"
