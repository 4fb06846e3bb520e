import contextlib
import os

import msgspec
import pytest

from swarmkv.swarm.fabric import Link, LinkEnd, RingSizeInvalid, SegmentInvalid, open_end


def test_what_one_side_writes_the_other_reads() -> None:
    with Link.create("test", 4096) as link:
        near, far = link.open(0), link.open(1)
    with contextlib.closing(near), contextlib.closing(far):
        near.writer.push(b"there")
        far.writer.push(b"and back")
        assert far.reader.pop() == b"there"
        assert near.reader.pop() == b"and back"
        near.peer_doorbell.ring()
        assert os.eventfd_read(far.own_doorbell.fileno()) == 1


def test_an_end_travels_as_data() -> None:
    with Link.create("test", 4096) as link:
        first, second = link.ends
        assert (first.side, second.side) == (0, 1)
        assert first.descriptors() == second.descriptors()
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(second), type=LinkEnd) == second
        assert second.with_descriptors((11, 12, 13, 14)).descriptors() == (11, 12, 13, 14)
        with pytest.raises(SegmentInvalid):
            second.with_descriptors((11, 12, 13))


def test_closing_the_link_leaves_open_ends_alone() -> None:
    link = Link.create("test", 4096)
    near = link.open(0)
    link.close()
    link.close()
    assert near.writer.push(b"still here")
    near.close()
    near.close()
    with pytest.raises(ValueError, match="released"):
        near.writer.push(b"")


def test_a_ring_size_is_checked_before_anything_is_made() -> None:
    with pytest.raises(RingSizeInvalid):
        Link.create("test", 1000)


@pytest.mark.parametrize("broken", range(4))
def test_an_end_that_does_not_open_closes_its_descriptors(broken: int) -> None:
    with Link.create("test", 4096) as link:
        fds = [os.dup(fd) for fd in link.ends[0].descriptors()]
    os.close(fds[broken])
    end = LinkEnd(0, 4096, (fds[0], fds[1]), (fds[2], fds[3]))
    with pytest.raises(SegmentInvalid):
        open_end(end)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_an_end_of_another_size_is_refused() -> None:
    with Link.create("test", 4096) as link:
        end = link.ends[0].with_descriptors([os.dup(fd) for fd in link.ends[0].descriptors()])
    with pytest.raises(SegmentInvalid):
        open_end(LinkEnd(0, 2048, end.ring_fds, end.doorbell_fds))
