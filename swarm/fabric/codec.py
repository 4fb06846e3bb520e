"""Messages as bytes: msgpack, by the types of both directions.

A frame is a batch: a msgpack array of one message or more. Each is encoded when it is sent, so that one which
cannot be is its sender's error; their bytes are put together later, without another look at them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import MessageInvalid, MessageTypeInvalid

# What msgspec raises for a value that msgpack cannot hold, and for bytes that are no message. ValueError is
# the root of its own errors and of Unicode's.
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
_UNDECODABLE = (ValueError, RecursionError)

BATCH_HEADER_BYTES = 5
_RAW_BATCH = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Codec:
    """Encodes what is sent, decodes what is received.

    Raises: MessageTypeInvalid if msgspec cannot describe a type.
    """

    def __init__(self, send_type: Any, receive_type: Any) -> None:
        self.send_name, self.receive_name = _name(send_type), _name(receive_type)
        _decoder(send_type)  # so that a type which only the peer would find unfit is found here
        self._decode = _decoder(receive_type).decode
        self._decode_batch = _decoder(list[receive_type]).decode  # type: ignore[valid-type]
        self._encode = msgspec.msgpack.Encoder().encode

    def encode(self, message: Any) -> bytes:
        """Raises: MessageInvalid, such as for an integer of more than 64 bits or a lone surrogate."""
        try:
            return self._encode(message)
        except _UNENCODABLE as error:
            raise MessageInvalid("the peer", self.send_name, str(error)) from error

    def decode(self, frame: bytes) -> list[Any]:
        """A frame's messages. One that is no message stands there as a MessageInvalid, and a frame that is no
        batch is one of them.
        """
        try:
            messages: list[Any] = self._decode_batch(frame)
            return messages
        except _UNDECODABLE as error:
            return self._decode_each(frame, error)

    def _decode_each(self, frame: bytes, error: Exception) -> list[Any]:
        try:
            parts = _RAW_BATCH.decode(frame)
        except _UNDECODABLE:
            return [self._invalid(error)]
        return [self._decode_one(part) for part in parts]

    def _decode_one(self, part: msgspec.Raw) -> Any:
        try:
            return self._decode(part)
        except _UNDECODABLE as error:
            return self._invalid(error)

    def _invalid(self, error: Exception) -> MessageInvalid:
        invalid = MessageInvalid("us", self.receive_name, str(error))
        invalid.__cause__ = error
        return invalid


def batch(messages: list[bytes]) -> bytes:
    """One frame of encoded messages: at most `BATCH_HEADER_BYTES` longer than they are."""
    count = len(messages)
    if count == 1:
        return b"\x91" + messages[0]
    return b"\xdd" + count.to_bytes(4, "big") + b"".join(messages)


def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    try:
        return msgspec.msgpack.Decoder(type_)
    except (TypeError, msgspec.MsgspecError) as error:
        raise MessageTypeInvalid(_name(type_), str(error)) from error


def _name(type_: Any) -> str:
    return getattr(type_, "__name__", None) or str(type_)
