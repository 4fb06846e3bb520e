"""What the runtime raises. A rejected output is never an exception: it is an Outcome that is not accepted.

SwarmError
├── SettingInvalid     a setting outside its range, or unknown; names the nearest
├── InputInvalid       a task's input that cannot be carried to a worker; names the place
├── StartFailed        a process of the swarm did not come up; nothing runs
├── EngineBroken       the engine died or failed again and again; tasks in flight have failed
├── SwarmClosed        a call on a swarm that is not open
├── TaskFailed         `Outcome.require` on a task that was not accepted
├── ScriptInvalid      `swarmkv run` cannot run this script
└── StoreError         what a store raises: see `swarm.stores.errors`

The fabric has a root of its own, `FabricError` in `swarm.fabric.errors`: it stands alone below the runtime.
"""

from __future__ import annotations

from typing import ClassVar


class SwarmError(Exception):
    """Root of what the runtime raises; `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False


class SettingInvalid(SwarmError):
    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name, self.value, self.allowed = name, value, allowed
        super().__init__(f"{name}={value!r} is not allowed; it takes {allowed}")


class InputInvalid(SwarmError):
    pass


class StartFailed(SwarmError):
    def __init__(self, process: str, reason: str) -> None:
        self.process, self.reason = process, reason
        super().__init__(f"the {process} did not start: {reason}")


class EngineBroken(SwarmError):
    retryable = True


class SwarmClosed(SwarmError):
    def __init__(self) -> None:
        super().__init__("this swarm is not open; use it inside `async with Swarm(...) as swarm:`")


class TaskFailed(SwarmError):
    def __init__(self, task: str, reason: str) -> None:
        self.task, self.reason = task, reason
        super().__init__(f"task {task} was not accepted: {reason}")


class ScriptInvalid(SwarmError):
    pass
