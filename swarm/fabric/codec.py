"""Messages as bytes: msgpack, by the types of both directions."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import MessageInvalid, MessageTypeInvalid

# What msgspec raises for a value that msgpack cannot hold, and for bytes that are no message. ValueError is
# the root of its own errors and of Unicode's.
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
_UNDECODABLE = (ValueError, RecursionError)


class Codec:
    """Encodes what is sent, decodes what is received.

    Raises: MessageTypeInvalid if msgspec cannot describe a type.
    """

    def __init__(self, send_type: Any, receive_type: Any) -> None:
        self.send_name, self.receive_name = _name(send_type), _name(receive_type)
        _decoder(send_type)  # so that a type which only the peer would find unfit is found here
        self._decode = _decoder(receive_type).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def encode(self, message: Any) -> bytes:
        """Raises: MessageInvalid, such as for an integer of more than 64 bits or a lone surrogate."""
        try:
            return self._encode(message)
        except _UNENCODABLE as error:
            raise MessageInvalid("the peer", self.send_name, str(error)) from error

    def decode(self, frame: bytes) -> Any:
        """Raises: MessageInvalid."""
        try:
            return self._decode(frame)
        except _UNDECODABLE as error:
            raise MessageInvalid("us", self.receive_name, str(error)) from error


def _decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    try:
        return msgspec.msgpack.Decoder(type_)
    except (TypeError, msgspec.MsgspecError) as error:
        raise MessageTypeInvalid(_name(type_), str(error)) from error


def _name(type_: Any) -> str:
    return getattr(type_, "__name__", None) or str(type_)
