from typing import Any

import pytest

from swarmkv.verify import Check, CheckUnusable, Reject, check


@check
def positive(value: int, ctx: Any) -> Reject | None:
    """It must be positive."""
    return None if value > 0 else Reject("must be positive")


def test_a_check_keeps_its_name_and_is_called_as_its_function() -> None:
    assert isinstance(positive, Check)
    assert positive.name == positive.__name__ == "positive"
    assert positive.__doc__ == "It must be positive."
    assert repr(positive) == "Check(positive)"
    assert positive(1, None) is None
    assert positive(0, None) == Reject("must be positive")


async def test_an_async_check_is_awaited_by_its_caller() -> None:
    @check
    async def fails(value: int, ctx: Any) -> Reject | None:
        return Reject("no")

    answer = fails(1, None)
    assert not isinstance(answer, Reject)
    assert answer is not None
    assert await answer == Reject("no")


@pytest.mark.parametrize("fn", [lambda value: None, lambda: None, lambda value, ctx, *, more: None, 7])
def test_what_cannot_be_called_with_value_and_ctx_is_refused(fn: Any) -> None:
    with pytest.raises(CheckUnusable, match=r"fn\(value, ctx\)"):
        check(fn)
