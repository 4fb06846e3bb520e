"""The engine process: loads the model, serves the workers, obeys the coordinator."""

from __future__ import annotations

import asyncio
import os

import msgspec

from ..agents.backends.local import LocalBackend, LocalSettings
from ..agents.errors import describe
from .engine import CoordinatorLine, EngineServer
from .fabric import LinkEnd, Mailbox, Segment, open_end
from .handover import Attach, ControlSocket
from .messages import (
    AuditTaken,
    EngineFailed,
    EngineReady,
    EngineToWorker,
    FromEngine,
    ToEngine,
    WorkerToEngine,
)
from .process import child_main


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

    async def take_audit(serial: int) -> FromEngine:
        from ..kvcore.errors import BooksUnbalanced

        try:
            books = await backend.audit()
        except BooksUnbalanced as error:
            return AuditTaken(serial, backend.pool.total_pages, 0, 0, 0, str(error))
        return AuditTaken(
            serial, books.total_pages, books.free_pages, books.held_pages, books.cached_pages
        )

    coordinator = CoordinatorLine(server, mailbox, take_audit)
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


if __name__ == "__main__":
    child_main(main)
