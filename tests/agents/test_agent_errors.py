from __future__ import annotations

import msgspec
import pytest

from swarmkv.agents import errors
from swarmkv.agents.errors import (
    AgentError,
    BackendClosed,
    BackendLost,
    GenerationFailed,
    TurnsExhausted,
    describe,
)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "kind", "message", "retryable"),
    [
        (TurnsExhausted("reader", 8), "TurnsExhausted", "agent 'reader' gave no output within 8 turns", True),
        (BackendClosed(), "BackendClosed", "this backend was closed", False),
        (GenerationFailed("PoolExhausted", "no page", retryable=True), "PoolExhausted", "no page", True),
        (GenerationFailed("TooLong", "12 tokens", retryable=False), "TooLong", "12 tokens", False),
        (KeyError("symbol"), "KeyError", "KeyError: 'symbol'", False),
        (ValueError(), "ValueError", "ValueError", False),
        (Mute(), "Mute", "Mute", False),
        (ValueError("bad \ud800"), "ValueError", "ValueError: bad ?", False),
    ],
)
def test_an_error_is_described_as_it_travels(
    error: Exception, kind: str, message: str, retryable: bool
) -> None:
    assert describe(error) == (kind, message, retryable)
    assert msgspec.msgpack.encode(describe(error))


def test_a_long_message_is_cut() -> None:
    _, message, _ = describe(ValueError("x" * 10**6))
    assert len(message) == errors.MAX_MESSAGE_CHARS
    assert message.endswith("…")


def test_the_tree_is_drawn_whole() -> None:
    leaves = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, AgentError) and value is not AgentError
    }
    assert errors.__doc__ is not None
    drawn = {line.split()[1] for line in errors.__doc__.splitlines() if line.startswith(("├", "└"))}
    assert drawn == leaves


def test_only_what_another_attempt_may_mend_is_retryable() -> None:
    assert BackendLost.retryable
    assert not errors.AgentInvalid.retryable
    assert not errors.PromptFailed.retryable
