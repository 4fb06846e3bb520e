"""The engine process: loads the model, serves the workers, obeys the coordinator."""

from __future__ import annotations

import asyncio
import os

import msgspec

from ..agents.backends.local import LocalBackend, LocalSettings
from ..agents.errors import describe
from .engine import CoordinatorLine, EngineServer, take_audit
from .fabric import LinkEnd, Mailbox, Segment, open_end
from .handover import Attach, ControlSocket
from .messages import (
    EngineFailed,
    EngineReady,
    EngineToWorker,
    FromEngine,
    ToEngine,
    WorkerToEngine,
)


class EngineConfig(msgspec.Struct, frozen=True):
    """What an engine process is started with."""

    settings: LocalSettings
    coordinator: LinkEnd
    control_fd: int
    table_fd: int
    table_bytes: int


async def run_engine(config: EngineConfig) -> None:
    """An engine's life, until the coordinator stops it or its device breaks."""
    mailbox: Mailbox[FromEngine, ToEngine] = Mailbox(open_end(config.coordinator), FromEngine, ToEngine)
    control = ControlSocket.adopt(config.control_fd)
    table = Segment.attach(config.table_fd, config.table_bytes)
    try:
        backend = await LocalBackend.open(config.settings, table=table.buffer)
        await backend.warm_up()
    except Exception as error:  # noqa: BLE001 - whatever keeps the model from loading is reported
        kind, message, _ = describe(error)
        await mailbox.send(EngineFailed(kind, message))
        mailbox.close()
        return
    server = EngineServer(backend)

    def attach(message: Attach) -> None:
        line: Mailbox[EngineToWorker, WorkerToEngine] = Mailbox(
            open_end(message.end), EngineToWorker, WorkerToEngine
        )
        server.attach_worker(message.peer, line)

    coordinator = CoordinatorLine(server, mailbox, lambda serial: take_audit(backend, serial))
    control.listen(attach)
    coordinator.send(
        EngineReady(
            pid=os.getpid(),
            model=config.settings.model,
            dtype=str(backend.pool.config.dtype).removeprefix("torch."),
            device=backend.pool.config.device,
            total_pages=backend.pool.total_pages,
            partition_pages=backend.partition_pages,
            page_size=backend.pool.config.page_size,
        )
    )
    stopped = asyncio.ensure_future(coordinator.stopped.wait())
    broken = asyncio.ensure_future(backend.broken.wait())
    await asyncio.wait([stopped, broken], return_when=asyncio.FIRST_COMPLETED)
    if broken.done():
        coordinator.send(EngineFailed("BackendFailed", str(backend.failure)))
    stopped.cancel()
    broken.cancel()
    server.close()
    await backend.aclose()
    await coordinator.close()
    control.close()
    mailbox.close()
    table.close()


def main(config: bytes) -> None:
    import uvloop

    uvloop.run(run_engine(msgspec.msgpack.decode(config, type=EngineConfig)))

