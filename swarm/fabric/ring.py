"""Frames of bytes in shared memory: one producer, one consumer, no lock.

Layout of a ring's memory, in bytes; all words are unsigned, 64 bits, in the machine's order, and each has one
writer:

       0  magic and version        creator
       8  capacity_bytes           creator
     512  tail                     producer   position behind the last frame published
     520  wanted_head              producer   0, or the head that it sleeps for: it waits for room
     528  closed                   producer   1: nothing follows
    1024  head                     consumer   position before the next frame to read
    1032  asleep_at                consumer   0, or 1 + the head at which it sleeps: it waits for a frame
    1040  closed                   consumer   1: nothing is read any more
    4096  data                     capacity_bytes

Positions count bytes since the beginning and never wrap; a position's place in the data is position %
capacity_bytes. A frame begins at a multiple of 8: its length (32 bits), its payload, and padding to a
multiple of 8. It is never split: where it does not fit before the end of the data, the length 0xFFFFFFFF (the
wrap marker) stands, and it begins at 0.

Limits: capacity_bytes is a multiple of 8 from 1 KiB to 1 GiB. A frame's record is at most half of it, so that
it fits an empty ring wherever it begins.

Order: a producer writes the payload first and the tail last. Who wants to sleep announces it, then looks once
more; who has moved an index looks for an announcement after that. A full fence stands between the two steps
on both sides (see `fence`): so at least one of them sees the other's step, and no wake-up is lost. An
announcement is a position, which tells one sleep from the next: the peer rings once for each and no word
needs two writers.

Neither side trusts the other's words: positions and lengths are checked before they are used.
"""

from __future__ import annotations

from .errors import FrameCorrupt, FrameTooLarge, RingSizeInvalid, SegmentInvalid
from .fence import WEAKLY_ORDERED, full_fence

HEADER_BYTES = 4096
LEAST_RING_BYTES = 1024
MOST_RING_BYTES = 2**30

_MAGIC_AND_VERSION = int.from_bytes(b"swkvrng\x01", "big")
_LENGTH_BYTES = 4
_WRAP = 0xFFFFFFFF

# Words of the header, by index.
_MAGIC, _CAPACITY = 0, 1
_TAIL, _WANTED_HEAD, _PRODUCER_CLOSED = 64, 65, 66
_HEAD, _ASLEEP_AT, _CONSUMER_CLOSED = 128, 129, 130


def ring_segment_bytes(ring_bytes: int) -> int:
    """The size of the segment for a ring with this much room.

    Raises: RingSizeInvalid.
    """
    if not LEAST_RING_BYTES <= ring_bytes <= MOST_RING_BYTES or ring_bytes % 8:
        raise RingSizeInvalid(ring_bytes, LEAST_RING_BYTES, MOST_RING_BYTES)
    return HEADER_BYTES + ring_bytes


def format_ring(buffer: memoryview) -> None:
    """Make zeroed memory an empty ring. Its creator does so once, before any process opens it.

    Raises: RingSizeInvalid if the memory has no fitting size.
    """
    capacity_bytes = len(buffer) - HEADER_BYTES
    ring_segment_bytes(capacity_bytes)
    with buffer[:HEADER_BYTES] as header, header.cast("Q") as words:
        words[_CAPACITY] = capacity_bytes
        words[_MAGIC] = _MAGIC_AND_VERSION


class _RingSide:
    """What both sides hold: views of the ring's memory."""

    def __init__(self, buffer: memoryview) -> None:
        capacity_bytes = len(buffer) - HEADER_BYTES
        ring_segment_bytes(capacity_bytes)
        self._words = buffer[:HEADER_BYTES].cast("Q")
        if self._words[_MAGIC] != _MAGIC_AND_VERSION or self._words[_CAPACITY] != capacity_bytes:
            self._words.release()
            raise SegmentInvalid(f"no ring of this version with {capacity_bytes:,} bytes of room")
        self._data = buffer[HEADER_BYTES:]
        self._lengths = self._data.cast("I")
        self._rung = 0
        self.capacity_bytes = capacity_bytes
        self.frames = 0

    def release(self) -> None:
        """Let go of the memory; any use after it raises ValueError. Idempotent."""
        for view in (self._words, self._lengths, self._data):
            view.release()


