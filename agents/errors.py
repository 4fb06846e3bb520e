"""What defining and running agents raises.

AgentError
├── AgentInvalid         a definition that cannot work: names the field and the mend
├── AgentNotImportable   an agent that a worker could not find by importing its module
├── NotPortable          a value that would not arrive in another process as it is; names the place in it
├── PlanInvalid          a plan with unknown agents, unknown needs, cycles or doubles
├── ToolFailed           a tool raised, or was called with wrong arguments; its text goes back to the model
├── TurnsExhausted       an attempt used all its turns on tools
├── GenerationFailed     the backend could not generate; carries its own error's name
├── BackendLost          the backend's process is gone; the attempt does not count
├── BackendFailed        the backend's model or device broke
└── BackendClosed        a call on a backend that was closed
"""

from __future__ import annotations

from typing import ClassVar


class AgentError(Exception):
    """Root of what this package raises; `retryable` says whether another attempt may succeed."""

    retryable: ClassVar[bool] = False


class AgentInvalid(AgentError):
    def __init__(self, agent: str, field: str, reason: str) -> None:
        self.agent, self.field, self.reason = agent, field, reason
        super().__init__(f"agent {agent!r}: {field}: {reason}")


class AgentNotImportable(AgentError):
    def __init__(self, agent: str, module: str) -> None:
        self.agent, self.module = agent, module
        super().__init__(
            f"agent {agent!r} cannot be found by importing {module!r}: bind it to a name at the top of a module, "
            f"so that workers can import it (or use isolation='inline')"
        )


class NotPortable(AgentError):
    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"the value at {path} cannot be carried to another process: {reason}")


class PlanInvalid(AgentError):
    pass


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
    """
    if isinstance(error, GenerationFailed):
        return error.kind, error.message, bool(error.retryable)
    kind = type(error).__name__
    own = hasattr(error, "retryable")
    message = str(error) if own else f"{kind}: {error}"
    return kind, message or kind, bool(getattr(error, "retryable", False))
