"""What the fabric raises.

FabricError
├── SegmentExhausted    the machine has too little memory for a segment; nothing was made
├── SegmentInvalid      a descriptor that is not the segment, or not the ring, that was told
├── RingSizeInvalid     a ring of a size outside the limits
├── MessageTypeInvalid  a mailbox's type that msgspec cannot describe
├── MessageInvalid      a message that cannot be encoded, or a frame that is no message of the type
├── FrameTooLarge       a message that can never fit its ring; nothing was sent
├── RingFull            no room in the ring now; nothing was sent
├── RingEmpty           no frame in the ring now
├── FrameCorrupt        positions or lengths that no writer of ours leaves; the mailbox is of no use any more
├── PeerGone            the peer closed its mailbox or died
├── MailboxClosed       a call on a mailbox that this process closed
└── HandlerSet          `receive` on a mailbox whose frames go to its `on_message`
"""

from __future__ import annotations

from typing import ClassVar


class FabricError(Exception):
    """Root of what the fabric raises; `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False


class SegmentExhausted(FabricError):
    retryable = True

    def __init__(self, name: str, needed_bytes: int, reason: str) -> None:
        self.name, self.needed_bytes, self.reason = name, needed_bytes, reason
        super().__init__(
            f"there is no room for the segment {name!r} of {needed_bytes:,} bytes ({reason}); "
            "use smaller rings, fewer workers or a machine with more memory"
        )


class SegmentInvalid(FabricError):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"this is not the segment that was told: {reason}")


class RingSizeInvalid(FabricError):
    def __init__(self, ring_bytes: int, least_bytes: int, most_bytes: int) -> None:
        self.ring_bytes, self.least_bytes, self.most_bytes = ring_bytes, least_bytes, most_bytes
        super().__init__(
            f"a ring cannot have {ring_bytes:,} bytes; "
            f"it takes a multiple of 8 from {least_bytes:,} to {most_bytes:,}"
        )


class MessageTypeInvalid(FabricError):
    def __init__(self, type_name: str, reason: str) -> None:
        self.type_name, self.reason = type_name, reason
        super().__init__(f"{type_name} cannot be a mailbox's type: {reason}")


class MessageInvalid(FabricError):
    def __init__(self, direction: str, type_name: str, reason: str) -> None:
        self.direction, self.type_name, self.reason = direction, type_name, reason
        super().__init__(f"a message to {direction} is no {type_name}: {reason}")


class FrameTooLarge(FabricError):
    def __init__(self, frame_bytes: int, limit_bytes: int) -> None:
        self.frame_bytes, self.limit_bytes = frame_bytes, limit_bytes
        super().__init__(
            f"a message of {frame_bytes:,} bytes does not fit a ring whose frames have at most "
            f"{limit_bytes:,} bytes; send less at once or make the ring larger"
        )


class RingFull(FabricError):
    retryable = True

    def __init__(self, frame_bytes: int, capacity_bytes: int) -> None:
        self.frame_bytes, self.capacity_bytes = frame_bytes, capacity_bytes
        super().__init__(
            f"the ring of {capacity_bytes:,} bytes has no room for a frame of {frame_bytes:,} bytes now; "
            "await send() waits for it"
        )


class RingEmpty(FabricError):
    retryable = True

    def __init__(self) -> None:
        super().__init__("there is no frame in the ring now; await receive() waits for one")


class FrameCorrupt(FabricError):
    def __init__(self, what: str, value: int, position: int) -> None:
        self.what, self.value, self.position = what, value, position
        super().__init__(
            f"the peer left an impossible {what} ({value}) at position {position} of the ring; "
            "close this mailbox and replace the peer"
        )


class PeerGone(FabricError):
    """`orderly`: the peer closed its mailbox; otherwise supervision saw it die."""

    def __init__(self, orderly: bool) -> None:
        self.orderly = orderly
        super().__init__("the peer closed its mailbox" if orderly else "the peer's process is gone")


class MailboxClosed(FabricError):
    def __init__(self) -> None:
        super().__init__("this mailbox was closed; open a new link for a new conversation")


class HandlerSet(FabricError):
    def __init__(self) -> None:
        super().__init__("frames of this mailbox go to its on_message; set that to None to receive() them")