class RingWriter(_RingSide):
    """The producer's side. One object, in one thread, for the ring's life.

    Raises: SegmentInvalid if the memory holds no ring of this version and size.
    """

    def __init__(self, buffer: memoryview) -> None:
        super().__init__(buffer)
        self.tail = self._words[_TAIL]
        self._head_seen = self._words[_HEAD]
        self.limit_bytes = self.capacity_bytes // 16 * 8 - _LENGTH_BYTES
        """the longest payload"""

    def push(self, payload: bytes) -> bool:
        """Publish a frame. False if there is no room now; nothing has changed then.

        Raises: FrameTooLarge if it can never fit; FrameCorrupt if the consumer's position is impossible.
        """
        length = len(payload)
        if length > self.limit_bytes:
            raise FrameTooLarge(length, self.limit_bytes)
        tail, capacity = self.tail, self.capacity_bytes
        place = tail % capacity
        step = (length + 11) & ~7
        skip = 0 if place + step <= capacity else capacity - place
        after = tail + skip + step
        if after - self._head_seen > capacity and after - self._observe_head() > capacity:
            return False
        if skip:
            self._lengths[place >> 2] = _WRAP
            place = 0
        self._lengths[place >> 2] = length
        place += _LENGTH_BYTES
        self._data[place : place + length] = payload
        if WEAKLY_ORDERED:
            full_fence()
        self._words[_TAIL] = self.tail = after
        self.frames += 1
        return True

    def room_bytes(self) -> int:
        """The longest payload that `push` takes now; less than 0 if there is none. All shorter ones fit, too.

        Raises: FrameCorrupt as `push` does.
        """
        capacity = self.capacity_bytes
        free = capacity - (self.tail - self._observe_head())
        to_end = capacity - self.tail % capacity
        return min(max(min(to_end, free), free - to_end) - _LENGTH_BYTES, self.limit_bytes)

    def announce_wait(self, payload_bytes: int) -> bool:
        """Tell the consumer to ring when there is room for such a payload and half the ring is free.

        False if there is room already: push again. Nothing is announced then.
        """
        tail, capacity = self.tail, self.capacity_bytes
        place = tail % capacity
        step = (payload_bytes + 11) & ~7
        skip = 0 if place + step <= capacity else capacity - place
        least_head = tail + skip + step - capacity
        if least_head > 0:
            self._words[_WANTED_HEAD] = max(least_head, tail - capacity // 2)
            full_fence()
            if self._observe_head() < least_head:
                return True
            self.withdraw_wait()
        return False

    def withdraw_wait(self) -> None:
        self._words[_WANTED_HEAD] = 0

    def doorbell_due(self) -> bool:
        """Whether the consumer sleeps before a frame published; asked after a push. True once a sleep."""
        full_fence()
        asleep_at = self._words[_ASLEEP_AT]
        if asleep_at in (0, self._rung) or asleep_at > self.tail:
            return False
        self._rung = asleep_at
        return True

    @property
    def used_bytes(self) -> int:
        """Bytes that the consumer has not read yet, with padding."""
        return self.tail - self._observe_head()

    @property
    def reader_closed(self) -> bool:
        return self._words[_CONSUMER_CLOSED] != 0

    def close(self) -> None:
        """Say that nothing follows. The doorbell is the caller's to ring."""
        if WEAKLY_ORDERED:
            full_fence()
        self._words[_PRODUCER_CLOSED] = 1

    def _observe_head(self) -> int:
        head = self._words[_HEAD]
        if not self._head_seen <= head <= self.tail or head % 8:
            raise FrameCorrupt("head", head, self.tail)
        if WEAKLY_ORDERED:
            full_fence()
        self._head_seen = head
        return head


class RingReader(_RingSide):
    """The consumer's side. One object, in one thread, for the ring's life.

    Raises: SegmentInvalid if the memory holds no ring of this version and size.
    """

    def __init__(self, buffer: memoryview) -> None:
        super().__init__(buffer)
        self.head = self._words[_HEAD]

    def pop(self) -> bytes | None:
        """The next frame, copied out of the ring; None if there is none.

        Raises: FrameCorrupt if it is malformed; it stays where it is, and so does all behind it.
        """
        frames = self._read(1)
        return frames[0] if frames else None

    def drain(self) -> list[bytes]:
        """All frames published so far, in order, copied out of the ring: at most the ring's capacity.

        Raises: FrameCorrupt if the first one is malformed. One further back ends the drain before it.
        """
        return self._read(self.capacity_bytes)

    def announce_sleep(self) -> bool:
        """Tell the producer to ring for the next frame. False if one is there: read it; nothing is announced
        then.
        """
        self._words[_ASLEEP_AT] = self.head + 1
        full_fence()
        if self._words[_TAIL] == self.head:
            return True
        self.withdraw_sleep()
        return False

    def withdraw_sleep(self) -> None:
        self._words[_ASLEEP_AT] = 0

    def doorbell_due(self) -> bool:
        """Whether the producer sleeps and has its room; asked after a read. True once a sleep."""
        full_fence()
        wanted_head = self._words[_WANTED_HEAD]
        if wanted_head in (0, self._rung) or wanted_head > self.head:
            return False
        self._rung = wanted_head
        return True

    @property
    def used_bytes(self) -> int:
        """Bytes that were published and not read yet, with padding."""
        return self._observe_tail() - self.head

    @property
    def writer_closed(self) -> bool:
        closed = self._words[_PRODUCER_CLOSED] != 0
        if WEAKLY_ORDERED:
            full_fence()
        return closed

    def close(self) -> None:
        """Say that nothing is read any more. The doorbell is the caller's to ring."""
        self._words[_CONSUMER_CLOSED] = 1

    def _read(self, most_frames: int) -> list[bytes]:
        tail, head, capacity = self._observe_tail(), self.head, self.capacity_bytes
        lengths, data = self._lengths, self._data
        frames: list[bytes] = []
        while head != tail and len(frames) < most_frames:
            place = head % capacity
            length = lengths[place >> 2]
            if length == _WRAP and head + capacity - place < tail:
                head += capacity - place
                place = 0
                length = lengths[0]
            step = (length + 11) & ~7
            if place + step > capacity or head + step > tail:
                if frames:
                    break
                raise FrameCorrupt("length", length, head)
            place += _LENGTH_BYTES
            frames.append(bytes(data[place : place + length]))
            head += step
        if frames:
            if WEAKLY_ORDERED:
                full_fence()
            self._words[_HEAD] = self.head = head
            self.frames += len(frames)
        return frames

    def _observe_tail(self) -> int:
        tail = self._words[_TAIL]
        if not self.head <= tail <= self.head + self.capacity_bytes or tail % 8:
            raise FrameCorrupt("tail", tail, self.head)
        if WEAKLY_ORDERED:
            full_fence()
        return tail
