"""The engine process: loads the model, serves the workers, obeys the coordinator."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys

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

    _keep_freed_memory()
    uvloop.run(run_engine(msgspec.msgpack.decode(config, type=EngineConfig)))
    _leave()


def _leave() -> None:
    """End the process at once: all is closed, and to take torch apart costs a second and gives nothing back."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _keep_freed_memory() -> None:
    """Have glibc reuse the memory of temporary tensors instead of giving it back to the kernel at every step.

    Source: mallopt(3). Elsewhere than on glibc nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _MALLOC.values():
            mallopt(parameter, value)


_MALLOC = {
    "M_ARENA_MAX": (-8, 1),
    "M_MMAP_THRESHOLD": (-3, 32 * 2**20),
    "M_TRIM_THRESHOLD": (-1, 512 * 2**20),
    "M_TOP_PAD": (-2, 64 * 2**20),
}
