"""Read-only functions that a model may call while it works on an attempt."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import anyio
import anyio.to_thread
import msgspec

from ..verify import Reject, SchemaUnsupported, StrictDecoder, json_schema
from .context import Context
from .errors import ToolFailed, ToolInvalid

P = ParamSpec("P")
R = TypeVar("R")

TOOL_TIMEOUT_S = 60.0
MAX_RESULT_CHARS = 20_000
"""of a result's JSON text: more would not fit a small model's context"""
CONTEXT_PARAMETER = "ctx"
"""a parameter of this name gets the Context; the model does not see it"""


class Tool(Generic[P, R]):
    """A function with the JSON schema of its parameters. Made by `@tool`; callable as the function itself.

    name, description   as the model sees them: the function's name, and the first paragraph of its docstring
    schema              of the arguments, JSON
    """

    def __init__(self, fn: Callable[P, R], *, timeout_s: float = TOOL_TIMEOUT_S) -> None:
        """Raises: ToolInvalid for a function that JSON arguments cannot call, or a timeout of no time."""
        if not inspect.isfunction(fn):
            raise ToolInvalid(getattr(fn, "__name__", repr(fn)), "", "it is no function; write it with def")
        self.fn: Callable[P, R] = fn
        self.name: str = fn.__name__
        if not (isinstance(timeout_s, int | float) and math.isfinite(timeout_s) and timeout_s > 0):
            raise ToolInvalid(self.name, "timeout_s", f"it is {timeout_s!r}; give seconds, more than 0")
        self.timeout_s = timeout_s
        self.description = " ".join((inspect.getdoc(fn) or "").split("\n\n")[0].split())
        self.__name__, self.__doc__ = self.name, fn.__doc__
        arguments = _arguments_type(fn)
        try:
            self._decoder: StrictDecoder[msgspec.Struct] = StrictDecoder(arguments)
            self.schema = json_schema(arguments)
        except SchemaUnsupported as error:
            raise ToolInvalid(self.name, error.path.removeprefix("$."), error.reason) from error
        except TypeError as error:
            raise ToolInvalid(self.name, "", f"a default that JSON cannot hold: {error}") from error
        self._takes_context = CONTEXT_PARAMETER in inspect.signature(fn).parameters

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name})"

    async def call(self, arguments: bytes | str, ctx: Context) -> str:
        """Call with arguments as JSON, decoded strictly; the result as JSON text.

        A plain function runs in a thread. Cancelled, or out of time, it returns at once; a thread cannot be
        stopped, so what a plain function does then is waited for by nobody.
        Raises: ToolFailed for arguments that do not fit, for whatever the function raises, for a result that
                JSON cannot hold or of more than `MAX_RESULT_CHARS`, and out of time.
        """
        decoded = self._decoder.decode(arguments)
        if isinstance(decoded, Reject):
            raise ToolFailed(self.name, f"wrong arguments: {decoded.sentence()}")
        given = {name: getattr(decoded, name) for name in decoded.__struct_fields__}
        if self._takes_context:
            given[CONTEXT_PARAMETER] = ctx
        text = ""
        try:
            with anyio.move_on_after(self.timeout_s) as scope:
                text = msgspec.json.encode(await self._run(given)).decode()
        except (Exception, SystemExit) as error:
            raise ToolFailed(self.name, f"{type(error).__name__}: {error}") from error
        if scope.cancelled_caught:
            raise ToolFailed(self.name, f"it did not end within {self.timeout_s:g} s")
        if len(text) > MAX_RESULT_CHARS:
            reason = f"its result has {len(text)} characters, at most {MAX_RESULT_CHARS} fit; ask for less"
            raise ToolFailed(self.name, reason)
        return text

    async def _run(self, given: dict[str, Any]) -> Any:
        fn: Callable[..., Any] = self.fn
        if inspect.iscoroutinefunction(fn):
            return await fn(**given)
        result = await anyio.to_thread.run_sync(lambda: fn(**given), abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result


@overload
def tool(fn: Callable[P, R]) -> Tool[P, R]: ...
@overload
def tool(*, timeout_s: float) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(fn: Any = None, *, timeout_s: float = TOOL_TIMEOUT_S) -> Any:
    """Let agents call a function. It must only read: it runs in a worker, before any gate.

    Its parameters and their types become the schema that the model follows; one named `ctx` gets the Context.
    Units:  timeout_s bounds one call.
    Raises: ToolInvalid if a parameter has no type, or one that JSON cannot carry.
    """
    if fn is None:
        return lambda fn: Tool(fn, timeout_s=timeout_s)
    return Tool(fn, timeout_s=timeout_s)


def _arguments_type(fn: types.FunctionType) -> type[msgspec.Struct]:
    parameters = [
        parameter
        for parameter in inspect.signature(fn).parameters.values()
        if parameter.name != CONTEXT_PARAMETER
    ]
    hints = _parameter_types(fn, [parameter.name for parameter in parameters])
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolInvalid(fn.__name__, parameter.name, "a tool takes named parameters only")
        if parameter.name not in hints:
            raise ToolInvalid(fn.__name__, parameter.name, "it has no type; annotate it")
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    try:
        return msgspec.defstruct(
            f"{fn.__name__}_arguments", fields, kw_only=True, frozen=True, forbid_unknown_fields=True
        )
    except TypeError as error:  # a mutable default, a name that a struct cannot have
        raise ToolInvalid(fn.__name__, "", str(error)) from error


def _parameter_types(fn: types.FunctionType, names: list[str]) -> dict[str, Any]:
    """Types of the named parameters only: others, and the result's, may be unknown at run time."""
    written = {name: fn.__annotations__[name] for name in names if name in fn.__annotations__}
    holder = types.SimpleNamespace(__annotations__=written)
    try:
        return typing.get_type_hints(holder, globalns=fn.__globals__, include_extras=True)
    except NameError as error:
        reason = f"{error}; the types of its parameters must stand at the top of the module, before it"
        raise ToolInvalid(fn.__name__, "", reason) from error
