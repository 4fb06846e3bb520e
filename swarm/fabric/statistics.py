"""What a mailbox tells of itself."""

from __future__ import annotations

import msgspec


class MailboxStatistics(msgspec.Struct, frozen=True):
    """A mailbox at one moment. Bytes are those of the rings, with lengths and padding."""

    sent_frames: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    doorbells_rung: int
    wakeups: int
    waiting_senders: int
    waiting_receivers: int
    out_used_bytes: int
    in_used_bytes: int
    ring_bytes: int
