"""Makes right arguments wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.core.native.fuzz_maker import Address, Array, Maker

LARGE = 2**20
"""Bytes that only a view without memory of its own has here."""

ODD_INTEGERS = (0, -1, 1, 2, 3, 7, 2**20, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**61, 2**62, 2**63 - 1, -(2**63), 2**64)
ODD_VALUES: tuple[Any, ...] = (None, "text", b"bytes", 1.5, (), [], object())


def other_array(m: Maker, array: Array) -> Any:
    """The array with another shape, type or layout."""
    if array.nbytes >= LARGE:
        return array[:1]
    flat = np.ascontiguousarray(array).reshape(-1)
    shorter = flat[: max(0, flat.size - m.up_to(3))].copy()
    choices: list[Callable[[], Any]] = [
        lambda: shorter,
        lambda: shorter.reshape(1, -1),
        lambda: flat.copy(),
        lambda: array[:-1].copy(),
        lambda: array[..., :-1].copy(),
        lambda: array[..., :-1],
        lambda: array[..., :0],
        lambda: array[:0].copy(),
        lambda: array.T,
        lambda: array.T.copy(),
        lambda: array[::-1],
        lambda: array[..., ::-1],
        lambda: array[None].copy(),
        lambda: np.repeat(array, 2, axis=0)[::2],
        lambda: np.repeat(array, 2, axis=-1)[..., ::2],
        lambda: np.concatenate([array, array]),
        lambda: np.broadcast_to(array[:1].copy(), array.shape),
        lambda: np.broadcast_to(array.reshape(-1)[:1].copy(), (2**40, 3)),
        lambda: np.lib.stride_tricks.as_strided(array, (2**40, 0), (0, 4)),
        lambda: array.astype(np.float64),
        lambda: array.astype(np.float16),
        lambda: array.astype(np.int64),
        lambda: np.resize(array, array.size * array.itemsize).view(np.uint8),
        lambda: np.where(array < 0, 1, array).astype(np.uint32),
        lambda: array.astype(">f4"),
        lambda: read_only(array),
        lambda: unaligned(array),
        lambda: np.ascontiguousarray(array).data,
        lambda: array.tobytes(),
    ]
    if array.dtype == np.int32:
        for wrong in (-1, 1 << 20, 2**31 - 1, -(2**31)):
            choices += [lambda wrong=wrong: with_value(m, array, wrong)] * 2  # type: ignore[misc]
    try:
        return m.random.choice(choices)()
    except (ValueError, TypeError, IndexError, np.exceptions.AxisError):  # not every layout suits every shape
        return shorter


def read_only(array: Array) -> Array:
    copied = array.copy()
    copied.flags.writeable = False
    return copied


def unaligned(array: Array) -> object:
    """The same numbers at an address that is no multiple of their size."""
    octets = memoryview(bytearray(array.nbytes + 1))[1:]
    octets[:] = array.tobytes()
    return octets.cast("i" if array.dtype == np.int32 else "f", shape=list(array.shape))


def with_value(m: Maker, array: Array, value: int) -> Array:
    copied = array.copy()
    if copied.size:
        copied.reshape(-1)[m.random.randrange(copied.size)] = value
    return copied


def overlap(m: Maker, leaves: list[Any]) -> None:
    """Let two arrays share memory, wholly or from some value on."""
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and 0 < leaf.nbytes < LARGE]
    if len(places) < 2:
        return
    one, two = m.random.sample(places, 2)
    shift = 4 * m.random.choice((0, 0, 1, 2, 8))
    a, b = np.ascontiguousarray(leaves[one]), np.ascontiguousarray(leaves[two])
    memory = np.zeros(max(a.nbytes, shift + b.nbytes), np.uint8)
    for place, array, start in ((two, b, shift), (one, a, 0)):
        leaves[place] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        leaves[place][...] = array


def spoil(m: Maker, leaves: list[Any]) -> None:
    """Make one argument wrong, or two of them one."""
    if m.random.random() < 0.2:
        overlap(m, leaves)
        return
    at = m.random.randrange(len(leaves))
    value = leaves[at]
    if m.random.random() < 0.1:
        leaves[at] = m.random.choice(ODD_VALUES)
    elif isinstance(value, np.ndarray):
        leaves[at] = other_array(m, value)
    elif isinstance(value, Address):
        choices = (
            [m.spoiled(value), m.spoiled(value), m.random.choice(m.matrices)] if value in m.matrices else [Address(0)]
        )
        leaves[at] = m.random.choice(choices)
    elif isinstance(value, int):
        leaves[at] = m.random.choice(ODD_INTEGERS)
    else:
        leaves[at] = m.random.choice(ODD_VALUES)
