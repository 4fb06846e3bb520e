"""A process that appends to a store until it is killed, or that opens one without the right to write."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from swarmkv.swarm.stores import JournalRecord, StoreError
from swarmkv.swarm.stores.sqlite import SqliteStore

NOBODY = 65534
WRITERS = 8


async def append_for_ever(path: str) -> None:
    """Print the number of each record once its append has returned."""
    store = await SqliteStore.open(path)
    numbers = itertools.count(1)

    async def writer() -> None:
        for number in numbers:
            await store.append([JournalRecord("run", number, "k", "t", b"x" * (number % 3000), number)])
            os.write(1, b"%d\n" % number)

    await asyncio.gather(*(writer() for _ in range(WRITERS)))


async def open_without_rights(path: str) -> None:
    await asyncio.to_thread(os.getpid)  # loads what the new user may not read
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        await SqliteStore.open(path)
    except StoreError as error:
        print(type(error).__name__, error)


if __name__ == "__main__":
    asyncio.run({"append": append_for_ever, "open": open_without_rights}[sys.argv[1]](sys.argv[2]))
