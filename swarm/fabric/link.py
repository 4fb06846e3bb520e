"""Two rings and two doorbells between two processes.

    side 0  ── ring 0 ──▶  side 1        doorbell 0 wakes side 0: a frame in ring 1, or room in ring 0
            ◀── ring 1 ──                doorbell 1 wakes side 1

The process that makes a link opens one side itself (`Link.open`) or hands both out: each as a `LinkEnd`, in
the start configuration of a child that inherits the descriptors (they keep their numbers), or over a socket
(they do not).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Literal

import msgspec

from .doorbell import Doorbell
from .errors import SegmentInvalid
from .ring import RingReader, RingWriter, format_ring, ring_segment_bytes
from .segment import Segment

_DESCRIPTORS = 4


class LinkEnd(msgspec.Struct, frozen=True):
    """What a process needs to open its side of a link."""

    side: Literal[0, 1]
    ring_bytes: int
    """room of each ring"""
    ring_fds: tuple[int, int]
    """by the side that writes it"""
    doorbell_fds: tuple[int, int]
    """by the side that it wakes"""

    def descriptors(self) -> tuple[int, ...]:
        """All descriptors, in the order that `with_descriptors` takes."""
        return (*self.ring_fds, *self.doorbell_fds)

    def with_descriptors(self, fds: Sequence[int]) -> LinkEnd:
        """The same end where its descriptors have other numbers.

        Raises: SegmentInvalid unless there are as many as the end has.
        """
        if len(fds) != _DESCRIPTORS:
            raise SegmentInvalid(f"a link end has {_DESCRIPTORS} descriptors, not {len(fds)}")
        return LinkEnd(self.side, self.ring_bytes, (fds[0], fds[1]), (fds[2], fds[3]))


class Link:
    """A link that this process made. Closing it does not touch the ends that are open, here or elsewhere."""

    def __init__(self, ring_bytes: int, rings: tuple[Segment, Segment], doorbells: tuple[Doorbell, Doorbell]):
        self._ring_bytes, self._rings, self._doorbells = ring_bytes, rings, doorbells

    @classmethod
    def create(cls, name: str, ring_bytes: int) -> Link:
        """Make both rings and doorbells. Four descriptors, two times ring_bytes and 8 KiB of memory.

        Raises: RingSizeInvalid; SegmentExhausted, OSError (descriptors) with nothing left behind.
        """
        segment_bytes = ring_segment_bytes(ring_bytes)
        with contextlib.ExitStack() as made:
            rings = [made.enter_context(Segment.create(name, segment_bytes)) for _ in range(2)]
            for ring in rings:
                with ring.buffer as buffer:
                    format_ring(buffer)
            doorbells = [made.enter_context(contextlib.closing(Doorbell.create())) for _ in range(2)]
            made.pop_all()
        return cls(ring_bytes, (rings[0], rings[1]), (doorbells[0], doorbells[1]))

    @property
    def ends(self) -> tuple[LinkEnd, LinkEnd]:
        """Both sides by this process's descriptors, which are the link's: they close with it."""
        rings, doorbells = self._rings, self._doorbells
        ring_fds = (rings[0].fd, rings[1].fd)
        doorbell_fds = (doorbells[0].fileno(), doorbells[1].fileno())
        return (
            LinkEnd(0, self._ring_bytes, ring_fds, doorbell_fds),
            LinkEnd(1, self._ring_bytes, ring_fds, doorbell_fds),
        )

    def open(self, side: Literal[0, 1]) -> OpenEnd:
        """Open a side in this process, with descriptors of its own."""
        return open_end(duplicate_end(self.ends[side]))

    def close(self) -> None:
        """Close this process's descriptors of the link. Idempotent."""
        for part in (*self._rings, *self._doorbells):
            part.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OpenEnd:
    """One side of a link, open in this process: what a mailbox stands on. Owns its descriptors."""

    def __init__(
        self, segments: tuple[Segment, Segment], doorbells: tuple[Doorbell, Doorbell], side: int
    ) -> None:
        self._segments = segments
        self._writer_buffer, self._reader_buffer = segments[side].buffer, segments[1 - side].buffer
        self.writer = RingWriter(self._writer_buffer)
        try:
            self.reader = RingReader(self._reader_buffer)
        except BaseException:
            self.writer.release()
            raise
        self.own_doorbell, self.peer_doorbell = doorbells[side], doorbells[1 - side]

    def close(self) -> None:
        """Release the rings' memory and the descriptors; tells the peer nothing. Idempotent."""
        self.writer.release()
        self.reader.release()
        for part in (self._writer_buffer, self._reader_buffer):
            part.release()
        for resource in (*self._segments, self.own_doorbell, self.peer_doorbell):
            resource.close()


def open_end(end: LinkEnd) -> OpenEnd:
    """Attach a side of a link. Takes its descriptors over, also when it raises.

    Raises: SegmentInvalid if a descriptor is not what the end says.
    """
    segments: list[Segment] = []
    doorbells: list[Doorbell] = []
    try:
        segment_bytes = ring_segment_bytes(end.ring_bytes)
        for fd in end.ring_fds:
            segments.append(Segment.attach(fd, segment_bytes))
        for fd in end.doorbell_fds:
            doorbells.append(Doorbell.attach(fd))
        return OpenEnd((segments[0], segments[1]), (doorbells[0], doorbells[1]), end.side)
    except BaseException:
        taken: list[Segment | Doorbell] = [*segments, *doorbells]
        for resource in taken:
            resource.close()
        for fd in end.descriptors()[len(taken) :]:
            with contextlib.suppress(OSError):
                os.close(fd)
        raise


def duplicate_end(end: LinkEnd) -> LinkEnd:
    """The same end by descriptors of its own, for instance to open it and leave the link's to the link."""
    return end.with_descriptors(_duplicate(end.descriptors()))


def _duplicate(fds: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))
    except OSError:
        for copy in copies:
            os.close(copy)
        raise
    return copies
