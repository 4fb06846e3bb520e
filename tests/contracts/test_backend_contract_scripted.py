from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backend_contract import BackendContract

from swarmkv.agents import Backend
from swarmkv.agents.backends.scripted import ScriptedBackend


async def let_others_go_on() -> None:
    await asyncio.sleep(0)


class TestScriptedBackend(BackendContract):
    @asynccontextmanager
    async def open_backend(self) -> AsyncIterator[Backend]:
        yield ScriptedBackend(lambda key, messages: f"{'la ' * 20}{key.task}", delay=let_others_go_on)
