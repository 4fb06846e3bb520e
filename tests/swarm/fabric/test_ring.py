from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmkv.swarm.fabric import (
    FrameCorrupt,
    FrameTooLarge,
    RingReader,
    RingSizeInvalid,
    RingWriter,
    SegmentInvalid,
)
from swarmkv.swarm.fabric.ring import HEADER_BYTES, format_ring, ring_segment_bytes

TAIL, HEAD = 64, 128  # words of the header, as the module's docstring says


def make_ring(ring_bytes: int = 1024) -> tuple[memoryview, RingWriter, RingReader]:
    memory = memoryview(bytearray(ring_segment_bytes(ring_bytes)))
    format_ring(memory)
    return memory, RingWriter(memory), RingReader(memory)


@settings(max_examples=150, deadline=None)
@given(
    ring_bytes=st.integers(128, 300).map(lambda words: words * 8),
    steps=st.lists(
        st.one_of(st.integers(0, 600).map(lambda size: ("push", size)), st.sampled_from(["pop", "drain"])),
        max_size=120,
    ),
)
def test_a_ring_is_a_bounded_queue(ring_bytes: int, steps: list[tuple[str, int] | str]) -> None:
    """Against a deque: nothing lost, changed or reordered; full only if it is; used bytes balance."""
    _, writer, reader = make_ring(ring_bytes)
    model: deque[bytes] = deque()
    content = random.Random(1)
    for step in steps:
        if step == "pop":
            assert reader.pop() == (model.popleft() if model else None)
        elif step == "drain":
            assert reader.drain() == list(model)
            model.clear()
        else:
            payload = content.randbytes(step[1])
            if len(payload) > writer.limit_bytes:
                with pytest.raises(FrameTooLarge):
                    writer.push(payload)
                continue
            used, room = writer.used_bytes, writer.room_bytes()
            done = writer.push(payload)
            assert done == (len(payload) <= room)
            if done:
                model.append(payload)
            else:
                # A refusal is right only if the frame, with all that a wrap may skip, has no room.
                assert used + 2 * (len(payload) + 11) > ring_bytes
                assert writer.used_bytes == used
        assert writer.used_bytes == reader.used_bytes <= ring_bytes
    assert reader.drain() == list(model)
    assert writer.used_bytes == 0


@pytest.mark.parametrize("place", range(0, 1024, 8))
def test_the_longest_frame_fits_an_empty_ring_wherever_it_begins(place: int) -> None:
    _, writer, reader = make_ring(1024)
    for _ in range(place // 8):
        assert writer.push(b"")
        assert reader.pop() == b""
    longest = bytes(range(256)) * 2
    longest = longest[: writer.limit_bytes]
    assert len(longest) == 508
    assert writer.push(longest)
    assert reader.drain() == [longest]


def test_a_frame_beyond_the_limit_names_it() -> None:
    _, writer, reader = make_ring(1024)
    with pytest.raises(FrameTooLarge) as caught:
        writer.push(bytes(509))
    assert (caught.value.frame_bytes, caught.value.limit_bytes) == (509, 508)
    assert reader.pop() is None


@pytest.mark.parametrize("ring_bytes", [0, 1016, 1028, 2**30 + 8])
def test_a_ring_size_outside_the_limits_is_refused(ring_bytes: int) -> None:
    with pytest.raises(RingSizeInvalid) as caught:
        ring_segment_bytes(ring_bytes)
    assert (caught.value.least_bytes, caught.value.most_bytes) == (1024, 2**30)


def test_memory_that_is_no_ring_is_refused() -> None:
    with pytest.raises(SegmentInvalid):
        RingReader(memoryview(bytearray(ring_segment_bytes(1024))))
    memory, _, _ = make_ring(2048)
    with pytest.raises(SegmentInvalid):
        RingWriter(memory[: ring_segment_bytes(1024)])
    with pytest.raises(RingSizeInvalid):
        RingWriter(memory[:100])


@pytest.mark.parametrize("length", [1, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF])
def test_an_impossible_length_is_an_error_and_stays_one(length: int) -> None:
    memory, writer, reader = make_ring()
    writer.push(b"first")
    writer.push(b"")
    memory[HEADER_BYTES:].cast("I")[4] = length + 4 if length == 1 else length
    assert reader.drain() == [b"first"]
    for read in (reader.pop, reader.drain):
        with pytest.raises(FrameCorrupt) as caught:
            read()
        assert caught.value.what == "length"


def test_a_frame_across_the_end_of_the_data_is_an_error() -> None:
    memory, writer, reader = make_ring()
    for _ in range(4):
        writer.push(bytes(124))
    assert len(reader.drain()) == 4
    while writer.push(bytes(124)):
        pass
    memory[HEADER_BYTES:].cast("I")[512 // 4] = 520 - 4  # published to be there, but the data ends after 512
    with pytest.raises(FrameCorrupt) as caught:
        reader.pop()
    assert (caught.value.value, caught.value.position) == (516, 512)


def test_a_wrap_marker_with_nothing_behind_it_is_an_error() -> None:
    memory, writer, reader = make_ring()
    for _ in range(4):
        writer.push(bytes(200))
    assert len(reader.drain()) == 4
    place = writer.tail
    memory[HEADER_BYTES:].cast("I")[place // 4] = 0xFFFFFFFF
    memory[:HEADER_BYTES].cast("Q")[TAIL] = 1024
    with pytest.raises(FrameCorrupt):
        reader.pop()


@pytest.mark.parametrize("tail", [1, 7, 1032, 2**64 - 8])
def test_an_impossible_tail_is_an_error(tail: int) -> None:
    memory, _, reader = make_ring()
    memory[:HEADER_BYTES].cast("Q")[TAIL] = tail
    with pytest.raises(FrameCorrupt) as caught:
        reader.pop()
    assert (caught.value.what, caught.value.value) == ("tail", tail)


@pytest.mark.parametrize("head", [1, 2**40, 2**64 - 8])
def test_an_impossible_head_is_an_error(head: int) -> None:
    memory, writer, _ = make_ring()
    while writer.push(bytes(100)):
        pass
    memory[:HEADER_BYTES].cast("Q")[HEAD] = head
    with pytest.raises(FrameCorrupt) as caught:
        writer.push(bytes(100))
    assert (caught.value.what, caught.value.value) == ("head", head)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), positions=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3))
