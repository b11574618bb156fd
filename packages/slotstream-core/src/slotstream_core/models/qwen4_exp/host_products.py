"""Matrix products of many rows on the CPU, through numpy.

MLX's CPU build multiplies with a reference BLAS and unpacks quantised weights once for every row; numpy's BLAS on
weights unpacked once a pass is several times faster from a few rows on. Single rows stay with MLX. Arrays are
shared, not copied, on the way in. Everything is float32.

Work is cut into pieces that do not depend on the machine and spread over threads of our own, each with a BLAS of one
thread: results are the same for any number of cores, and no BLAS thread spins while other work needs its core.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Final, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

Floats = npt.NDArray[np.float32]

HOST_ROWS: Final = 8
"""From this many rows on, a product is worth the detour."""

UNPACKED_VALUES: Final = 1 << 18
"""Weights unpacked at a time, in values: small enough to stay in the cache while they are used."""

PIECES: Final = 4
"""A product is cut into at least so many pieces, if they are not too small then."""

PIECE_STEP: Final = 16
"""Outputs of a piece are a multiple of this."""

LEAST_OUTPUTS: Final = 64
"""Outputs that a piece has at least; a matrix with no more is cut by rows of activations instead."""

LEAST_ROWS: Final = 64
"""Rows of activations that a piece has at least."""

Piece = TypeVar("Piece")


class HostThreads:
    """The threads that host products run on. Used by one thread at a time; `close` ends them.

    Attributes:
        count: How many.
    """

    def __init__(self, count: int | None = None) -> None:
        self._blas = ThreadpoolController().select(user_api="blas")
        self.count = count or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="host-products")

    def single_threaded_blas(self) -> AbstractContextManager[object]:
        """While it is entered, every BLAS of the process uses one thread a call."""
        limit: AbstractContextManager[object] = self._blas.limit(limits=1)
        return limit

    def run(self, work: Callable[[Piece], None], pieces: Sequence[Piece]) -> None:
        """Call ``work`` with every piece, in any order and at once, and return when all are done."""
        if len(pieces) == 1:
            work(pieces[0])
            return
        waiting = iter(pieces)

        def take() -> None:
            for piece in waiting:  # threads share the iterator: each piece is handed out once
                work(piece)

        others = [self._pool.submit(take) for _ in range(min(self.count, len(pieces)) - 1)]
        try:
            take()
        finally:
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class HostMatrix:
    """A dense or quantised matrix [out, in] as numpy sees it; shares the memory of the MLX arrays it is given.

    Args:
        weight: Evaluated; float32, or packed words when ``scales`` is given.
        scales: [out, in / group_size], float32.
        biases: As ``scales``.
        bits: Bits of a packed value.
        group_size: Values that share a scale.
    """

    def __init__(
        self, weight: mx.array, scales: mx.array | None, biases: mx.array | None, *, bits: int, group_size: int
    ) -> None:
        self._arrays = [array for array in (weight, scales, biases) if array is not None]
        self._views = [np.asarray(array) for array in self._arrays]
        self._quantized = len(self._views) == 3
        self._bits = bits
        self._group_size = group_size
        self._out = int(weight.shape[-2])
        self._in = int(weight.shape[-1]) if scales is None else int(weight.shape[-1]) * 32 // bits

    def multiply(self, x: Floats, threads: HostThreads) -> Floats:
        """``x @ W.T`` for ``x`` [rows, in] and a matrix with two axes; returns [rows, out]."""
        rows = x.shape[0]
        result = np.empty((rows, self._out), np.float32)
        share = -(-self._out // (PIECES * PIECE_STEP)) * PIECE_STEP
        step = max(1, min(UNPACKED_VALUES // self._in, max(share, LEAST_OUTPUTS)))
        height = rows if self._out > LEAST_OUTPUTS else max(LEAST_ROWS, -(-rows // PIECES))

        def part(piece: tuple[int, int]) -> None:
            row, start = piece
            own = slice(row, row + height), slice(start, start + step)
            np.matmul(x[own[0]], self._unpacked(own[1]).T, out=result[own])

        threads.run(part, [(row, start) for row in range(0, rows, height) for start in range(0, self._out, step)])
        return result

    def multiply_member(self, member: int, x: Floats) -> Floats:
        """``x @ W[member].T`` for a stack of matrices [members, out, in], on the calling thread."""
        product: Floats = x @ self._unpacked(member).T
        return product

    def _unpacked(self, part: slice | int) -> Floats:
        if not self._quantized:
            dense: Floats = self._views[0][part]
            return dense
        if self._bits not in (4, 8):
            return self._unpacked_by_mlx(part)
        weight, scales, biases = self._views
        octets = np.ascontiguousarray(weight[part]).view(np.uint8)
        rows = octets.shape[0]
        values = np.empty((rows, self._in), np.float32)
        if self._bits == 8:
            values[:] = octets
        else:
            values[:, 0::2] = octets & 15
            values[:, 1::2] = octets >> 4
        grouped = values.reshape(rows, -1, self._group_size)
        grouped *= scales[part][:, :, None]
        grouped += biases[part][:, :, None]
        return values

    def _unpacked_by_mlx(self, part: slice | int) -> Floats:
        weight, scales, biases = (array[part] for array in self._arrays)
        return np.asarray(mx.dequantize(weight, scales, biases, group_size=self._group_size, bits=self._bits))


def host_array(x: mx.array) -> Floats:
    """``x`` evaluated and seen by numpy, sharing its memory."""
    return np.asarray(x)


def silu(x: Floats) -> Floats:
    """``x * sigmoid(x)``, without overflow."""
    result: Floats = x * (0.5 + 0.5 * np.tanh(0.5 * x))
    return result


def attend(
    q: Floats, keys: Floats, values: Floats, mask: npt.NDArray[np.bool_] | None, scale: float, threads: HostThreads
) -> Floats:
    """Attention of many queries, one head at a time: ``softmax(q k^T scale) v`` over the keys that ``mask`` shows.

    Args:
        q: [heads, rows, dim].
        keys: [KV heads, keys, dim]; each serves the same number of consecutive heads.
        values: As ``keys``.
        mask: [rows, keys], True where a row sees a key, at least one in each row; None shows everything.
        scale: Factor of the products.
        threads: Where it runs.

    Returns:
        [heads, rows, dim].
    """
    result = np.empty(q.shape, np.float32)
    group = q.shape[0] // keys.shape[0]

    def one_head(head: int) -> None:
        scores = (q[head] * np.float32(scale)) @ keys[head // group].T
        if mask is not None:
            np.copyto(scores, -np.inf, where=~mask)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        np.matmul(scores, values[head // group], out=result[head])

    threads.run(one_head, range(q.shape[0]))
    return result


def multiply_by_expert(
    stacks: tuple[HostMatrix, HostMatrix, HostMatrix],
    x: Floats,
    slots: npt.NDArray[np.integer],
    threads: HostThreads,
) -> Floats:
    """The gated two-layer network of each slot on its row.

    All rows of a slot are computed together, in their order, so that the result does not depend on which other slots
    are in the same call.

    Args:
        stacks: The gate, up and down matrices of every slot.
        x: One row a pair, [pairs, hidden].
        slots: The slot of each pair, [pairs].
        threads: Where it runs.

    Returns:
        [pairs, hidden].
    """
    gate, up, down = stacks
    result = np.empty_like(x)
    order = np.argsort(slots, kind="stable")
    distinct, starts = np.unique(slots[order], return_index=True)
    pairs_of = np.split(order, starts[1:])

    def one_slot(index: int) -> None:
        slot, pairs = int(distinct[index]), pairs_of[index]
        rows = x[pairs]
        inner = silu(gate.multiply_member(slot, rows)) * up.multiply_member(slot, rows)
        result[pairs] = down.multiply_member(slot, inner)

    threads.run(one_slot, range(len(distinct)))
    return result
