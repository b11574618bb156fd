"""Frames in and out: the C coder where it was built, the Python reference elsewhere.

`backend` says which one this installation uses.  Both produce and accept exactly the same bytes and refuse a broken
frame with the same error.
"""

import importlib
import os
import types
from collections.abc import Sequence
from typing import Literal, Protocol

from slotpack import _reference
from slotpack.errors import EncodeError, FrameError, frame_error
from slotpack.frames import HEADER_BYTES, FrameHeader, Kind, check_encodable

Backend = Literal["c", "python"]
Buffer = bytes | bytearray | memoryview

_NOT_SMALLER = 12
_TOO_MANY_CONTEXTS = 13
PURE_PYTHON_VARIABLE = "SLOTPACK_PURE_PYTHON"
"""Environment variable that selects the reference when it is set to anything but 0; for tests and comparisons."""


class Coder(Protocol):
    """What both coders do."""

    name: Backend
    batch_frames: int
    """Frames of kind 3 that `decode_many` decodes at the same time on one core; 1 where a batch gains nothing."""

    def decode(self, frame: Buffer) -> bytes:
        """Return the bytes of a frame, or raise a `FrameError`."""
        ...

    def decode_many(self, frames: Sequence[Buffer]) -> list[bytes | FrameError]:
        """Return for each frame what `decode` returns or raises."""
        ...

    def encode_exact(self, raw: bytes, header: FrameHeader) -> bytes | None:
        """Return a frame of the header's kind, or None when the kind cannot hold the block."""
        ...

    def encode_smaller(self, raw: bytes, header: FrameHeader) -> bytes | None:
        """Return a frame below `len(raw) + 32` bytes, or None when there is none of the header's kind."""
        ...


class ReferenceCoder:
    """The coder in plain Python."""

    name: Backend = "python"
    batch_frames = 1

    def decode(self, frame: Buffer) -> bytes:
        """Return the bytes of a frame."""
        return _reference.decode(frame)

    def decode_many(self, frames: Sequence[Buffer]) -> list[bytes | FrameError]:
        """Return the bytes of each frame, or its error, one after the other."""
        answers: list[bytes | FrameError] = []
        for frame in frames:
            try:
                answers.append(self.decode(frame))
            except FrameError as error:
                answers.append(error)
        return answers

    def encode_exact(self, raw: bytes, header: FrameHeader) -> bytes | None:
        """Return a frame of the header's kind, or None when the kind cannot hold the block."""
        try:
            return _reference.encode_exact(raw, header)
        except _reference.TooManyContexts:
            return None

    def encode_smaller(self, raw: bytes, header: FrameHeader) -> bytes | None:
        """Return a frame below `len(raw) + 32` bytes, or None."""
        frame = self.encode_exact(raw, header)
        return frame if frame is not None and len(frame) < len(raw) + HEADER_BYTES else None


class NativeCoder:
    """The coder in C.  It releases the GIL, so threads code in parallel.

    Args:
        module: The extension module.
        wide: Whether a batch may use the vector registers of a processor that has AVX2.
    """

    name: Backend = "c"

    def __init__(self, module: types.ModuleType, *, wide: bool = True) -> None:
        self._module = module
        self._wide = wide
        self.batch_frames: int = module.wide_frames() if wide else 1

    def decode_many(self, frames: Sequence[Buffer]) -> list[bytes | FrameError]:
        """Return the bytes of each frame, or its error."""
        answers: list[bytes | int] = self._module.decode_many(frames, self._wide)
        return [frame_error(answer) if isinstance(answer, int) else answer for answer in answers]

    def decode(self, frame: Buffer) -> bytes:
        """Return the bytes of a frame."""
        result: bytes | int = self._module.decode(frame)
        if isinstance(result, int):
            raise frame_error(result)
        return result

    def _encode(self, raw: bytes, header: FrameHeader, exact: int) -> bytes | None:
        arguments = (raw, int(header.kind), header.weight_bytes, header.group_size, exact)
        result: bytes | int = self._module.encode(*arguments)
        if isinstance(result, bytes):
            return result
        if result in (_NOT_SMALLER, _TOO_MANY_CONTEXTS):
            return None
        raise EncodeError(f"the coder refused the block with the unknown code {result}")

    def encode_exact(self, raw: bytes, header: FrameHeader) -> bytes | None:
        """Return a frame of the header's kind, or None when the kind cannot hold the block."""
        return header.to_bytes() + raw if header.kind is Kind.RAW else self._encode(raw, header, 1)

    def encode_smaller(self, raw: bytes, header: FrameHeader) -> bytes | None:
        """Return a frame below `len(raw) + 32` bytes, or None."""
        return None if header.kind is Kind.RAW else self._encode(raw, header, 0)


