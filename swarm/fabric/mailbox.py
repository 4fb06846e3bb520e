"""A process's typed endpoint over one end of a link.

    send ─▶ encode ─▶ outbox ─▶ (once a loop turn) one frame in ring out ─▶ (if the peer sleeps) doorbell
    doorbell ─▶ ring in ─▶ decode ─▶ on_message, or a waiting receive

What is sent in one turn of the loop travels as one frame. The outbox takes only what has room in the ring for
sure, so what was sent is as good as there; what has no room waits, or is refused.

Messages are taken in one of two styles: an owner sets `on_message`, and is called for each; or it awaits
`receive`. In both, a wake-up takes all that is there, and the mailbox looks once more after it has told the
peer that it sleeps.

How a conversation ends: the peer closes its mailbox, supervision calls `peer_lost`, or the ring is found
corrupt. Then whoever waits to send is told at once, and whoever receives after the messages that are in the
ring already.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .codec import BATCH_HEADER_BYTES, Codec, batch
from .errors import (
    FabricError,
    FrameCorrupt,
    FrameTooLarge,
    HandlerSet,
    MailboxClosed,
    MessageInvalid,
    PeerGone,
    RingEmpty,
    RingFull,
)
from .link import OpenEnd
from .statistics import MailboxStatistics

Out_contra = TypeVar("Out_contra", contravariant=True)
In_co = TypeVar("In_co", covariant=True)


class Mailbox(Generic[Out_contra, In_co]):
    """Sends messages of one type and receives messages of another; both may be unions of tagged structs.

    Takes the end over. Belongs to the event loop in which it is made, and to that loop's thread alone.

    Raises: MessageTypeInvalid if msgspec cannot describe a type; the end is the caller's still.
    """

    def __init__(self, end: OpenEnd, send_type: Any, receive_type: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._codec = Codec(send_type, receive_type)
        self._end = end
        self._writer, self._reader = end.writer, end.reader
        self._message_limit = end.writer.limit_bytes - BATCH_HEADER_BYTES
        self._outbox: list[bytes] = []
        self._outbox_room = 0
        """bytes that the outbox may still take, so that it fits the ring as one frame"""
        self._senders: deque[tuple[asyncio.Future[FabricError | None], bytes]] = deque()
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._drained: deque[Any] = deque()
        """messages that were taken out of the ring, and MessageInvalid in the place of what was none"""
        self._on_message: Callable[[Any], None] | None = None
        self.on_error: Callable[[FabricError], None] | None = None
        """Where frames go to on_message: told of each that is no message (MessageInvalid) and, after the
        last, of the end (PeerGone, FrameCorrupt). Without it, all but PeerGone goes to the loop's exception
        handler."""
        self._ended: FabricError | None = None
        self._end_told = False
        self._closed = False
        self._flush_due = self._look_due = False
        self._doorbells_rung = self._wakeups = self._sent = self._received = 0
        self._loop.add_reader(end.own_doorbell.fileno(), self._wake)
        # The peer may have closed before we watched.
        self._loop.call_soon(self._wake)

    # Sending

    async def send(self, message: Out_contra) -> None:
        """Send, and wait for room in the ring if there is none; those who wait are served in order.

        A cancelled send has sent the whole message, or nothing.
        Raises: PeerGone, MailboxClosed, FrameCorrupt, also while it waits; FrameTooLarge, MessageInvalid with
        nothing sent.
        """
        payload = self._codec.encode(message)
        if self._pushed(payload):
            return
        outcome: asyncio.Future[FabricError | None] = self._loop.create_future()
        waiting = (outcome, payload)
        self._senders.append(waiting)
        if len(self._senders) == 1:
            self._push_waiting()
        try:
            error = await outcome
        except asyncio.CancelledError:
            if waiting in self._senders:
                self._senders.remove(waiting)
                self._push_waiting()
            raise
        if error is not None:
            raise error

    def send_nowait(self, message: Out_contra) -> None:
        """Send, or raise RingFull with nothing sent; likewise if others wait to send.

        Raises: RingFull, PeerGone, MailboxClosed, FrameCorrupt, FrameTooLarge, MessageInvalid.
        """
        payload = self._codec.encode(message)
        if not self._pushed(payload):
            raise RingFull(len(payload), self._writer.capacity_bytes)

    def _pushed(self, payload: bytes) -> bool:
        """Into the outbox, if it has room there and nobody waits."""
        self._check_sendable(payload)
        if self._senders:
            return False
        if len(payload) > self._outbox_room and not self._make_room(len(payload)):
            return False
        self._outbox_room -= len(payload)
        self._outbox.append(payload)
        self._plan_flush()
        return True

    def _make_room(self, payload_bytes: int) -> bool:
        """Put the outbox into the ring and see how much it may take next. Raises: FrameCorrupt."""
        try:
            self._push_outbox()
            self._outbox_room = self._writer.room_bytes() - BATCH_HEADER_BYTES
        except FrameCorrupt as error:
            self._finish(error)
            raise
        return payload_bytes <= self._outbox_room

    def _push_outbox(self) -> None:
        outbox = self._outbox
        if outbox:
            self._outbox, self._outbox_room = [], 0
            self._sent += len(outbox)
            pushed = self._writer.push(batch(outbox))
            assert pushed, "the outbox takes only what has room"

    def _check_sendable(self, payload: bytes) -> None:
        if self._closed:
            raise MailboxClosed
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if len(payload) > self._message_limit:
            raise FrameTooLarge(len(payload), self._message_limit)

    def _push_waiting(self) -> None:
        """Move what waits into the ring, in order, as far as there is room; then ask to be woken for more."""
        writer, senders = self._writer, self._senders
        try:
            self._push_outbox()
            while senders:
                outcome, payload = senders[0]
                if outcome.done():
                    senders.popleft()
                elif writer.push(batch([payload])):
                    senders.popleft()
                    self._sent += 1
                    outcome.set_result(None)
                elif writer.announce_wait(len(payload) + 1):
                    break
            else:
                writer.withdraw_wait()
        except FrameCorrupt as error:
            self._finish(error)
        self._plan_flush()

    # Receiving

    @property
    def on_message(self) -> Callable[[Any], None] | None:
        """Called for each message, in order, in a turn of the loop of its own kind; None: `receive` takes
        them.

        It may send, close the mailbox or set another handler. What it raises goes to the loop's exception
        handler; the next message follows all the same.
        """
        return self._on_message

    @on_message.setter
    def on_message(self, handler: Callable[[In_co], None] | None) -> None:
        self._on_message = handler
        if handler is not None:
            self._plan_look()

    async def receive(self) -> In_co:
        """The next message; waits for one.

        Raises: PeerGone, FrameCorrupt after the last message; MailboxClosed; HandlerSet; MessageInvalid for
        what is no message, which is gone then.
        """
        while True:
            try:
                return self.receive_nowait()
            except RingEmpty:
                await self._frame()

    def receive_nowait(self) -> In_co:
        """The next message.

        Raises: RingEmpty if there is none now; else as `receive`.
        """
        if self._closed:
            raise MailboxClosed
        if self._on_message is not None:
            raise HandlerSet
        if not self._drained:
            self._take_frame()
        if not self._drained:
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            raise RingEmpty
        taken = self._drained.popleft()
        if self._receivers:
            self._wake_receiver()
        if isinstance(taken, MessageInvalid):
            raise taken
        self._received += 1
        message: In_co = taken
        return message

    def _take_frame(self) -> None:
        try:
            while not self._drained and (frame := self._reader.pop()) is not None:
                self._drained.extend(self._codec.decode(frame))
                self._plan_flush()
        except FrameCorrupt as error:
            self._finish(error)

    async def _frame(self) -> None:
        """Wait until there may be a frame."""
        if not self._reader.announce_sleep():
            return
        arrived: asyncio.Future[None] = self._loop.create_future()
        self._receivers.append(arrived)
        try:
            await arrived
        except asyncio.CancelledError:
            if arrived in self._receivers:
                self._receivers.remove(arrived)
            elif not arrived.cancelled():
                self._wake_receiver()  # the wake-up was ours: the next in line has it
            raise

    def _wake_receiver(self) -> None:
        while self._receivers:
            arrived = self._receivers.popleft()
            if not arrived.done():
                arrived.set_result(None)
                return

    def __aiter__(self) -> Self:
        """Messages until the peer closes its mailbox in order. Raises: as `receive` otherwise."""
        return self

    async def __anext__(self) -> In_co:
        try:
            return await self.receive()
        except PeerGone as error:
            if error.orderly:
                raise StopAsyncIteration from None
            raise

    # Wake-ups

    def _wake(self) -> None:
        """The doorbell was rung: there may be frames, room, or an end."""
        if self._closed:
            return
        self._end.own_doorbell.clear()
        self._wakeups += 1
        if self._ended is None and self._peer_closed():
            self._finish(PeerGone(orderly=True))
        if self._senders:
            self._push_waiting()
        self._reader.withdraw_sleep()
        if self._on_message is None:
            self._wake_receiver()
        elif not self._look_due:
            self._look()

    def _plan_look(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Hand all frames there are to on_message; then look once more, or sleep."""
        self._look_due = False
        if self._closed or self._on_message is None:
            return
        if not self._drained:
            self._drain()
        if self._drained:
            self._plan_look()
            self._deliver()
        elif self._ended is not None:
            self._tell_end(self._ended)
        elif not self._reader.announce_sleep():
            self._plan_look()

    def _drain(self) -> None:
        try:
            for frame in self._reader.drain():
                self._drained.extend(self._codec.decode(frame))
        except FrameCorrupt as error:
            self._finish(error)
        self._plan_flush()

    def _deliver(self) -> None:
        drained = self._drained
        while drained and (handler := self._on_message) is not None:
            message = drained.popleft()
            if isinstance(message, MessageInvalid):
                self._report(message)
            else:
                self._received += 1
                handler(message)

    def _report(self, error: FabricError) -> None:
        if self.on_error is not None:
            self.on_error(error)
        elif not isinstance(error, PeerGone):
            self._loop.call_exception_handler({"message": "a mailbox without on_error", "exception": error})

    def _tell_end(self, error: FabricError) -> None:
        if not self._end_told:
            self._end_told = True
            self._report(error)

    def _plan_flush(self) -> None:
        """After this turn of the loop, put all that was sent into the ring, and ring the peer's doorbell if it
        sleeps."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._closed:
            return
        try:
            self._push_outbox()
        except FrameCorrupt as error:
            self._finish(error)
        frame_due, room_due = self._writer.doorbell_due(), self._reader.doorbell_due()
        if frame_due or room_due:
            self._doorbells_rung += 1
            self._end.peer_doorbell.ring()

    # Ends

    def peer_lost(self) -> None:
        """Supervision says that the peer's process is gone. Idempotent; nothing changes after an end."""
        if not self._closed:
            self._finish(PeerGone(orderly=self._peer_closed()))

    def _peer_closed(self) -> bool:
        return self._reader.writer_closed or self._writer.reader_closed

    def _finish(self, error: FabricError) -> None:
        """The conversation is over: nothing more can be sent, and nothing more will come."""
        if self._ended is not None:
            return
        self._ended = error
        self._release_waiting(error)
        if self._on_message is not None:
            self._plan_look()

    def _release_waiting(self, error: FabricError) -> None:
        senders, receivers = list(self._senders), list(self._receivers)
        self._senders.clear()
        self._receivers.clear()
        for outcome, _ in senders:
            if not outcome.done():
                outcome.set_result(error)
        for arrived in receivers:
            if not arrived.done():
                arrived.set_result(None)

    def close(self) -> None:
        """Tell the peer, and release the end. Idempotent.

        What was sent is still delivered there. Frames that were not received here are dropped, and whoever
        waits here gets MailboxClosed.
        """
        if self._closed:
            return
        self._closed = True
        self._on_message = None
        self._drained.clear()
        self._release_waiting(MailboxClosed())
        if self._ended is None:
            with contextlib.suppress(FrameCorrupt):
                self._push_outbox()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._end.own_doorbell.fileno())
        self._writer.close()
        self._reader.close()
        self._end.peer_doorbell.ring()
        self._end.close()

    async def aclose(self) -> None:
        """`close`, for those who expect a coroutine."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(
                f"unclosed mailbox of {self._codec.receive_name}", ResourceWarning, stacklevel=1, source=self
            )
            self.close()

    def statistics(self) -> MailboxStatistics:
        """Counts since the mailbox was made, and what waits now. Raises: MailboxClosed, FrameCorrupt."""
        if self._closed:
            raise MailboxClosed
        return MailboxStatistics(
            sent_messages=self._sent + len(self._outbox),
            sent_frames=self._writer.frames,
            sent_bytes=self._writer.tail,
            received_messages=self._received,
            received_frames=self._reader.frames,
            received_bytes=self._reader.head,
            doorbells_rung=self._doorbells_rung,
            wakeups=self._wakeups,
            waiting_senders=len(self._senders),
            waiting_receivers=len(self._receivers),
            out_used_bytes=self._writer.used_bytes,
            in_used_bytes=self._reader.used_bytes,
            ring_bytes=self._writer.capacity_bytes,
        )
