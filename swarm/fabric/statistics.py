"""What a mailbox tells of itself."""

from __future__ import annotations

import msgspec


class MailboxStatistics(msgspec.Struct, frozen=True):
    """A mailbox at one moment. Bytes are those of the rings, with lengths and padding."""

    sent_messages: int
    sent_frames: int
    """those of one turn of the loop travel in one frame"""
    sent_bytes: int
    received_messages: int
    received_frames: int
    received_bytes: int
    doorbells_rung: int
    wakeups: int
    waiting_senders: int
    waiting_receivers: int
    out_used_bytes: int
    in_used_bytes: int
    ring_bytes: int
