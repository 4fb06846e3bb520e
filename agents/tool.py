"""Read-only functions that a model may call while it works on an attempt."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import msgspec

from ..verify import Reject, SchemaUnsupported, StrictDecoder, json_schema
from .errors import AgentInvalid, ToolFailed


class Tool:
    """A function with the JSON schema of its parameters. Made by `@tool`; callable as the function itself."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.name = fn.__name__
        self.description = inspect.getdoc(fn) or ""
        self.arguments_type = _arguments_type(fn)
        try:
            self._decoder: StrictDecoder[Any] = StrictDecoder(self.arguments_type)
            self.schema = json_schema(self.arguments_type)
        except SchemaUnsupported as error:
            raise AgentInvalid(self.name, error.path, error.reason) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    async def call(self, arguments: bytes | str) -> str:
        """Call with arguments as JSON; the result as JSON text. A plain function runs in a thread.

        Raises: ToolFailed for arguments that do not fit, and for whatever the function raises.
        """
        decoded = self._decoder.decode(arguments)
        if isinstance(decoded, Reject):
            raise ToolFailed(self.name, f"wrong arguments: {decoded.sentence()}")
        given = {name: getattr(decoded, name) for name in self.arguments_type.__struct_fields__}
        try:
            if inspect.iscoroutinefunction(self.fn):
                result = await self.fn(**given)
            else:
                result = await anyio.to_thread.run_sync(lambda: self.fn(**given), abandon_on_cancel=True)
            return msgspec.json.encode(result).decode()
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            raise ToolFailed(self.name, f"{type(error).__name__}: {error}") from error


def tool(fn: Callable[..., Any]) -> Tool:
    """Let agents call a function. It must only read: it runs in a worker, before any gate.

    Raises: AgentInvalid if a parameter has no type, or one that JSON cannot carry.
    """
    return Tool(fn)


def _arguments_type(fn: Callable[..., Any]) -> type[msgspec.Struct]:
    hints = typing.get_type_hints(fn, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise AgentInvalid(fn.__name__, parameter.name, "a tool takes named parameters only")
        if parameter.name not in hints:
            raise AgentInvalid(fn.__name__, parameter.name, "a tool's parameter needs a type")
        field: tuple[Any, ...] = (parameter.name, hints[parameter.name])
        if parameter.default is not parameter.empty:
            field = (*field, parameter.default)
        fields.append(field)
    return msgspec.defstruct(f"{fn.__name__}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
