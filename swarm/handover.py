"""Handing descriptors to a running child: a Unix socket that carries messages with descriptors attached.

A worker or engine that is replaced needs fresh rings with its living peers. The coordinator makes the link and
sends each peer its end over the peer's control socket (SCM_RIGHTS); nothing ever has a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import msgspec

from .fabric import LinkEnd

_MAX_MESSAGE_BYTES = 4096
_MAX_DESCRIPTORS = 8


class Attach(msgspec.Struct, frozen=True):
    """A link end for the receiver. `peer` is the worker's index, or -1 for the engine."""

    peer: int
    end: LinkEnd


class ControlSocket:
    """One side of a coordinator's control socket to a child."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop: asyncio.AbstractEventLoop | None = None
        sock.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[ControlSocket, socket.socket]:
        """The coordinator's side, and the socket whose descriptor the child inherits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        return cls(ours), theirs

    @classmethod
    def adopt(cls, fd: int) -> ControlSocket:
        """The child's side, from the inherited descriptor."""
        return cls(socket.socket(fileno=fd))

    def send(self, attach: Attach) -> None:
        """Hand over an end. The receiver gets duplicates; the sender closes its own when it likes.

        Dropped if the receiver has just died: supervision tells the owner of the loss.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._socket, [msgspec.msgpack.encode(attach)], attach.end.descriptors())

    def listen(self, on_attach: Callable[[Attach], None]) -> None:
        """Call back for each end that arrives, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive, on_attach)

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._loop = None
        self._socket.close()

    def _receive(self, on_attach: Callable[[Attach], None]) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
        except BlockingIOError:
            return
        if not data:  # the coordinator is gone; the lifeline ends this process
            assert self._loop is not None
            self._loop.remove_reader(self._socket.fileno())
            return
        attach = msgspec.msgpack.decode(data, type=Attach)
        on_attach(Attach(attach.peer, attach.end.with_descriptors(fds)))