def choose_coder(preference: Literal["automatic", "python"] = "automatic") -> Coder:
    """Return the C coder when this installation has it and the preference allows it, else the reference."""
    if preference == "python" or os.environ.get(PURE_PYTHON_VARIABLE, "0") != "0":
        return ReferenceCoder()
    try:
        return NativeCoder(importlib.import_module("slotpack._codec"))
    except ImportError:
        return ReferenceCoder()


_coder: Coder = choose_coder()
backend: Backend = _coder.name
"""Which coder this process uses: "c" or "python"."""
batch_frames: int = _coder.batch_frames
"""Frames of kind 3 that `decode_many` decodes at the same time on one core: 4 with AVX2, else 1."""


def decode(frame: Buffer) -> bytes:
    """Return the bytes that a frame holds, after every check of the format.

    Args:
        frame: One whole object.

    Raises:
        FrameError: The matching subclass when the frame breaks the format.
    """
    return _coder.decode(frame)


def decode_many(frames: Sequence[Buffer]) -> list[bytes | FrameError]:
    """Return what each of several frames holds, faster than one by one where `batch_frames` is above 1.

    Every frame meets the checks of `decode`, and a broken one does not touch the others: its error takes its place in
    the list.  All decoded frames are in memory at once, so pass `batch_frames` of them at a time.

    Args:
        frames: Whole objects, of any kinds.
    """
    return _coder.decode_many(frames)


def encode(raw: Buffer, *, kind: int, weight_bytes: int = 0, group_size: int = 0) -> bytes:
    """Return `raw` as one frame of `kind`, or of kind 0 when the kind does not make it smaller.

    Args:
        raw: 1 to 41,943,040 bytes.
        kind: A `Kind` or its number.
        weight_bytes: For kind 3, the packed weights at the front of `raw`.
        group_size: For kind 3, 32 or 64.

    Raises:
        EncodeError: When the block does not have the shape that the kind needs.
    """
    block = bytes(raw)
    check_encodable(len(block), kind, weight_bytes, group_size)
    header = FrameHeader(raw_bytes=len(block), kind=Kind(kind), weight_bytes=weight_bytes, group_size=group_size)
    frame = _coder.encode_smaller(block, header)
    return FrameHeader(raw_bytes=len(block), kind=Kind.RAW).to_bytes() + block if frame is None else frame


def encode_exact(raw: Buffer, *, kind: int, weight_bytes: int = 0, group_size: int = 0) -> bytes:
    """Like `encode`, but keep the kind even where kind 0 would be smaller.

    Raises:
        EncodeError: When the block does not have the shape that the kind needs, or needs over 2,048 contexts.
    """
    block = bytes(raw)
    check_encodable(len(block), kind, weight_bytes, group_size)
    header = FrameHeader(raw_bytes=len(block), kind=Kind(kind), weight_bytes=weight_bytes, group_size=group_size)
    frame = _coder.encode_exact(block, header)
    if frame is None:
        raise EncodeError("the block has more than 2,048 quantisation contexts; encode it as kind 0 or 1")
    return frame
