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
