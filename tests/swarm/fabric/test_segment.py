import os
import resource
import subprocess
import sys

import pytest

from swarmkv.swarm.fabric import Segment, SegmentExhausted, SegmentInvalid


def test_two_views_of_one_descriptor_share_the_memory() -> None:
    with Segment.create("test", 8192) as made, Segment.attach(os.dup(made.fd), 8192) as attached:
        assert len(made.buffer) == 8192
        assert bytes(made.buffer) == bytes(8192)
        made.buffer[4097] = 7
        assert attached.buffer[4097] == 7


def test_close_is_idempotent_and_ends_use() -> None:
    segment = Segment.create("test", 4096)
    segment.close()
    segment.close()
    assert segment.fd == -1
    with pytest.raises(ValueError, match="released"):
        _ = segment.buffer


def test_a_view_that_is_held_stays_valid_after_close() -> None:
    segment = Segment.create("test", 4096)
    view = segment.buffer
    view[0] = 9
    segment.close()
    assert view[0] == 9


def test_an_attached_segment_outlives_its_maker() -> None:
    made = Segment.create("test", 4096)
    made.buffer[0] = 5
    attached = Segment.attach(os.dup(made.fd), 4096)
    made.close()
    with attached:
        assert attached.buffer[0] == 5


def test_a_segment_cannot_be_shrunk_under_its_holders() -> None:
    with Segment.create("test", 8192) as segment, pytest.raises(PermissionError):
        os.ftruncate(segment.fd, 4096)


def test_a_child_does_not_inherit_an_attached_descriptor() -> None:
    with Segment.create("test", 4096) as made:
        fd = os.dup(made.fd)
        os.set_inheritable(fd, True)
        with Segment.attach(fd, 4096):
            assert not os.get_inheritable(fd)


@pytest.mark.parametrize("size_bytes", [0, -1, 8193])
def test_attach_refuses_a_size_that_is_not_there(size_bytes: int) -> None:
    with Segment.create("test", 8192) as made:
        with pytest.raises(SegmentInvalid):
            Segment.attach(made.fd, size_bytes)
        os.fstat(made.fd)  # still the caller's


def test_attach_refuses_what_cannot_be_mapped() -> None:
    read_fd, write_fd = os.pipe()
    try:
        with pytest.raises(SegmentInvalid):
            Segment.attach(read_fd, 4096)
    finally:
        os.close(read_fd)
        os.close(write_fd)


def test_create_refuses_what_the_machine_does_not_have() -> None:
    with pytest.raises(SegmentExhausted) as caught:
        Segment.create("huge", 2**60)
    assert caught.value.needed_bytes == 2**60
    assert caught.value.retryable
    with pytest.raises(SegmentInvalid):
        Segment.create("none", 0)


def test_too_little_room_is_an_error_and_no_signal() -> None:
    code = (
        "from swarmkv.swarm.fabric import Segment, SegmentExhausted\n"
        "try: Segment.create('test', 1 << 20)\n"
        "except SegmentExhausted as error: print(error.needed_bytes)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=limit)
    assert done.stdout.split() == ["1048576"], done.stderr


def test_an_unclosed_segment_warns() -> None:
    with pytest.warns(ResourceWarning, match="unclosed segment"):
        Segment.create("test", 4096).__del__()
