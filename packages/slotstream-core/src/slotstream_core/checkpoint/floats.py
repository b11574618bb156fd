"""Floating-point values between their stored bits and float32."""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

STORAGE_TYPES: Final[Mapping[str, type[np.generic]]] = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
    "U32": np.uint32,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
}
"""numpy type that holds a safetensors type; BF16 as its bits."""

_EXPONENTS: Final[Mapping[str, tuple[type[np.unsignedinteger], int]]] = {
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F32": (np.uint32, 0x7F800000),
}
"""Unsigned type of the same width, and the bits of the exponent, which are all ones in infinities and NaNs."""

_CHECK_ELEMENTS: Final = 1 << 22


def decode(data: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.float32]:
    """Return stored BF16 (bits), F16 or F32 values as float32; exact."""
    if dtype == "BF16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(data, dtype=np.float32)


def encode(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.generic]:
    """Return float32 values as BF16 bits, F16 or F32, rounded to nearest, ties to even."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
        return rounded.astype(np.uint16)
    return values.astype(STORAGE_TYPES[dtype])


def first_not_finite(data: npt.NDArray[np.generic], dtype: str) -> int | None:
    """Return the position of the first infinity or NaN in stored values, or None; other types have none.

    The data is looked at in blocks, so that the check needs little memory beside it.
    """
    if dtype not in _EXPONENTS:
        return None
    kind, exponent = _EXPONENTS[dtype]
    bits = data.reshape(-1).view(kind)
    mask = kind(exponent)
    for start in range(0, bits.size, _CHECK_ELEMENTS):
        block = bits[start : start + _CHECK_ELEMENTS]
        bad = np.flatnonzero((block & mask) == mask)
        if bad.size:
            return start + int(bad[0])
    return None
