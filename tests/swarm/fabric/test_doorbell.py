import os
import select

import pytest

from swarmkv.swarm.fabric import Doorbell, SegmentInvalid


def rung(doorbell: Doorbell) -> bool:
    return bool(select.select([doorbell.fileno()], [], [], 0)[0])


def test_rings_add_up_until_they_are_cleared() -> None:
    doorbell = Doorbell.create()
    other = Doorbell.attach(os.dup(doorbell.fileno()))
    assert not rung(doorbell)
    other.ring()
    other.ring()
    assert rung(doorbell)
    doorbell.clear()
    assert not rung(doorbell)
    doorbell.clear()
    doorbell.close()
    doorbell.close()
    other.close()
    assert doorbell.fileno() == -1


def test_a_full_counter_neither_blocks_nor_raises() -> None:
    doorbell = Doorbell.create()
    os.eventfd_write(doorbell.fileno(), 2**64 - 2)
    doorbell.ring()
    assert rung(doorbell)
    doorbell.close()


def test_attach_refuses_a_descriptor_that_is_not_open() -> None:
    doorbell = Doorbell.create()
    fd = doorbell.fileno()
    doorbell.close()
    with pytest.raises(SegmentInvalid):
        Doorbell.attach(fd)
