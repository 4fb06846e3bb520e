"""Both event loops, and links with a mailbox on each side."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

# So that both this process and the spawned ones find fabric_peers.
sys.path.append(str(Path(__file__).parent))

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run(loop_name: str) -> Run:
    """Runs a coroutine to its end on one of the loops."""

    def limited(main: Coroutine[Any, Any, None]) -> None:
        (uvloop.run if loop_name == "uvloop" else asyncio.run)(asyncio.wait_for(main, 30))

    return limited


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    """Exactly those descriptors are open after a test that were before it."""
    for first_use in (asyncio.run, uvloop.run):  # which opens some for good
        first_use(asyncio.sleep(0))
    before = _descriptors()
    yield
    gc.collect()
    assert _descriptors() == before


def _descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


@pytest.fixture
def open_pair() -> Callable[..., Any]:
    """Two mailboxes of one link, both in this process."""
    from fabric_peers import FromPeer, ToPeer

    from swarmkv.swarm.fabric import Link, Mailbox

    @contextlib.asynccontextmanager
    async def pair(ring_bytes: int = 4096) -> AsyncIterator[tuple[Any, Any]]:
        with Link.create("test", ring_bytes) as link:
            ours = Mailbox(link.open(0), ToPeer, FromPeer)
            theirs = Mailbox(link.open(1), FromPeer, ToPeer)
        async with ours, theirs:
            yield ours, theirs

    return pair


@pytest.fixture
def open_peer(loop_name: str) -> Callable[..., Any]:
    """A mailbox to a spawned process that plays a role of fabric_peers, on the same kind of loop."""
    import msgspec
    from fabric_peers import FromPeer, PeerConfig, ToPeer

    from swarmkv.swarm.fabric import Link, Mailbox
    from swarmkv.swarm.process import spawn

    @contextlib.asynccontextmanager
    async def peer(role: str, ring_bytes: int = 65536) -> AsyncIterator[tuple[Any, Any]]:
        with Link.create("test", ring_bytes) as link:
            config = msgspec.msgpack.encode(PeerConfig(link.ends[1], role, loop_name))
            child = spawn("fabric_peers", config, link.ends[1].descriptors())
            mailbox = Mailbox(link.open(0), ToPeer, FromPeer)
        try:
            yield mailbox, child
        finally:
            mailbox.close()
            await child.stop(10)

    return peer
