"""One shared-memory region without a name: it lives as long as a process holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import warnings
from types import TracebackType

from .errors import SegmentExhausted, SegmentInvalid

# So that no peer can shrink it under us: touching a page beyond the end would be a SIGBUS.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG)


class Segment:
    """A mapped region and its descriptor. Owns both until it is closed.

    Source: memfd_create(2), fcntl(2) on file sealing.
    """

    def __init__(self, fd: int, mapping: mmap.mmap) -> None:
        self._fd = fd
        self._mapping: mmap.mmap | None = mapping
        self._buffer = memoryview(mapping)

    @classmethod
    def create(cls, name: str, size_bytes: int) -> Segment:
        """Make a segment of zeros. The name is for /proc alone; two segments may share it.

        Raises: SegmentExhausted if the memory is not there (never a SIGBUS later); nothing was made then.
        """
        if size_bytes <= 0:
            raise SegmentInvalid(f"a size of {size_bytes} bytes")
        available_bytes = _available_bytes()
        if size_bytes > available_bytes:
            raise SegmentExhausted(name, size_bytes, f"{available_bytes:,} bytes are available")
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, mmap.mmap(fd, size_bytes))
        except OSError as error:
            os.close(fd)
            if error.errno in _NO_ROOM:
                raise SegmentExhausted(name, size_bytes, os.strerror(error.errno)) from error
            raise

    @classmethod
    def attach(cls, fd: int, size_bytes: int) -> Segment:
        """Map a segment that another process made. Takes the descriptor over.

        Raises: SegmentInvalid if the descriptor has fewer bytes; the descriptor is the caller's still.
        """
        try:
            there_bytes = os.fstat(fd).st_size
            if not 0 < size_bytes <= there_bytes:
                raise SegmentInvalid(f"descriptor {fd} has {there_bytes:,} bytes, not {size_bytes:,}")
            mapping = mmap.mmap(fd, size_bytes)
        except OSError as error:
            raise SegmentInvalid(f"descriptor {fd} cannot be mapped ({error.strerror})") from error
        os.set_inheritable(fd, False)
        return cls(fd, mapping)

    @property
    def fd(self) -> int:
        """The descriptor; -1 after close."""
        return self._fd

    @property
    def buffer(self) -> memoryview:
        """uint8[size_bytes], shared with all holders of the segment. Raises ValueError after close."""
        return self._buffer[:]

    def close(self) -> None:
        """Give the region up. Idempotent.

        Views of `buffer` that are still held stay valid and keep the memory; it goes with the last of them.
        """
        if self._mapping is None:
            return
        mapping, self._mapping = self._mapping, None
        os.close(self._fd)
        self._fd = -1
        self._buffer.release()
        with contextlib.suppress(BufferError):  # views are held: unmapped with the last of them
            mapping.close()

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_mapping", None) is not None:
            warnings.warn(f"unclosed segment {self._fd}", ResourceWarning, stacklevel=1, source=self)
            self.close()


def _available_bytes() -> int:
    """Memory that can be had without swapping. memfd itself has no limit: it would meet the OOM killer."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("Linux since 3.14 tells MemAvailable")
