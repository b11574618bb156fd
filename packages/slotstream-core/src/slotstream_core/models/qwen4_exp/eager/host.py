"""What eager layers compute with: compiled products, dense BLAS and threads."""

from __future__ import annotations

import ctypes
import importlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import Self

import mlx.core as mx
import numpy as np

from slotstream_core.errors import NativeError
from slotstream_core.models.qwen4_exp.host_products import Floats, HostThreads
from slotstream_core.native import NativeLibrary, NativeMatrix, native_choice

NATIVE_ROWS = 32
"""Up to this many rows a product runs on packed weights; above, panels of them are unpacked for all rows of a block.

`_native.FEW_ROWS`, for where that module may be missing. Measured by `benchmarks.micro.native_crossover`.
"""

PARALLEL_VALUES = 1 << 17
"""Pieces that touch fewer values than this run on the calling thread: waking others takes longer."""

logger = logging.getLogger("slotstream.native")


class MatrixView:
    """A matrix, or a stack of them, for the compiled products.

    Attributes:
        matrix: The view; keeps the memory alive.
        handle: Its address in C, valid as long as this object.
    """

    def __init__(self, matrix: NativeMatrix) -> None:
        self.matrix = matrix
        self.handle = ctypes.addressof(matrix.structure)


class EagerHost:
    """The compiled products and the threads of one model.

    Attributes:
        library: The compiled products.
        handle: Their threads' address in C, valid until `close`.
        threads: For everything else.
    """

    def __init__(self, library: NativeLibrary, threads: HostThreads) -> None:
        self.library = library
        self.handle = library.handle
        self.threads = threads

    @classmethod
    def load(cls, threads: HostThreads, environment: Mapping[str, str]) -> Self | None:
        """Load what eager layers need; None when it is missing, refuses itself or is switched off.

        Raises:
            SettingError: `SLOTSTREAM_NATIVE` has a value that cannot be used.
            NativeError: It names a variant that this processor cannot run.
        """
        choice = native_choice(environment)
        library = NativeLibrary.load(threads=threads.count, choice=choice)
        if library is None:
            return None
        checking = importlib.import_module("slotstream_core.models.qwen4_exp.eager.checking")
        difference = checking.disagreement(library, plain=choice == "scalar")
        if difference is not None:
            library.close()
            logger.warning("the compiled layers are not used: %s; MLX's slower operations are used", difference)
            return None
        return cls(library, threads)

    def close(self) -> None:
        """End the threads of the compiled products."""
        self.handle = 0
        self.library.close()

    def view(
        self, weight: mx.array, scales: mx.array | None, biases: mx.array | None, *, bits: int, group_size: int
    ) -> MatrixView | None:
        """See the arrays of one matrix, or of a stack; None when no kernel takes them."""
        try:
            return MatrixView(NativeMatrix(weight, scales, biases, bits=bits, group_size=group_size))
        except NativeError:
            return None

    def run_parts(self, work: Callable[[int, int], None], count: int, *, values: int) -> None:
        """Call ``work(first, last)`` so that 0 to ``count`` is covered, by several threads when it pays.

        Args:
            work: Its result must not depend on how the range is cut.
            count: Pieces, such as heads or rows.
            values: What all of them touch.
        """
        parts = min(self.threads.count, count)
        if values < PARALLEL_VALUES or parts < 2:
            work(0, count)
            return
        cuts = [count * part // parts for part in range(parts + 1)]
        self.threads.run(lambda part: work(cuts[part], cuts[part + 1]), range(parts))

    def run_rows(self, work: Callable[[slice], None], rows: Floats) -> None:
        """Call ``work`` with slices that cover ``rows``, by several threads when it pays."""
        self.run_parts(lambda first, last: work(slice(first, last)), len(rows), values=rows.size)


def rows_of(x: mx.array | Floats) -> Floats:
    """``x`` [T, ...] evaluated and seen by numpy as [T, values], contiguous."""
    rows = np.asarray(x)
    if rows.ndim == 2 and rows.flags.c_contiguous:
        return rows
    rows = np.ascontiguousarray(rows)
    return rows.reshape(len(rows), -1) if rows.size else np.empty((len(rows), math.prod(rows.shape[1:])), np.float32)
