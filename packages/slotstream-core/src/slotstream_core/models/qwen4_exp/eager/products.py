"""Linear maps of eager layers: compiled products for any number of rows."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core import _native
from slotstream_core.experts.slot_memory import use_large_pages
from slotstream_core.models.qwen4_exp.eager.host import EagerHost
from slotstream_core.models.qwen4_exp.host_products import HOST_ROWS, Floats
from slotstream_core.models.qwen4_exp.projections import FusedProjection, Projection
from slotstream_core.native.matrices import host_view


class EagerMap:
    """A `Projection` on numpy rows; shares its arrays and moves them to large pages, since a row reads all of them.

    A row's result has the same bits whatever other rows are in the call, up to `NATIVE_ROWS` of them, and again beyond.

    Attributes:
        handle: The matrix's address in C; 0 when the compiled products do not take it.
    """

    def __init__(self, projection: Projection, host: EagerHost) -> None:
        self._projection = projection
        self._host = host
        self._matrix = host.view(
            projection.weight,
            projection.scales,
            projection.biases,
            bits=projection.bits,
            group_size=projection.group_size,
        )
        self._out = projection.out_features
        self.handle = 0 if self._matrix is None else self._matrix.handle
        if self._matrix is not None:
            for array in (projection.weight, projection.scales, projection.biases):
                if array is not None:
                    use_large_pages(host_view(array).data)

    def __call__(self, x: Floats) -> Floats:
        """Apply the map to ``x`` [rows, in], contiguous; returns [rows, out]."""
        rows = len(x)
        if self.handle:
            out = np.empty((rows, self._out), np.float32)
            _native.multiply(self._host.handle, self.handle, x, out)
            return out
        if rows >= HOST_ROWS:
            return self._projection.host_matrix().multiply(x, self._host.threads)
        return np.asarray(self._projection(mx.array(x)))

    def rows(self, ids: npt.NDArray[np.int64]) -> Floats:
        """The rows ``ids`` [T] of the matrix, [T, in]."""
        if self._matrix is None:
            return np.asarray(self._projection.rows(mx.array(ids.astype(np.int32))))
        return self._host.library.unpack_rows(self._matrix.matrix, ids)


class EagerMaps:
    """A `FusedProjection` on numpy rows: several maps of one input, some of them merged into one product.

    Attributes:
        handles: The products' matrices in C; 0 for one that the compiled products do not take.
        places: Of each map: its product, and its first column there.
        width: Outputs of all maps together.
    """

    def __init__(self, fused: FusedProjection, host: EagerHost) -> None:
        self._groups: Sequence[tuple[EagerMap, list[int]]] = [
            (EagerMap(projection, host), widths) for projection, widths in fused.groups
        ]
        self._widths = [sum(widths) for _, widths in self._groups]
        self.handles = tuple(matrix.handle for matrix, _ in self._groups)
        self.places = [
            (number, sum(widths[:index]))
            for number, (_, widths) in enumerate(self._groups)
            for index in range(len(widths))
        ]
        self.width = sum(self._widths)

    def __call__(self, x: Floats) -> list[Floats]:
        """Outputs of every map for ``x`` [rows, in]; views [rows, out] whose rows may lie apart."""
        return self._split([matrix(x) for matrix, _ in self._groups])

    def views(self, outputs: Floats, rows: int) -> list[Floats]:
        """As a call returns them, from the products' results one after another in ``outputs`` [rows * width]."""
        products, start = [], 0
        for width in self._widths:
            products.append(outputs[start : start + rows * width].reshape(rows, width))
            start += rows * width
        return self._split(products)

    def _split(self, products: list[Floats]) -> list[Floats]:
        outputs: list[Floats] = []
        for y, (_, widths) in zip(products, self._groups, strict=True):
            start = 0
            for width in widths:
                outputs.append(y[:, start : start + width] if len(widths) > 1 else y)
                start += width
        return outputs
