"""Affine quantisation of float32 rows, in numpy so that every machine gives the same bytes.

`weight = scale * code + bias` for each group of consecutive values.  Scales and biases are stored in bf16, so codes are
chosen for the rounded ones, and scales are rounded up, which keeps the end of the range within reach: at 8 bits that is
as close as float32 scales are, which rounding them afterwards is not.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.floats import decode, encode
from slotstream_core.checkpoint.quantization import ModuleQuantization

PACKED_BITS: Final = (4, 8)
_SMALLEST_STEP: Final = np.float32(1e-7)


def quantise_rows(
    values: npt.NDArray[np.float32], setting: ModuleQuantization
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """Quantise the last axis.

    Args:
        values: float32 [..., width]; the width divides into whole groups.
        setting: 4 or 8 bits, and the group size.

    Returns:
        Words uint32 [..., width * bits / 32] with the first code in the lowest bits, and the BF16 bits of scales and
        biases, uint16 [..., width / group_size].
    """
    groups = values.reshape(*values.shape[:-1], -1, setting.group_size)
    levels = np.float32(2**setting.bits - 1)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    scales = _rounded_up(np.maximum((high - low) / levels, _SMALLEST_STEP))
    biases = encode(low, "BF16").astype(np.uint16)
    codes = groups - decode(biases, "BF16")[..., None]
    codes /= decode(scales, "BF16")[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, 0, levels, out=codes)
    return _pack(codes.astype(np.uint8).reshape(values.shape), setting.bits), scales, biases


def _rounded_up(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the BF16 bits of positive values, rounded up."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits >> 16) + ((bits & 0xFFFF) != 0)).astype(np.uint16)
    return rounded


def _pack(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    pairs = codes[..., 0::2] | (codes[..., 1::2] << 4) if bits == 4 else codes
    return np.ascontiguousarray(pairs, dtype=np.uint8).view("<u4")
