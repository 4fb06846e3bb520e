"""`Agent`: what an agent is told, what it must give back, and what that is held against."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec

from ..verify import Check, Gate, SchemaUnsupported, Verdict, json_schema
from .context import Context
from .errors import AgentInvalid, AgentNotImportable
from .message import Sampling
from .tool import Tool
from .turns import turn_schema

T = TypeVar("T")
Prompt = Callable[[Any, Context], str]
Feedback = Callable[[Verdict[Any], Context], str]

_SAMPLING = Sampling()
MAIN_NAMES = ("__main__", "__mp_main__")
"""of a script, here and in a worker"""

_BIND_IT = "bind it to a name at the top of that module, so that workers can import it"


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
    feedback       makes the text after a rejection from (verdict, ctx); without one, it lists the reasons
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
        tools: Sequence[Tool[..., Any]] = ...,
        checks: Sequence[Check[T]] = ...,
        attempts: int = ...,
        prompt: Prompt | None = ...,
        feedback: Feedback | None = ...,
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
        tools: Sequence[Tool[..., Any]] = ...,
        checks: Sequence[Check[Any]] = ...,
        attempts: int = ...,
        prompt: Prompt | None = ...,
        feedback: Feedback | None = ...,
        sampling: Sampling = ...,
        max_turns: int = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        instructions: str,
        *,
        output: Any,
        tools: Sequence[Tool[..., Any]] = (),
        checks: Sequence[Check[Any]] = (),
        attempts: int = 3,
        prompt: Prompt | None = None,
        feedback: Feedback | None = None,
        sampling: Sampling = _SAMPLING,
        max_turns: int = 8,
        **unknown: Any,
    ) -> None:
        fields: dict[str, Any] = {
            "name": name,
            "instructions": instructions,
            "output": output,
            "tools": tools,
            "checks": checks,
            "attempts": attempts,
            "prompt": prompt,
            "feedback": feedback,
            "sampling": sampling,
            "max_turns": max_turns,
        }
        _refuse_unknown(name, unknown, fields)
        _check_fields(name, fields)
        try:
            fields["gate"] = Gate(output, fields["checks"])
            fields["schema"] = json_schema(output)
        except SchemaUnsupported as error:
            raise AgentInvalid(name, f"output{error.path.removeprefix('$')}", str(error)) from error
        except TypeError as error:
            raise AgentInvalid(name, "output", f"a default that JSON cannot hold: {error}") from error
        fields["turn_schema"] = turn_schema(fields["schema"], fields["tools"])
        fields["module"] = _defining_module()
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    name: str
    instructions: str
    output: Any
    tools: tuple[Tool[..., Any], ...]
    checks: tuple[Check[Any], ...]
    attempts: int
    prompt: Prompt | None
    feedback: Feedback | None
    sampling: Sampling
    max_turns: int
    gate: Gate[T]
    """holds an output against type and checks"""
    schema: bytes
    """the output's JSON schema"""
    turn_schema: bytes
    """of one answer of the model: the output's, or with tools a call or the output"""
    module: str
    """where the agent was defined"""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an agent is immutable: define another one instead of setting {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an agent is immutable: {name} cannot be deleted")

    def __repr__(self) -> str:
        return f"Agent({self.name!r} of {self.module})"

    def reference(self) -> AgentRef:
        """Where a worker finds this agent.

        Raises: AgentNotImportable if its module binds no name to it, or has another agent of its name.
        """
        found = _bound_agents(self.module, self.name)
        if not any(agent is self for agent in found):
            raise AgentNotImportable(self.name, self.module, _BIND_IT)
        _require_one(found, self.name, self.module)
        return AgentRef(self.module, self.name)


def find_agent(ref: AgentRef) -> Agent[Any]:
    """The agent of that name at the top of that module, which is imported if need be.

    Raises: AgentNotImportable, also if importing the module fails.
    """
    if ref.module not in MAIN_NAMES and ref.module not in sys.modules:
        try:
            importlib.import_module(ref.module)
        except (Exception, SystemExit) as error:
            reason = f"importing it fails: {type(error).__name__}: {error}"
            raise AgentNotImportable(ref.name, ref.module, reason) from error
    found = _bound_agents(ref.module, ref.name)
    if not found:
        raise AgentNotImportable(ref.name, ref.module, _BIND_IT)
    return _require_one(found, ref.name, ref.module)


def _bound_agents(module_name: str, agent_name: str) -> list[Agent[Any]]:
    """Agents of that name at the top of the module: those that it defines, or else those that it imports.

    A script is found under both names that it may have here and in a worker.
    """
    names = MAIN_NAMES if module_name in MAIN_NAMES else (module_name,)
    found: dict[int, Agent[Any]] = {}
    for module in (sys.modules.get(name) for name in names):
        for value in list(vars(module).values()) if module is not None else ():
            if isinstance(value, Agent) and value.name == agent_name:
                found[id(value)] = value
    defined = [agent for agent in found.values() if agent.module in names]
    return defined or list(found.values())


def _require_one(found: list[Agent[Any]], name: str, module: str) -> Agent[Any]:
    if len(found) > 1:
        raise AgentNotImportable(name, module, "two different agents have that name there; rename one")
    return found[0]


def _defining_module() -> str:
    """The module that calls `Agent(...)`, or `Agent[T](...)`, which goes through typing."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == "typing" and frame.f_back is not None:
        frame = frame.f_back
    name: str = frame.f_globals.get("__name__", "__main__")
    return name


def _refuse_unknown(name: str, unknown: dict[str, Any], fields: dict[str, Any]) -> None:
    for field in unknown:
        near = difflib.get_close_matches(field, fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"an agent takes {', '.join(fields)}"
        raise AgentInvalid(str(name), field, f"there is no such field; {hint}")


def _check_fields(name: str, fields: dict[str, Any]) -> None:
    """Check the fields one by one; tools and checks become tuples."""

    def refuse(field: str, reason: str) -> None:
        raise AgentInvalid(str(name), field, reason)

    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        refuse("name", "it takes 1 to 64 letters, digits, - and _")
    if not isinstance(fields["instructions"], str) or not fields["instructions"].strip():
        refuse("instructions", "it takes a text that says what to do")
    for field, made_by, type_ in (("tools", "@tool", Tool), ("checks", "@check", Check)):
        try:
            fields[field] = tuple(fields[field])
        except TypeError:
            refuse(field, f"it takes a list of functions made with {made_by}")
        for value in fields[field]:
            if not isinstance(value, type_):
                refuse(field, f"{getattr(value, '__name__', value)} was not made with {made_by}")
    names = [tool.name for tool in fields["tools"]]
    if len(set(names)) != len(names):
        refuse("tools", f"two have one name: {', '.join(names)}")
    for field in ("attempts", "max_turns"):
        if type(fields[field]) is not int or fields[field] < 1:
            refuse(field, f"it is {fields[field]!r}; it takes a whole number of 1 or more")
    for field, given in (("prompt", "input"), ("feedback", "verdict")):
        if fields[field] is not None and not _is_function_of_two(fields[field]):
            refuse(field, f"it takes a plain function of ({given}, ctx) that returns a str")
    if not isinstance(fields["sampling"], Sampling):
        refuse("sampling", "it takes a Sampling, such as Sampling(temperature=0.7)")


def _is_function_of_two(fn: Any) -> bool:
    if not inspect.isfunction(fn) or inspect.iscoroutinefunction(fn):
        return False
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        return False
    return True