def test_arbitrary_memory_gives_frames_or_a_typed_error(seed: int, positions: list[int]) -> None:
    memory, _, reader = make_ring()
    memory[HEADER_BYTES:] = random.Random(seed).randbytes(1024)
    for tail in [position % 1025 // 8 * 8 for position in positions] + positions:
        memory[:HEADER_BYTES].cast("Q")[TAIL] = tail
        try:
            frames = reader.drain()
        except FrameCorrupt:
            continue
        assert sum(map(len, frames)) <= 1024


def test_a_reader_rings_are_due_once_a_sleep() -> None:
    _, writer, reader = make_ring()
    assert not writer.doorbell_due()
    assert reader.announce_sleep()
    assert not writer.doorbell_due()  # nothing was published that it could wake for
    writer.push(b"one")
    assert writer.doorbell_due()
    writer.push(b"two")
    assert not writer.doorbell_due()
    assert not reader.announce_sleep()
    assert reader.drain() == [b"one", b"two"]
    assert reader.announce_sleep()
    writer.push(b"three")
    assert writer.doorbell_due()


def test_a_withdrawn_sleep_needs_no_ring() -> None:
    _, writer, reader = make_ring()
    assert reader.announce_sleep()
    reader.withdraw_sleep()
    writer.push(b"")
    assert not writer.doorbell_due()


def test_a_writer_is_rung_once_half_the_ring_is_free() -> None:
    _, writer, reader = make_ring()
    while writer.push(bytes(60)):
        pass
    assert writer.announce_wait(60)
    rings = []
    while reader.pop() is not None:
        rings.append(reader.doorbell_due())
    assert rings.count(True) == 1
    assert rings.index(True) == len(rings) // 2 - 1
    assert not writer.announce_wait(60)  # there is room: no wait
    assert writer.push(bytes(60))


def test_a_writer_that_needs_more_is_rung_when_that_is_free() -> None:
    _, writer, reader = make_ring()
    while writer.push(bytes(60)):
        pass
    assert writer.announce_wait(508)
    while not reader.doorbell_due():
        assert reader.pop() is not None
    assert writer.push(bytes(508))


def test_closing_is_seen_by_the_other_side_after_the_last_frame() -> None:
    _, writer, reader = make_ring()
    writer.push(b"last")
    assert not reader.writer_closed
    assert not writer.reader_closed
    writer.close()
    assert reader.writer_closed
    assert reader.drain() == [b"last"]
    reader.close()
    assert writer.reader_closed


def test_a_released_side_is_of_no_use() -> None:
    _, writer, reader = make_ring()
    for side in (writer, reader):
        side.release()
        side.release()
    with pytest.raises(ValueError, match="released"):
        writer.push(b"")
    with pytest.raises(ValueError, match="released"):
        reader.pop()
