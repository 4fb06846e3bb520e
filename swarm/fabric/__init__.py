"""The message fabric: typed mailboxes between the processes of one host, over shared memory.

The layout, from the bottom:

    segment   one anonymous shared-memory region
    fence     what keeps loads and stores in order between two processors
    ring      frames of bytes in a segment: one producer, one consumer
    doorbell  what wakes a sleeping peer
    link      two rings and two doorbells; a `LinkEnd` tells a process which side is its own
    codec     messages as bytes
    mailbox   a process's typed async endpoint over one end; statistics: what it tells of itself

A link has no name: its descriptors are inherited, and all of it is gone when the last process is.
"""

from .doorbell import Doorbell
from .errors import (
    FabricError,
    FrameCorrupt,
    FrameTooLarge,
    HandlerSet,
    MailboxClosed,
    MessageInvalid,
    MessageTypeInvalid,
    PeerGone,
    RingEmpty,
    RingFull,
    RingSizeInvalid,
    SegmentExhausted,
    SegmentInvalid,
)
from .link import Link, LinkEnd, OpenEnd, duplicate_end, open_end
from .mailbox import Mailbox
from .ring import RingReader, RingWriter
from .segment import Segment
from .statistics import MailboxStatistics

__all__ = [
    "Doorbell",
    "FabricError",
    "FrameCorrupt",
    "FrameTooLarge",
    "HandlerSet",
    "Link",
    "LinkEnd",
    "Mailbox",
    "MailboxClosed",
    "MailboxStatistics",
    "MessageInvalid",
    "MessageTypeInvalid",
    "OpenEnd",
    "PeerGone",
    "RingEmpty",
    "RingFull",
    "RingReader",
    "RingSizeInvalid",
    "RingWriter",
    "Segment",
    "SegmentExhausted",
    "SegmentInvalid",
    "duplicate_end",
    "open_end",
]
