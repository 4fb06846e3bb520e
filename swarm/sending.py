"""Sending from code that may not wait: an unbounded intention, a bounded ring.

Callbacks (a drained frame, a token) cannot suspend. They push here; frames that the ring has no room for wait in
order in a queue of their own, and one task moves them as room appears. The queue is bounded by what its owner has
in flight: one answer a request, and streamed text, which is merged per request while it waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from .fabric import Mailbox, PeerGone, RingFull

S = TypeVar("S")


class Sender(Generic[S]):
    """Sends a mailbox's messages in order, now if there is room and as soon as there is otherwise.

    What is pushed after the peer has gone is dropped: supervision tells the owner of the loss.
    """

    def __init__(self, mailbox: Mailbox[S, object]) -> None:
        self._mailbox = mailbox
        self._waiting: deque[S] = deque()
        self._mover: asyncio.Task[None] | None = None
        self._gone = False

    def push(self, message: S) -> None:
        """Send, or queue behind what waits already. Never suspends."""
        if self._gone:
            return
        if not self._waiting:
            try:
                self._mailbox.send_nowait(message)
            except RingFull:
                pass
            except PeerGone:
                self._gone = True
                return
            else:
                return
        self._waiting.append(message)
        if self._mover is None:
            self._mover = asyncio.get_running_loop().create_task(self._move())

    async def flush(self) -> None:
        """Wait until nothing waits any more."""
        if self._mover is not None:
            await asyncio.wait([self._mover])

    def close(self) -> None:
        """Drop what still waits."""
        self._gone = True
        self._waiting.clear()
        if self._mover is not None:
            self._mover.cancel()

    async def _move(self) -> None:
        try:
            while self._waiting:
                await self._mailbox.send(self._waiting[0])
                self._waiting.popleft()
        except PeerGone:
            self._gone = True
            self._waiting.clear()
        finally:
            self._mover = None
