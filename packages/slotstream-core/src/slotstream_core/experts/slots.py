"""The memory of the slots: one fixed MLX array per kind of piece, and the host views that reads are written through.

MLX is only used by the thread that makes the arrays. After that they are never assigned to: reads change bytes behind
MLX's back, which is safe exactly because a slot that unevaluated work may read is held by a lease and not rewritten.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.experts.layout import ExpertLayout, PieceDtype, PieceKind, Projection
from slotstream_core.experts.slot_memory import Bytes, HostMemory, SlotMemory
from slotstream_core.experts.sources import DIRECT_ALIGNMENT
from slotstream_core.experts.stacks import DenseStack, ExpertArrays, QuantizedStack, Stack

MLX_DTYPES: dict[PieceDtype, mx.Dtype] = {
    "U32": mx.uint32,
    "F32": mx.float32,
    "BF16": mx.bfloat16,
    "F16": mx.float16,
}
FINITE_LIMIT: dict[PieceDtype, int] = {"F32": 0x7F800000, "BF16": 0x7F80, "F16": 0x7C00}
# Made once: looking a type up by its name costs as much as converting a small piece.
UINT16, FLOAT16, FLOAT32 = np.dtype("<u2"), np.dtype("<f2"), np.dtype("<f4")


class SlotArrays:
    """Arrays of [slots, ...piece shape], evaluated once, and byte views of the same memory.

    Attributes:
        slot_count: Places in every array.
        by_kind: The arrays in the order of `layout.kinds`.
        views: For each kind, uint8 [slots, slot bytes of the piece]; writing to a row changes the array.
        windows: For each kind, the flat memoryview of the same bytes, cheap to slice for scattered reads.
        addresses: For each kind, where its first slot lies; another list whenever that changes.
        memory: Where they lie; only if it is `direct` may the views and windows be read or written.
    """

    def __init__(self, layout: ExpertLayout, slot_count: int, memory: SlotMemory | None = None) -> None:
        self.layout = layout
        self.memory = memory or HostMemory()
        self.slot_count = slot_count
        self.by_kind: list[mx.array] = []
        self.windows: list[memoryview] = []
        self.views: list[Bytes] = []
        self._values: list[npt.NDArray[np.generic]] = []  # by kind, [slots, values], what conversion writes to
        for kind in layout.kinds:
            self._append(kind)
        self.addresses = [int(view.ctypes.data) for view in self.views]
        self.arrays = self._stacks()

    def write(self, kind_index: int, slot: int, stored: Bytes) -> None:
        """Convert one piece, as stored on disk, into its place in a slot. Called by reader lanes.

        Widening (bfloat16 or float16 to float32) is exact; see `narrowed` for the other direction.

        Args:
            kind_index: Index of a kind that converts.
            slot: The place.
            stored: uint8 [disk bytes of the piece].
        """
        kind = self.layout.kinds[kind_index]
        if not self.memory.direct:
            self.memory.put(self.views[kind_index][slot], converted(kind, stored))
            return
        values = self._values[kind_index][slot]
        if kind.disk_dtype == "BF16":
            values[:] = stored.view(UINT16)
        elif kind.slot_dtype == "F32":
            values[:] = stored.view(FLOAT16)
        else:
            floats = stored.view(FLOAT16).astype(np.float32) if kind.disk_dtype == "F16" else stored.view(FLOAT32)
            values[:] = narrowed(floats)

    def _append(self, kind: PieceKind) -> None:
        array = _zeros((self.slot_count, *kind.shape), kind, self.memory)
        window = memoryview(array).cast("B")  # type: ignore[arg-type]
        self.memory.keep(window)
        self.by_kind.append(array)
        self.windows.append(window)
        view = np.frombuffer(window, dtype=np.uint8).reshape(self.slot_count, kind.slot_bytes)
        self.views.append(view)
        if kind.slot_dtype == "BF16":
            self._values.append(view.view(UINT16))
        elif kind.disk_dtype == "BF16":
            # A float32 whose upper half is the bfloat16 and whose lower half is zero is the same number; the lower
            # halves are zero from the start and never written.
            self._values.append(view.view(UINT16)[:, 1::2])
        else:
            self._values.append(view.view(FLOAT32))

    def grow(self, slot_count: int) -> None:
        """Move to larger arrays, one kind at a time, keeping the bytes of every slot.

        Needs the memory of the new arrays plus that of the largest old one. No read may be under way.
        """
        old_views = self.views
        self.by_kind, self.windows, self.views, self._values = [], [], [], []
        del self.arrays
        old_count, self.slot_count = self.slot_count, slot_count
        for kind in self.layout.kinds:
            self._append(kind)
            self.memory.put(self.views[-1][:old_count], old_views.pop(0))
            self.memory.finish()
            mx.clear_cache()  # MLX would keep the old array for reuse, and nothing asks for its size again
        self.addresses = [int(view.ctypes.data) for view in self.views]
        self.arrays = self._stacks()

    def _stacks(self) -> ExpertArrays:
        return ExpertArrays(gate=self._stack("gate"), up=self._stack("up"), down=self._stack("down"))

    def _stack(self, projection: Projection) -> Stack:
        parts = {
            kind.part: array
            for kind, array in zip(self.layout.kinds, self.by_kind, strict=True)
            if kind.projection == projection
        }
        quantization = self.layout.quantization[projection]
        if quantization is None:
            return DenseStack(weight=parts["weight"])
        return QuantizedStack(
            weight=parts["weight"],
            scales=parts["scales"],
            biases=parts["biases"],
            bits=quantization.bits,
            group_size=quantization.group_size,
        )


def _zeros(shape: tuple[int, ...], kind: PieceKind, memory: SlotMemory) -> mx.array:
    """Make the evaluated array of one kind.

    Where the host writes slots itself and a piece consists of whole blocks of a disk, the first slot begins on such a
    block, and so does every other: reads past the page cache then bring the piece straight there.
    """
    dtype = MLX_DTYPES[kind.slot_dtype]
    if not memory.direct or kind.slot_bytes % DIRECT_ALIGNMENT:
        array = mx.zeros(shape, dtype=dtype)
        mx.eval(array)
        return array
    count = math.prod(shape)
    block = mx.zeros((count + DIRECT_ALIGNMENT // dtype.size,), dtype=dtype)
    mx.eval(block)
    address = np.frombuffer(memoryview(block).cast("B"), np.uint8).ctypes.data  # type: ignore[arg-type]
    first = -address % DIRECT_ALIGNMENT // dtype.size
    array = block[first : first + count].reshape(shape)  # the same memory
    mx.eval(array)
    return array


def converted(kind: PieceKind, stored: Bytes) -> Bytes:
    """Return one piece, as stored on disk, in its slot's type: uint8 [slot bytes of the piece]."""
    if kind.disk_dtype == kind.slot_dtype:
        return stored
    if kind.disk_dtype == "BF16":
        return (stored.view(UINT16).astype(np.uint32) << 16).view(np.uint8)
    floats = stored.view(FLOAT16).astype(np.float32) if kind.disk_dtype == "F16" else stored.view(FLOAT32)
    return floats.view(np.uint8) if kind.slot_dtype == "F32" else narrowed(floats).view(np.uint8)


def narrowed(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bits of float32 values as bfloat16, rounded to nearest, ties to even, as MLX's `astype` does."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def is_finite(dtype: PieceDtype, stored: Bytes) -> bool:
    """Say whether no stored float is infinite or NaN: their exponent bits, all ones, are the largest magnitudes."""
    if dtype == "F32":
        return int((stored.view(np.uint32) & 0x7FFFFFFF).max()) < FINITE_LIMIT[dtype]
    return int((stored.view(UINT16) & 0x7FFF).max()) < FINITE_LIMIT[dtype]
