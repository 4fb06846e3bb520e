"""What wakes a sleeping peer: a counter in the kernel that an event loop can watch."""

from __future__ import annotations

import contextlib
import os

from .errors import SegmentInvalid


class Doorbell:
    """An eventfd. Rings add up until they are cleared, so a ring is never lost.

    Source: eventfd(2).
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def create(cls) -> Doorbell:
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    @classmethod
    def attach(cls, fd: int) -> Doorbell:
        """Use a doorbell that another process made. Takes the descriptor over.

        Raises: SegmentInvalid if the descriptor is not open.
        """
        try:
            os.set_inheritable(fd, False)
        except OSError as error:
            raise SegmentInvalid(f"descriptor {fd} is no doorbell ({error.strerror})") from error
        return cls(fd)

    def fileno(self) -> int:
        """The descriptor to watch for reading; -1 after close."""
        return self._fd

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the counter is at its end: it has been rung
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Take back all rings so far. Look at what they told of after this, never before."""
        with contextlib.suppress(BlockingIOError):  # it has not been rung
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
