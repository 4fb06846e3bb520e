"""What verify raises. A rejected output is never among these: it is a value, a `Reject`.

VerifyError
├── SchemaUnsupported    a type that msgspec cannot describe, or that cannot be enforced strictly
├── CheckUnusable        a check that cannot be called with (value, ctx)
├── GrammarUnsupported   a schema or tokenizer from which no token grammar can be made
├── TokenRefused         a token that the grammar does not allow at this place
└── MatcherFailed        a matcher that ran into a limit of the grammar engine, or was rolled back too far
"""

from __future__ import annotations

from typing import ClassVar


class VerifyError(Exception):
    """The root of all errors of this package."""

    retryable: ClassVar[bool] = False


class SchemaUnsupported(VerifyError):
    """An output type cannot be gated; `path` names the field, such as `$.items[].price`."""

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        self.path = path
        self.type_name = type_name
        self.reason = reason
        super().__init__(f"the type of {path} ({type_name}) cannot be gated: {reason}")


class CheckUnusable(VerifyError):
    """A check cannot be called with (value, ctx)."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name} is no check: {reason}; write it as fn(value, ctx) -> Reject | None")


class GrammarUnsupported(VerifyError):
    """No token grammar can be made from this schema or tokenizer."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no grammar for constrained decoding: {reason}")


class TokenRefused(VerifyError):
    """The grammar does not allow this token here; sample under the matcher's mask."""

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        super().__init__(f"token {token_id} is not allowed here; sample only tokens that the mask allows")


class MatcherFailed(VerifyError):
    """The matcher cannot go on; begin a new one, with a simpler schema if a limit was met."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the token matcher cannot go on: {reason}")
