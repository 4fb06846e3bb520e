"""Sending from code that may not wait: an unbounded intention, a bounded ring.

Callbacks (a drained frame, a token) cannot suspend. They push here; frames that the ring has no room for wait in
order in a queue of their own, and one task moves them as room appears. The queue is bounded by what its owner has
in flight: one answer a request, and its text where it is streamed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from .fabric import FrameTooLarge, Mailbox, MessageInvalid, PeerGone, RingFull

S = TypeVar("S")

PIECE_CHARS = 4_096
"""of a streamed text in one frame: at most 16 KiB, which every ring can take"""

Unsendable = FrameTooLarge | MessageInvalid
OnUnsendable = Callable[[Unsendable], None]


class Sender(Generic[S]):
    """Sends a mailbox's messages in order, now if there is room and as soon as there is otherwise.

    What is pushed after the peer has gone is dropped: supervision tells the owner of the loss.
    """

    def __init__(self, mailbox: Mailbox[S, object]) -> None:
        self._mailbox = mailbox
        self._waiting: deque[tuple[S, OnUnsendable]] = deque()
        self._mover: asyncio.Task[None] | None = None
        self._gone = False

    def push(self, message: S, on_unsendable: OnUnsendable = lambda error: None) -> None:
        """Send, or queue behind what waits already. Never suspends.

        A message that cannot be sent at all (too large for the ring, a text that is not Unicode) is dropped, and
        `on_unsendable` is called: now, or when its turn comes.
        """
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
            except (FrameTooLarge, MessageInvalid) as error:
                on_unsendable(error)
                return
            else:
                return
        self._waiting.append((message, on_unsendable))
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
                message, on_unsendable = self._waiting[0]
                try:
                    await self._mailbox.send(message)
                except (FrameTooLarge, MessageInvalid) as error:
                    on_unsendable(error)
                self._waiting.popleft()
        except PeerGone:
            self._gone = True
            self._waiting.clear()
        finally:
            self._mover = None


def pieces(text: str) -> Iterator[str]:
    """A streamed text, cut so that each piece fits a frame."""
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]


def why_unsendable(what: str, error: Unsendable) -> str:
    """What the user is told of a message that was not sent."""
    mend = "; raise ring_bytes, or make it smaller" if isinstance(error, FrameTooLarge) else ""
    return f"{what} cannot be sent: {error}{mend}"
