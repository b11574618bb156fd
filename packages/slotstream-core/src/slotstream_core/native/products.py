"""The calls of the native library: NumPy in, NumPy out.

Activations are float32, or bfloat16 as its bits in uint16 (`host_view` gives both from an MLX array). Sums are float32.
A row of a result has the same bits whatever else is in the call, for any number of threads, and for any place of a
stack that holds the matrix. Arguments that are not contiguous are copied; matrices never are. Every method may be
called by any thread, and releases the interpreter lock while it computes; one call at a time uses the pool's threads,
another one meanwhile computes on its caller's thread.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import NativeError
from slotstream_core.native.binding import check
from slotstream_core.native.matrices import TYPES, NativeExperts, NativeMatrix, address

Floats = npt.NDArray[np.float32]
Activations = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
Integers = npt.NDArray[np.integer]

MAX_THREADS: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordLayout:
    """One quantised row on disk: words, then scales, then biases, without gaps.

    Attributes:
        columns: Values of a row.
        bits: 4 or 8.
        group_size: 32, 64 or 128.
        bfloat16: Whether scales and biases are bfloat16; else they are float32.
    """

    columns: int
    bits: int
    group_size: int
    bfloat16: bool


class NativeProducts:
    """A variant of the library with its threads. `close` ends them; later calls are refused.

    Args:
        library: As `open_binding` returns it.
        variant: Index of a variant that this processor runs.
        threads: Threads that compute, the calling one included.

    Raises:
        NativeError: The variant cannot run here, or the threads cannot be started.
    """

    def __init__(self, library: ctypes.CDLL, *, variant: int, threads: int) -> None:
        self._library = library
        self._handle: ctypes.c_void_p | None = None
        handle = ctypes.c_void_p()
        wanted = max(1, min(threads, MAX_THREADS))
        check(library.ss_pool_create(wanted, variant, ctypes.byref(handle)), "starting the native threads")
        self._handle = handle
        self.threads = wanted

    def close(self) -> None:
        """End the threads. No call may be under way; a second `close` does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.ss_pool_destroy(handle)

    @property
    def handle(self) -> int:
        """The threads' address, for calls that do not go through ctypes; valid until `close`.

        Raises:
            NativeError: They were closed.
        """
        return self._pool().value or 0

    def _pool(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise NativeError("the native library was closed; load the model again")
        return self._handle

    def multiply(self, matrix: NativeMatrix, x: Activations, *, member: int = 0, out: Floats | None = None) -> Floats:
        """``x @ matrix[member].T``.

        Args:
            matrix: Dense or quantised.
            x: [rows, matrix.columns]; meant for a few rows, right for any number.
            member: Which matrix of a stack.
            out: Where the result goes: float32 [rows, matrix.rows], contiguous. A new array when None.

        Returns:
            [rows, matrix.rows].

        Raises:
            NativeError: Shapes or types that do not fit, or a member that does not exist.
        """
        x, kind = _activations(x, matrix.columns)
        out = _output(out, (x.shape[0], matrix.rows))
        code = self._library.ss_multiply(
            self._pool(), matrix.reference, member, address(x), kind, x.shape[0], address(out)
        )
        check(code, "a product")
        return out

    def multiply_members(
        self, matrix: NativeMatrix, x: Activations, sources: Integers, members: Integers, *, out: Floats | None = None
    ) -> Floats:
        """Row ``sources[i]`` of ``x`` through matrix ``members[i]`` of a stack, for every i.

        Pairs of one member are computed together, so that its weights are unpacked once for eight rows.

        Args:
            matrix: The stack.
            x: [rows, matrix.columns].
            sources: [pairs], rows of ``x``.
            members: [pairs].
            out: As for `multiply`, [pairs, matrix.rows].

        Returns:
            [pairs, matrix.rows].

        Raises:
            NativeError: Shapes or types that do not fit, or a row or member that does not exist.
        """
        x, kind = _activations(x, matrix.columns)
        pairs = _whole_numbers(sources, 1), _whole_numbers(members, 1)
        if pairs[0].shape != pairs[1].shape:
            raise NativeError(f"{pairs[0].size} rows cannot be paired with {pairs[1].size} members")
        out = _output(out, (pairs[0].size, matrix.rows))
        code = self._library.ss_multiply_members(
            self._pool(),
            matrix.reference,
            address(x),
            kind,
            x.shape[0],
            address(pairs[0]),
            address(pairs[1]),
            pairs[0].size,
            address(out),
        )
        check(code, "a product with members")
        return out

    def experts(
        self,
        stacks: NativeExperts,
        x: Activations,
        slots: Integers,
        mix: Floats | None,
        *,
        out: Floats | None = None,
    ) -> Floats:
        """The routed experts of one layer: the sum over k of ``mix[t, k] * expert(slots[t, k])(x[t])``.

        An expert is ``down(silu(gate(x)) * up(x))``; the sum runs over k in order, in float32.

        Args:
            stacks: The experts in their slots; any mixture of layouts.
            x: [rows, hidden].
            slots: [rows, k], places in the stacks.
            mix: float32 [rows, k]; None leaves the sum out.
            out: As for `multiply`.

        Returns:
            [rows, hidden]; without ``mix`` [rows, k, hidden].

        Raises:
            NativeError: Shapes or types that do not fit, or a slot that does not exist.
        """
        x, kind = _activations(x, stacks.gate.columns)
        places = _whole_numbers(slots, 2)
        rows, top = places.shape
        if rows != x.shape[0]:
            raise NativeError(f"{x.shape[0]} rows of activations cannot be routed by slots of shape {places.shape}")
        weights = None
        if mix is not None:
            weights = np.ascontiguousarray(mix)
            if weights.dtype != np.float32 or weights.shape != places.shape:
                raise NativeError(
                    f"the weights of slots of shape {places.shape} are float32 of that shape, "
                    f"not {weights.dtype} of shape {weights.shape}"
                )
        out = _output(out, (rows, stacks.down.rows) if weights is not None else (rows, top, stacks.down.rows))
        code = self._library.ss_experts(
            self._pool(),
            stacks.gate.reference,
            stacks.up.reference,
            stacks.down.reference,
            address(x),
            kind,
            rows,
            address(places),
            None if weights is None else address(weights),
            top,
            address(out),
        )
        check(code, "the experts of a layer")
        return out

    def unpack_rows(self, matrix: NativeMatrix, chosen: Integers, *, member: int = 0) -> Floats:
        """Rows ``chosen`` [count] of a matrix as float32 [count, columns], for embeddings.

        Raises:
            NativeError: A row or member does not exist.
        """
        rows = np.ascontiguousarray(chosen, np.int64)
        if rows.ndim != 1:
            raise NativeError(f"rows to unpack have one axis, not {rows.ndim}")
        out = np.empty((rows.size, matrix.columns), np.float32)
        code = self._library.ss_unpack_rows(
            self._pool(), matrix.reference, member, address(rows), rows.size, address(out)
        )
        check(code, "unpacking rows")
        return out

    def unpack_records(
        self, records: npt.NDArray[np.uint8], layout: RecordLayout, *, round_to_bfloat16: bool = False
    ) -> Floats:
        """Unpack quantised rows that were read from disk, such as those of an n-gram table.

        Args:
            records: [count, record bytes]; bytes after the biases are ignored.
            layout: What a record holds.
            round_to_bfloat16: Round every value to the nearest bfloat16, ties to even.

        Returns:
            [count, layout.columns].

        Raises:
            NativeError: A layout that is not supported, or records that are too short for it.
        """
        packed = np.ascontiguousarray(records)
        if packed.dtype != np.uint8 or packed.ndim != 2:
            raise NativeError(f"records are uint8 with two axes, not {packed.dtype} with {packed.ndim}")
        out = np.empty((packed.shape[0], layout.columns), np.float32)
        code = self._library.ss_unpack_records(
            self._pool(),
            address(packed),
            packed.shape[0],
            packed.shape[1],
            layout.columns,
            layout.bits,
            layout.group_size,
            int(layout.bfloat16),
            int(round_to_bfloat16),
            address(out),
        )
        check(code, "unpacking records")
        return out


def _activations(x: Activations, columns: int) -> tuple[Activations, int]:
    kind = TYPES.get(x.dtype)
    if kind is None or x.ndim != 2 or x.shape[1] != columns:
        raise NativeError(
            f"activations are float32 or uint16 (bfloat16) of shape [rows, {columns}], not {x.dtype} of shape {x.shape}"
        )
    return x if x.flags.c_contiguous else x.copy(), kind


def _whole_numbers(values: Integers, axes: int) -> npt.NDArray[np.int32]:
    """As int32; values outside its range become -1, which the library refuses."""
    if values.ndim != axes or values.dtype.kind not in "iu":
        raise NativeError(f"indices are whole numbers with {axes} axes, not {values.dtype} with {values.ndim}")
    if values.dtype.itemsize > 4 or values.dtype == np.uint32:
        values = np.where((values < 0) | (values > np.iinfo(np.int32).max), -1, values)
    return np.ascontiguousarray(values, np.int32)


def _output(out: Floats | None, shape: tuple[int, ...]) -> Floats:
    if out is None:
        return np.empty(shape, np.float32)
    if out.dtype != np.float32 or out.shape != shape or not (out.flags.c_contiguous and out.flags.writeable):
        raise NativeError(f"the result goes to contiguous float32 of shape {shape}, not {out.dtype} of {out.shape}")
    return out
