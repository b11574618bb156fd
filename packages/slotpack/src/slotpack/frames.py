"""The outside of a frame: kinds, limits, the 32-byte header and varints.

The layout is specified in docs/slotpack-format.md.  Every check here has its twin in csrc/frame.c, in the same order.
"""

import dataclasses
import enum
import struct

from slotpack.errors import (
    BadHeader,
    BadMagic,
    BadVarint,
    EncodeError,
    OversizeFrame,
    TrailingBytes,
    TruncatedFrame,
    frame_error_of,
)

MAGIC = b"SLTPK001"
HEADER_BYTES = 32
MAX_RAW_BYTES = 40 * 2**20
MAX_FRAME_BYTES = MAX_RAW_BYTES + HEADER_BYTES

_HEADER = struct.Struct("<8s6I")


class Kind(enum.IntEnum):
    """How a frame represents its bytes."""

    RAW = 0
    BYTES = 1
    WORDS = 2
    QUANTIZED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameHeader:
    """The decoded header of a frame.

    Attributes:
        raw_bytes: Length of the decoded bytes.
        kind: Representation.
        weight_bytes: Packed 4-bit weights at the front of a quantised block, else 0.
        group_size: Weights that share a scale, 32 or 64, else 0.
    """

    raw_bytes: int
    kind: Kind
    weight_bytes: int = 0
    group_size: int = 0

    @property
    def group_count(self) -> int:
        """Quantisation groups of the block; 0 for the other kinds."""
        return 2 * self.weight_bytes // self.group_size if self.group_size else 0

    def to_bytes(self) -> bytes:
        """Return the 32 header bytes."""
        return _HEADER.pack(MAGIC, self.raw_bytes, self.kind, self.weight_bytes, self.group_size, 0, 0)


def shape_problem(raw_bytes: int, kind: int, weight_bytes: int, group_size: int) -> str | None:
    """Say why a block cannot be coded as `kind`, or return None when it can."""
    if not 0 <= kind <= 3:
        return f"kind {kind} does not exist; use 0 to 3"
    if raw_bytes < 1:
        return "a frame holds at least one byte"
    if kind != Kind.QUANTIZED:
        if weight_bytes or group_size:
            return f"weight_bytes={weight_bytes} and group_size={group_size} belong to kind 3, not to kind {kind}"
        if kind == Kind.WORDS and raw_bytes % 2:
            return f"kind 2 holds 16-bit words, and {raw_bytes} bytes is an odd length"
        return None
    if group_size not in (32, 64):
        return f"group_size is 32 or 64, not {group_size}"
    if not 0 < weight_bytes <= raw_bytes or weight_bytes % (group_size // 2):
        return f"weight_bytes={weight_bytes} is not a positive multiple of {group_size // 2} within {raw_bytes} bytes"
    expected = weight_bytes + 4 * (2 * weight_bytes // group_size)
    if expected != raw_bytes:
        return f"{weight_bytes} weight bytes in groups of {group_size} make {expected} bytes, not {raw_bytes}"
    return None


def check_encodable(raw_bytes: int, kind: int, weight_bytes: int, group_size: int) -> None:
    """Refuse a block that the requested kind cannot hold.

    Raises:
        EncodeError: With the numbers that do not fit.
    """
    if raw_bytes > MAX_RAW_BYTES:
        raise EncodeError(f"a frame holds at most {MAX_RAW_BYTES:,} bytes, not {raw_bytes:,}; split the block")
    problem = shape_problem(raw_bytes, kind, weight_bytes, group_size)
    if problem is not None:
        raise EncodeError(problem)


def read_header(frame: bytes | bytearray | memoryview) -> FrameHeader:
    """Validate a frame's header against the format and the frame's length.

    Raises:
        FrameError: The matching subclass when the header breaks the format.
    """
    size = len(frame)
    if size > MAX_FRAME_BYTES:
        raise frame_error_of(OversizeFrame)
    if bytes(frame[:8]) != MAGIC[: min(size, 8)]:
        raise frame_error_of(BadMagic)
    if size < HEADER_BYTES:
        raise frame_error_of(TruncatedFrame)
    _magic, raw_bytes, kind, weight_bytes, group_size, *reserved = _HEADER.unpack(bytes(frame[:HEADER_BYTES]))
    if raw_bytes > MAX_RAW_BYTES:
        raise frame_error_of(OversizeFrame)
    if any(reserved) or shape_problem(raw_bytes, kind, weight_bytes, group_size) is not None:
        raise frame_error_of(BadHeader)
    header = FrameHeader(raw_bytes=raw_bytes, kind=Kind(kind), weight_bytes=weight_bytes, group_size=group_size)
    if header.kind is Kind.RAW and size != raw_bytes + HEADER_BYTES:
        raise frame_error_of(TruncatedFrame if size < raw_bytes + HEADER_BYTES else TrailingBytes)
    return header


def write_varint(value: int) -> bytes:
    """Return `value` (below 2^32) as canonical unsigned LEB128."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read a canonical varint; return its value and the position after it.

    Raises:
        TruncatedFrame: When the data ends inside the varint.
        BadVarint: When it is not canonical or exceeds 32 bits.
    """
    value = 0
    for index in range(5):
        if position == len(data):
            raise frame_error_of(TruncatedFrame)
        byte = data[position]
        position += 1
        if index == 4 and byte > 15:
            raise frame_error_of(BadVarint)
        value |= (byte & 127) << 7 * index
        if byte < 128:
            if byte == 0 and index > 0:
                raise frame_error_of(BadVarint)
            return value, position
    raise frame_error_of(BadVarint)
