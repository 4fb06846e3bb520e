"""What a gate answers: a `Verdict`, which holds the value or the reasons against it."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

MAX_FEEDBACK_REASONS = 8
MAX_REASON_CHARS = 300


class Reject(msgspec.Struct, frozen=True):
    """One reason against an output: a value, not an exception.

    message: a sentence that a model can act on.
    path:    where, as a JSON path such as `$.items[2].name`; "" is the whole output.
    """

    message: str
    path: str = ""

    def sentence(self) -> str:
        """The reason in one line of at most about `MAX_REASON_CHARS` characters."""
        place = "" if self.path in ("", "$") else f"{shorten(self.path, MAX_REASON_CHARS // 2)}: "
        message = shorten(" ".join(self.message.split()), MAX_REASON_CHARS)
        return place + (message if message.endswith((".", "!", "?")) else message + ".")


class Verdict(msgspec.Struct, Generic[T], frozen=True):
    """The end of a judgement: accepted with a value, or rejected with reasons in the order of the checks."""

    accepted: bool
    value: T | None = None
    reasons: tuple[Reject, ...] = ()

    def feedback(self) -> str:
        """The text that is appended for the model's next attempt; "" after an acceptance.

        One line a reason, at most `MAX_FEEDBACK_REASONS` of them, so that it stays short in a small context.
        """
        if self.accepted:
            return ""
        lines = [f"- {reason.sentence()}" for reason in self.reasons[:MAX_FEEDBACK_REASONS]]
        return "\n".join(["Your answer was rejected.", *lines, "Answer again with the corrected JSON only."])


def shorten(text: str, limit: int) -> str:
    """The text, cut in its middle to `limit` characters if it is longer."""
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
