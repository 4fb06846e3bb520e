"""What defining and running agents raises.

AgentError
├── AgentInvalid         a definition that cannot work: names the field and the mend
├── ToolInvalid          a function that cannot be a tool: names the parameter and the mend
├── SamplingInvalid      a sampling setting outside its range
├── AgentNotImportable   an agent that a worker could not find by importing its module
├── NotPortable          a value that would not arrive in another process as it is; names the place in it
├── PlanInvalid          a plan with unknown agents, unknown needs, circles or doubles: names all of them
├── PromptFailed         the agent's prompt function raised, or gave no text
├── ToolFailed           a tool raised, or was called with wrong arguments; its text goes back to the model
├── TurnsExhausted       an attempt used all its turns on tools
├── GenerationFailed     the backend could not generate; carries its own error's name
├── BackendLost          the backend's process is gone; the attempt does not count
├── BackendFailed        the backend's model or device broke
└── BackendClosed        a call on a backend that was closed
"""

from __future__ import annotations

from typing import ClassVar

MAX_MESSAGE_CHARS = 4_000
"""of an error that travels, so that it fits every ring"""


class AgentError(Exception):
    """Root of what this package raises; `retryable` says whether another attempt may succeed."""

    retryable: ClassVar[bool] = False


class AgentInvalid(AgentError):
    def __init__(self, agent: str, field: str, reason: str) -> None:
        self.agent, self.field, self.reason = agent, field, reason
        super().__init__(f"agent {agent!r}: {field}: {reason}")


class ToolInvalid(AgentError):
    """`field` is a parameter, or "" for the function as a whole."""

    def __init__(self, tool: str, field: str, reason: str) -> None:
        self.tool, self.field, self.reason = tool, field, reason
        super().__init__(f"tool {tool!r}: {field}{': ' if field else ''}{reason}")


class SamplingInvalid(AgentError):
    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"Sampling: {field}={value!r} is not allowed; it takes {allowed}")


class AgentNotImportable(AgentError):
    def __init__(self, agent: str, module: str, reason: str) -> None:
        self.agent, self.module, self.reason = agent, module, reason
        super().__init__(f"agent {agent!r} cannot be found by importing {module!r}: {reason}")


class NotPortable(AgentError):
    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"the value at {path} cannot be carried to another process: {reason}")


class PlanInvalid(AgentError):
    """`faults` holds a sentence for each fault."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class PromptFailed(AgentError):
    def __init__(self, agent: str, reason: str) -> None:
        self.agent, self.reason = agent, reason
        super().__init__(f"agent {agent!r}: its prompt function failed: {reason}")


class ToolFailed(AgentError):
    retryable = True

    def __init__(self, tool: str, reason: str) -> None:
        self.tool, self.reason = tool, reason
        super().__init__(f"tool {tool}: {reason}")


class TurnsExhausted(AgentError):
    retryable = True

    def __init__(self, agent: str, max_turns: int) -> None:
        self.agent, self.max_turns = agent, max_turns
        super().__init__(f"agent {agent!r} gave no output within {max_turns} turns")


class GenerationFailed(AgentError):
    """`kind` names the backend's error, `retryable` says what that one says."""

    def __init__(self, kind: str, message: str, *, retryable: bool) -> None:
        self.kind, self.message = kind, message
        self.retryable = retryable  # type: ignore[misc]
        super().__init__(message)


class BackendLost(AgentError):
    retryable = True

    def __init__(self) -> None:
        super().__init__("the engine is gone; the attempt begins anew when it is back")


class BackendFailed(AgentError):
    retryable = True

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the model or its device broke: {reason}")


class BackendClosed(AgentError):
    def __init__(self) -> None:
        super().__init__("this backend was closed")


def describe(error: BaseException) -> tuple[str, str, bool]:
    """An error as it travels: its kind, its message, and whether another attempt may succeed.

    An error that does not say of itself whether to retry is a bug in someone's code: it is not retried.
    The message is valid UTF-8 of at most `MAX_MESSAGE_CHARS` characters. Never raises.
    """
    retryable = getattr(error, "retryable", None)
    if isinstance(error, GenerationFailed):
        return error.kind, _bounded(error.message), bool(retryable)
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error of a user's that cannot even say what it is
        text = ""
    if retryable is None and text:
        text = f"{kind}: {text}"
    return kind, _bounded(text or kind), bool(retryable)


def _bounded(text: str) -> str:
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[: MAX_MESSAGE_CHARS - 1] + "…"
    return text.encode(errors="replace").decode()
