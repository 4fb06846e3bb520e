"""One dispatched attempt, in whichever process: find the agent, run it against a backend, and say how it ended."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..agents import AttemptRequest, Backend, Context, Usage, find_agent, run_attempt
from ..agents.errors import describe
from .messages import AttemptFailed, Dispatch, Output


async def carry_out(
    dispatch: Dispatch, backend: Backend, on_text: Callable[[str], None] | None
) -> Output | AttemptFailed:
    """Never raises but for cancellation: whatever the user's code raises fails its attempt."""
    key = dispatch.key
    try:
        agent = find_agent(dispatch.agent)
        ctx = Context(
            input=msgspec.msgpack.decode(dispatch.input),
            run_id=key.run,
            task_id=key.task,
            agent=agent.name,
            attempt=key.attempt,
            results=msgspec.msgpack.decode(dispatch.results),
        )
        output = await run_attempt(
            agent, AttemptRequest(key, dispatch.feedback, dispatch.seed), ctx, backend, on_text
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        kind, text, retryable = describe(error)
        return AttemptFailed(key, kind, text, retryable, Usage())
    return Output(key, output.text, output.finish, output.usage)
