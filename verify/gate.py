"""The gate: extraction, the strict schema, then the checks; its verdict ends an attempt.

It judges whole outputs only; what is shown of a stream before that is marked partial (see `partial`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Generic, TypeVar, overload

import anyio

from .check import Check, CheckFunction
from .decoder import StrictDecoder
from .extract import extract_json
from .verdict import Reject, Verdict

T = TypeVar("T")

CHECK_TIMEOUT_S = 10.0


class Gate(Generic[T]):
    """Judges outputs of type T. Immutable: one gate may judge many outputs at once."""

    @overload
    def __init__(
        self,
        type_: type[T],
        checks: Iterable[Check[Any] | CheckFunction[Any]] = ...,
        *,
        check_timeout_s: float = ...,
        extract: bool = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Gate[Any],
        type_: Any,
        checks: Iterable[Check[Any] | CheckFunction[Any]] = ...,
        *,
        check_timeout_s: float = ...,
        extract: bool = ...,
    ) -> None: ...

    def __init__(
        self,
        type_: Any,
        checks: Iterable[Check[Any] | CheckFunction[Any]] = (),
        *,
        check_timeout_s: float = CHECK_TIMEOUT_S,
        extract: bool = True,
    ) -> None:
        """Make the gate of a type and its checks.

        Units:  check_timeout_s bounds each async check; a sync check runs in the loop and must be quick.
        Raises: SchemaUnsupported for a type that cannot be enforced, CheckUnusable for a bad check,
                ValueError for a timeout that is not positive.
        """
        if not check_timeout_s > 0:
            raise ValueError(f"check_timeout_s is {check_timeout_s}; give a positive number of seconds")
        self.decoder: StrictDecoder[T] = StrictDecoder(type_)
        self.checks = tuple(one if isinstance(one, Check) else Check(one) for one in checks)
        self.check_timeout_s = check_timeout_s
        self.extract = extract

    async def judge(self, raw: bytes | str, ctx: Any) -> Verdict[T]:
        """The verdict on a whole output.

        All checks run, and the reasons stand in the order of the checks. A check that raises, times out or
        answers with something else than a Reject or None rejects. A cancellation passes through.
        """
        value = self._decode(raw)
        if isinstance(value, Reject):
            return Verdict(accepted=False, reasons=(value,))
        answers = [_called(one, value, ctx) for one in self.checks]
        if any(isinstance(answer, Awaitable) for answer in answers):
            async with anyio.create_task_group() as group:
                for i, answer in enumerate(answers):
                    if isinstance(answer, Awaitable):
                        group.start_soon(self._await_into, answers, i)
        reasons = tuple(
            reason
            for one, answer in zip(self.checks, answers, strict=True)
            if (reason := _reason(one, answer)) is not None
        )
        if reasons:
            return Verdict(accepted=False, reasons=reasons)
        return Verdict(accepted=True, value=value)

    def _decode(self, raw: bytes | str) -> T | Reject:
        value = self.decoder.decode(raw)
        if not isinstance(value, Reject) or not self.extract or len(raw) > self.decoder.max_bytes:
            return value
        text = extract_json(raw)
        if isinstance(text, Reject):
            return text
        return value if text is raw else self.decoder.decode(text)

    async def _await_into(self, answers: list[Any], i: int) -> None:
        awaitable, answers[i] = answers[i], None
        scope = anyio.move_on_after(self.check_timeout_s)
        try:
            with scope:
                answers[i] = await awaitable
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a gate that crashes rejects
            answers[i] = _crash(self.checks[i], error)
        if scope.cancelled_caught:
            name = self.checks[i].name
            answers[i] = Reject(f"The check {name} did not end within {self.check_timeout_s:g} s.")


def _called(one: Check[Any], value: Any, ctx: Any) -> Any:
    """What the check answers; of an async check, what is to be awaited."""
    try:
        return one(value, ctx)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a gate that crashes rejects
        return _crash(one, error)


def _crash(one: Check[Any], error: BaseException) -> Reject:
    return Reject(f"The check {one.name} failed with {type(error).__name__}: {error}")


def _reason(one: Check[Any], answer: Any) -> Reject | None:
    if answer is None or isinstance(answer, Reject):
        return answer
    kind = type(answer).__name__
    return Reject(f"The check {one.name} is faulty: it answered with {kind}, not with a Reject or None.")
