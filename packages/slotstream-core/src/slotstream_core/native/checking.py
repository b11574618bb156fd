"""A loaded library shows that it computes what NumPy computes, before anything relies on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.native.matrices import NativeExperts, NativeMatrix
from slotstream_core.native.products import Floats, NativeProducts

TOLERANCE: Final = 1e-4
"""Largest difference, relative to the largest value of the result."""

TURNS: Final = 16
"""Products by each of the variants that are timed."""

LAYOUTS: Final = ((4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128))
_ROWS, _COLUMNS, _ACTIVATIONS = 11, 384, 3


def disagreement(products: NativeProducts) -> str | None:
    """Compare every kind of product with NumPy on random numbers.

    Returns:
        None when all agree, else what differs and by how much.
    """
    random = np.random.default_rng(20)
    x = random.standard_normal((_ACTIVATIONS, _COLUMNS)).astype(np.float32)
    for bits, group in LAYOUTS:
        for narrow in (False, True):
            matrix, dense = random_matrix(random, (_ROWS, _COLUMNS), bits=bits, group_size=group, bfloat16=narrow)
            worst = difference(products.multiply(matrix, x), x @ dense.T)
            if worst > TOLERANCE:
                return f"products of {bits} bits in groups of {group} differ by {worst:.1e}"
    weight = random.standard_normal((_ROWS, _COLUMNS)).astype(np.float32)
    worst = difference(products.multiply(NativeMatrix(weight), x), x @ weight.T)
    if worst > TOLERANCE:
        return f"dense products differ by {worst:.1e}"
    worst = _experts_difference(products, random)
    return f"the experts of a layer differ by {worst:.1e}" if worst > TOLERANCE else None


def _experts_difference(products: NativeProducts, random: np.random.Generator) -> float:
    hidden, inner, members = 128, 64, 3
    gate, dense_gate = random_matrix(random, (members, inner, hidden), bits=4, group_size=64)
    up, dense_up = random_matrix(random, (members, inner, hidden), bits=4, group_size=64)
    down, dense_down = random_matrix(random, (members, hidden, inner), bits=4, group_size=64)
    x = random.standard_normal((4, hidden)).astype(np.float32)
    slots = random.integers(0, members, (4, 2)).astype(np.int32)
    mix = random.random((4, 2)).astype(np.float32)
    expected = np.zeros((4, hidden))
    for row, choice in np.ndindex(*slots.shape):
        slot = slots[row, choice]
        g, u = dense_gate[slot] @ x[row].astype(np.float64), dense_up[slot] @ x[row].astype(np.float64)
        expected[row] += mix[row, choice] * (dense_down[slot] @ (g / (1 + np.exp(-g)) * u))
    return difference(products.experts(NativeExperts(gate=gate, up=up, down=down), x, slots, mix), expected)


def random_matrix(
    random: np.random.Generator, shape: tuple[int, ...], *, bits: int, group_size: int, bfloat16: bool = False
) -> tuple[NativeMatrix, npt.NDArray[np.float64]]:
    """A quantised matrix of random values of about 1 / sqrt(columns), and the same in float64.

    Args:
        random: Where numbers come from.
        shape: [..., rows, columns].
        bits: Bits a value.
        group_size: Values that share a scale.
        bfloat16: Whether scales and biases are bfloat16 instead of float32.
    """
    columns = shape[-1]
    values = random.integers(0, 1 << bits, shape, dtype=np.uint32)
    per_word = 32 // bits
    places = (np.arange(per_word, dtype=np.uint32) * bits).astype(np.uint32)
    packed = (values.reshape(*shape[:-1], columns // per_word, per_word) << places).sum(-1, dtype=np.uint32)
    spread = 4 / (columns**0.5 * (1 << bits))
    scales = (random.uniform(0.5, 1.5, (*shape[:-1], columns // group_size)) * spread).astype(np.float32)
    biases = (-scales * (1 << bits) * random.uniform(0.4, 0.6, scales.shape)).astype(np.float32)
    if bfloat16:
        scale_bits, bias_bits = (_upper(scales), _upper(biases))
        scales, biases = (_widened(scale_bits), _widened(bias_bits))
        matrix = NativeMatrix(packed, scale_bits, bias_bits, bits=bits, group_size=group_size)
    else:
        matrix = NativeMatrix(packed, scales, biases, bits=bits, group_size=group_size)
    grouped = values.reshape(*shape[:-1], columns // group_size, group_size).astype(np.float64)
    dense = (grouped * scales[..., None] + biases[..., None]).reshape(shape)
    return matrix, dense


def difference(found: Floats, expected: npt.NDArray[np.floating]) -> float:
    """Largest difference relative to the largest expected value; infinite when a value is not finite."""
    gap = np.abs(found - expected).max()
    return float(gap / np.abs(expected).max()) if np.isfinite(gap) else float("inf")


def fastest_of(candidates: Sequence[NativeProducts]) -> int:
    """Which of some libraries of one thread multiplies fastest: the index of the shortest processor time.

    They multiply weights that stay in the cache by one row, in turns, so that whatever else the machine does slows all.
    """
    random = np.random.default_rng(21)
    matrix, _ = random_matrix(random, (256, 1024), bits=4, group_size=64)
    x = random.standard_normal((1, 1024)).astype(np.float32)
    shortest = [float("inf")] * len(candidates)
    for _ in range(TURNS):
        for index, products in enumerate(candidates):
            started = time.thread_time()
            products.multiply(matrix, x)
            shortest[index] = min(shortest[index], time.thread_time() - started)
    return shortest.index(min(shortest))


def _upper(values: Floats) -> npt.NDArray[np.uint16]:
    upper: npt.NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return upper


def _widened(values: npt.NDArray[np.uint16]) -> Floats:
    wide: Floats = (values.astype(np.uint32) << 16).view(np.float32)
    return wide
