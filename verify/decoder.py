"""The strict gate of one type: bytes in, a value or a reason out."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

import msgspec

from . import explain, walk
from .proof import compile_proof
from .schema import describe
from .verdict import Reject

T = TypeVar("T")

MAX_DEPTH = 64
MAX_BYTES = 16 * 2**20
_DEPTH_CEILING = 256  # far below the recursion limits of msgspec, of the json module and of the walk


class StrictDecoder(Generic[T]):
    """Decodes JSON to T and rejects what msgspec alone lets through.

    Beyond msgspec's strict mode these are rejected, each with its JSON path: unknown fields of any object,
    superfluous items, duplicate keys, duplicates in a set, NaN and infinities (as decimals and as keys, too),
    invalid UTF-8 and lone surrogates anywhere, nesting of more than `max_depth` levels, and texts of more
    than `max_bytes`. A datetime must carry its time zone where the type says `msgspec.Meta(tz=True)`.

    Pure and synchronous; one decoder may be used from several threads at once.
    """

    @overload
    def __init__(self, type_: type[T], *, max_depth: int = ..., max_bytes: int = ...) -> None: ...
    @overload
    def __init__(
        self: StrictDecoder[Any], type_: Any, *, max_depth: int = ..., max_bytes: int = ...
    ) -> None: ...

    def __init__(self, type_: Any, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES) -> None:
        """Make the decoder of a type.

        Units:  max_depth counts nested objects and arrays; max_bytes is the length of the text in UTF-8.
        Raises: SchemaUnsupported if the type cannot be described or enforced; ValueError for a bad limit.
        """
        if not 1 <= max_depth <= _DEPTH_CEILING:
            raise ValueError(f"max_depth is {max_depth}; choose 1 to {_DEPTH_CEILING}")
        if max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; choose at least 1")
        self.type = type_
        self.max_depth = max_depth
        self.max_bytes = max_bytes
        self._info = describe(type_)
        self._decode = msgspec.json.Decoder(type_).decode
        self._is_plain = compile_proof(self._info, max_depth).fullmatch

    def decode(self, raw: bytes | str) -> T | Reject:
        """The value, or the first reason against it. Never raises for any bytes or text."""
        data = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
        if len(data) > self.max_bytes:
            return Reject(f"The text has {len(data)} bytes; at most {self.max_bytes} are allowed.", "$")
        try:
            value: T = self._decode(data)
            if self._is_plain(data) is not None:
                return value
            fault = self._exact_fault(data, value)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a __post_init__ may raise anything; a crash rejects
            return explain.failure(data, error, self._decode, self.max_depth)
        return value if fault is None else fault

    def _exact_fault(self, data: bytes, value: T) -> Reject | None:
        text = data.decode()  # of what msgspec skips, it checks the escapes, but not the UTF-8
        tree = walk.parse_tree(text)
        return walk.first_fault(self._info, tree, value, self.max_depth)
