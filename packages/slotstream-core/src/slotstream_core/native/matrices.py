"""Matrices as the native library sees them: shapes, types and addresses of memory that somebody else owns."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import NativeError
from slotstream_core.native.binding import MatrixStructure

Host = npt.NDArray[np.generic]
T = TypeVar("T", bound=np.generic)

TYPES: Final = {np.dtype(np.float32): 0, np.dtype(np.uint16): 1}
"""`ss_type` of a NumPy type; bfloat16 travels as uint16, since NumPy has no such type."""

BITS: Final = (4, 8)
GROUP_SIZES: Final = (32, 64, 128)


class DeviceArray(Protocol):
    """What is asked of an array of another library, as `mlx.core.array` has it: a shape and the buffer protocol."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""

    @property
    def dtype(self) -> object:
        """Named as MLX names types: "mlx.core.bfloat16"."""


Array = npt.NDArray[np.generic] | DeviceArray


def host_view(array: Array) -> Host:
    """See an evaluated array as NumPy does, sharing its memory; a bfloat16 array as its bits, uint16.

    The view keeps the memory alive. Evaluate an MLX array first: a lazy one is evaluated here, on its stream.

    Raises:
        NativeError: The values do not lie one after another, so that a view of their bits does not exist.
    """
    if isinstance(array, np.ndarray):
        return array
    if not str(array.dtype).endswith("bfloat16"):
        return np.asarray(array)
    if 0 in array.shape:
        return np.empty(array.shape, np.uint16)
    try:
        octets = memoryview(array).cast("B")  # type: ignore[arg-type]
    except TypeError as error:
        raise NativeError(
            f"an array of shape {array.shape} is a strided view; make it contiguous before viewing it"
        ) from error
    return np.frombuffer(octets, np.uint16).reshape(array.shape)


def address(array: npt.NDArray[np.generic]) -> int:
    """Where the first value lies."""
    where: int = array.__array_interface__["data"][0]
    return where


class NativeMatrix:
    """A matrix [rows, columns], or a stack of them, whose memory the C functions read.

    Shares and keeps alive the memory it is given, which may be refilled between calls but must not move: `mx.array`s
    that were evaluated and are never assigned to, or NumPy arrays. Immutable; usable from any thread.

    Args:
        weight: Quantised: uint32 [..., rows, columns * bits / 32]. Dense: float32 or bfloat16 [..., rows, columns].
            Two axes, or three for a stack.
        scales: Quantised: float32 or bfloat16 (uint16 bits in NumPy) [..., rows, columns / group_size]; else None.
        biases: As ``scales``.
        bits: 4 or 8; 0 when dense.
        group_size: 32, 64 or 128; 0 when dense.

    Attributes:
        members: Matrices in the stack; 1 for two axes.
        rows: Length of a product.
        columns: Length of a row of activations.

    Raises:
        NativeError: A shape, a type or a layout in memory that the library does not take.
    """

    def __init__(
        self,
        weight: Array,
        scales: Array | None = None,
        biases: Array | None = None,
        *,
        bits: int = 0,
        group_size: int = 0,
    ) -> None:
        self._views = [host_view(array) for array in (weight, scales, biases) if array is not None]
        packed = self._views[0]
        _require(packed.ndim in (2, 3), f"a weight has two or three axes, not {packed.ndim}")
        _require(all(view.flags.c_contiguous for view in self._views), "the values must lie one after another")
        _require(packed.size > 0, f"a matrix of shape {packed.shape} is empty")
        self.members = packed.shape[0] if packed.ndim == 3 else 1
        self.rows = packed.shape[-2]
        self.bits, self.group_size = bits, group_size
        if bits:
            self._check_quantized()
            self.columns = packed.shape[-1] * 32 // bits
            float_type = TYPES[self._views[1].dtype]
        else:
            _require(len(self._views) == 1 and group_size == 0, "a dense matrix has no scales, biases or groups")
            _require(packed.dtype in TYPES, f"a dense weight is float32 or bfloat16, not {packed.dtype}")
            self.columns = packed.shape[-1]
            float_type = TYPES[packed.dtype]
        places = [address(view) for view in self._views]
        self.structure = MatrixStructure(
            weight=places[0],
            scales=places[1] if bits else None,
            biases=places[2] if bits else None,
            weight_bytes=packed.nbytes,
            scales_bytes=self._views[1].nbytes if bits else 0,
            members=self.members,
            rows=self.rows,
            columns=self.columns,
            bits=bits,
            group=group_size,
            type=float_type,
        )
        self.reference = ctypes.byref(self.structure)

    def _check_quantized(self) -> None:
        _require(len(self._views) == 3, "a quantised matrix has a weight, scales and biases")
        weight, scales, biases = self._views
        _require(self.bits in BITS, f"{self.bits} bits a value are not supported; 4 and 8 are")
        _require(self.group_size in GROUP_SIZES, f"groups of {self.group_size} are not supported; 32, 64 and 128 are")
        _require(weight.dtype == np.uint32, f"packed words are uint32, not {weight.dtype}")
        _require(
            scales.dtype in TYPES and scales.dtype == biases.dtype,
            f"scales and biases are both float32 or both bfloat16, not {scales.dtype} and {biases.dtype}",
        )
        columns = weight.shape[-1] * 32 // self.bits
        wanted = (*weight.shape[:-1], columns // self.group_size)
        _require(
            columns % self.group_size == 0 and scales.shape == wanted and biases.shape == wanted,
            f"a weight of shape {weight.shape} with {self.bits} bits and groups of {self.group_size} has scales of "
            f"shape {wanted}, not {scales.shape} and {biases.shape}",
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all members, scales and biases included."""
        return sum(view.nbytes for view in self._views)


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeExperts:
    """The three stacks of a layer's experts.

    Attributes:
        gate: [slots, inner, hidden].
        up: As `gate`.
        down: [slots, hidden, inner].
    """

    gate: NativeMatrix
    up: NativeMatrix
    down: NativeMatrix


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise NativeError(f"a matrix that the native library does not take: {message}")
