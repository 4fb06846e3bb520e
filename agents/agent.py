"""`Agent`: what an agent is told, what it must give back, and what that is held against."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec

from ..verify import Check, Gate, SchemaUnsupported, json_schema
from .context import Context
from .errors import AgentInvalid, AgentNotImportable
from .message import Sampling
from .tool import Tool

T = TypeVar("T")
Prompt = Callable[[Any, Context], str]

_MAIN = ("__main__", "__mp_main__")


class AgentRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a worker finds an agent."""

    module: str
    name: str


class Agent(Generic[T]):
    """An immutable value. All state is the run's, so one agent may serve any number of tasks at once.

    name           letters, digits, - and _
    instructions   the system message
    output         what the agent must give back: any type that msgspec can describe
    tools          functions made with `@tool`, that the model may call before it answers
    checks         functions made with `@check`, that an answer must pass beyond its type
    attempts       how often a task may be tried
    prompt         makes the user message from (input, ctx); without one, the input is shown as it is
    sampling       of the first attempt; later ones have another seed and some temperature
    max_turns      calls of the model within one attempt

    Raises: AgentInvalid, naming the field and the mend.
    """

    @overload
    def __init__(
        self,
        name: str,
        instructions: str,
        *,
        output: type[T],
        tools: Sequence[Tool] = ...,
        checks: Sequence[Check[T]] = ...,
        attempts: int = ...,
        prompt: Prompt | None = ...,
        sampling: Sampling = ...,
        max_turns: int = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any],
        name: str,
        instructions: str,
        *,
        output: Any,
        tools: Sequence[Tool] = ...,
        checks: Sequence[Check[Any]] = ...,
        attempts: int = ...,
        prompt: Prompt | None = ...,
        sampling: Sampling = ...,
        max_turns: int = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        instructions: str,
        *,
        output: Any,
        tools: Sequence[Tool] = (),
        checks: Sequence[Check[Any]] = (),
        attempts: int = 3,
        prompt: Prompt | None = None,
        sampling: Sampling = Sampling(),
        max_turns: int = 8,
        **unknown: Any,
    ) -> None:
        fields = {
            "name": name,
            "instructions": instructions,
            "output": output,
            "tools": tuple(tools),
            "checks": tuple(checks),
            "attempts": attempts,
            "prompt": prompt,
            "sampling": sampling,
            "max_turns": max_turns,
        }
        for field in unknown:
            near = difflib.get_close_matches(field, fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"an agent takes {', '.join(fields)}"
            raise AgentInvalid(str(name), field, f"there is no such field; {hint}")
        _check_fields(fields)
        try:
            gate: Gate[T] = Gate(output, checks)
            schema = json_schema(output)
        except SchemaUnsupported as error:
            raise AgentInvalid(name, f"output at {error.path}", error.reason) from error
        module = sys._getframe(1).f_globals.get("__name__", "__main__")
        for field, value in (fields | {"gate": gate, "schema": schema, "module": module}).items():
            object.__setattr__(self, field, value)

    name: str
    instructions: str
    output: Any
    tools: tuple[Tool, ...]
    checks: tuple[Check[Any], ...]
    attempts: int
    prompt: Prompt | None
    sampling: Sampling
    max_turns: int
    gate: Gate[T]
    """holds an output against type and checks"""
    schema: bytes
    """the output's JSON schema"""
    module: str
    """where the agent was defined"""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an agent is immutable: define another one instead of setting {name}")

    def __repr__(self) -> str:
        return f"Agent({self.name!r} of {self.module})"

    def reference(self) -> AgentRef:
        """Where a worker finds this agent.

        Raises: AgentNotImportable if no module-level name of its module is bound to it.
        """
        for module in _MAIN if self.module in _MAIN else (self.module,):
            if any(value is self for value in vars(sys.modules.get(module, types)).values()):
                return AgentRef(self.module, self.name)
        raise AgentNotImportable(self.name, self.module)


def find_agent(ref: AgentRef) -> Agent[Any]:
    """The agent of that name at the top of that module, which is imported if need be.

    Raises: AgentNotImportable.
    """
    candidates = _MAIN if ref.module in _MAIN else (ref.module,)
    for name in candidates:
        module = sys.modules.get(name)
        if module is None and name not in _MAIN:
            import importlib

            try:
                module = importlib.import_module(name)
            except ImportError as error:
                raise AgentNotImportable(ref.name, name) from error
        for value in list(vars(module).values()) if module is not None else ():
            if isinstance(value, Agent) and value.name == ref.name:
                return value
    raise AgentNotImportable(ref.name, ref.module)


def _check_fields(fields: dict[str, Any]) -> None:
    name = fields["name"]

    def refuse(field: str, reason: str) -> None:
        raise AgentInvalid(str(name), field, reason)

    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        refuse("name", "it takes 1 to 64 letters, digits, - and _")
    if not isinstance(fields["instructions"], str) or not fields["instructions"].strip():
        refuse("instructions", "it takes a text that says what to do")
    for made_by, type_, field in (("@tool", Tool, "tools"), ("@check", Check, "checks")):
        for value in fields[field]:
            if not isinstance(value, type_):
                refuse(field, f"{value!r} was not made with {made_by}")
    names = [tool.name for tool in fields["tools"]]
    if len(set(names)) != len(names):
        refuse("tools", f"two have one name: {', '.join(names)}")
    for field in ("attempts", "max_turns"):
        value = fields[field]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            refuse(field, "it takes a whole number of 1 or more")
    if fields["prompt"] is not None and not inspect.isfunction(fields["prompt"]):
        refuse("prompt", "it takes a function of (input, ctx)")
    sampling = fields["sampling"]
    if not isinstance(sampling, Sampling):
        refuse("sampling", "it takes a Sampling")
    if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        refuse("sampling", "max_tokens 1 or more, temperature 0 or more, top_p over 0 up to 1, top_k 0 or more")
