"""Checks: what must hold of a value beyond its schema."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from .errors import CheckUnusable
from .verdict import Reject

T = TypeVar("T")

CheckFunction = Callable[[T, Any], Reject | None] | Callable[[T, Any], Awaitable[Reject | None]]


class Check(Generic[T]):
    """A named function (value, ctx) -> Reject | None, sync or async; None lets the value pass.

    It is called as the function that it wraps, so that a test may call it directly.
    """

    def __init__(self, fn: CheckFunction[T]) -> None:
        """Raises: CheckUnusable if `fn` cannot be called with (value, ctx)."""
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        _refuse_unusable(self.name, fn)
        self.fn = fn
        self.__name__ = self.name
        self.__doc__ = getattr(fn, "__doc__", None)

    def __call__(self, value: T, ctx: Any) -> Reject | Awaitable[Reject | None] | None:
        return self.fn(value, ctx)

    def __repr__(self) -> str:
        return f"Check({self.name})"


def check(fn: CheckFunction[T]) -> Check[T]:
    """Make a check of a function (value, ctx) -> Reject | None.

    Raises: CheckUnusable if the function cannot be called with (value, ctx).
    """
    return Check(fn)


def _refuse_unusable(name: str, fn: Any) -> None:
    if not callable(fn):
        raise CheckUnusable(name, "it cannot be called")
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError as error:
        raise CheckUnusable(name, str(error)) from error
