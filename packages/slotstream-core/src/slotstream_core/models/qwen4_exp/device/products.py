"""A matrix times one row, in one kernel, for programs of launches."""

from __future__ import annotations

import mlx.core as mx

from slotstream_core.models.qwen4_exp.device.kernels import CHUNK, KernelSpec, Output, quantised_alike
from slotstream_core.models.qwen4_exp.device.launching import Argument, Program
from slotstream_core.models.qwen4_exp.projections import Projection

WARPS = 8
"""Of a block."""

SPREAD_ROWS = 4096
"""A matrix of so many rows keeps a GPU busy with a warp for every two of them, and of twice as many with four."""

DENSE_BITS = 16

PRODUCT = """
  // a warp for TOGETHER rows, which share what it reads of x; a dense matrix has 16 bits a value, and no scales
  const int first = (blockIdx.x * 8 + threadIdx.x / 32) * TOGETHER, lane = threadIdx.x % 32;
  const unsigned int* packed = reinterpret_cast<const unsigned int*>(weight);
  float dots[TOGETHER], values[16], weights[16];
  for (int i = 0; i < TOGETHER; i++) dots[i] = 0;
  for (int chunk = lane; chunk < COLUMNS / 16; chunk += 32) {
    slotstream_load(x + 16 * chunk, values);
    const float total = slotstream_total(values);
    for (int i = 0; i < TOGETHER; i++) {
      const size_t row = first + i < ROWS ? first + i : ROWS - 1;
      if (BITS == 16) {
        slotstream_load(reinterpret_cast<const __nv_bfloat16*>(weight) + row * COLUMNS + 16 * chunk, weights);
        for (int j = 0; j < 16; j++) dots[i] += weights[j] * values[j];
      } else {
        const size_t group = row * (COLUMNS / GROUP) + 16 * chunk / GROUP;
        const float dot = slotstream_dot<BITS>(packed + row * (COLUMNS / 32 * BITS), chunk, values);
        dots[i] += slotstream_float(scales[group]) * dot + slotstream_float(biases[group]) * total;
      }
    }
  }
  for (int i = 0; i < TOGETHER; i++) {
    const float dot = slotstream_sum(dots[i], 32);
    if (lane == 0 && first + i < ROWS) y[first + i] = __float2bfloat16(dot);
  }
"""


class RowProduct:
    """The product of a matrix and one row.

    Args:
        matrix: 4 or 8 bits a value, or dense bfloat16; see `suits_product`.

    Attributes:
        rows: Values of the result.
        spec: The kernel.
    """

    def __init__(self, matrix: Projection) -> None:
        self._arrays = matrix.arrays()
        self.rows = matrix.out_features
        bits, group, columns = matrix.bits, matrix.group_size, int(matrix.weight.shape[1])
        if matrix.scales is None:
            self._arrays *= 3  # in the places of scales, too
            bits, group = DENSE_BITS, columns
        else:
            columns = int(matrix.scales.shape[1]) * group
        together = min(4, max(1, 2 * (self.rows // SPREAD_ROWS)))
        self.spec = KernelSpec(
            name="row_product",
            inputs=("x", "weight", "scales", "biases"),
            outputs=(Output(name="y", shape=(1, self.rows), dtype=mx.bfloat16),),
            constants={
                "ROWS": self.rows,
                "COLUMNS": columns,
                "TOGETHER": together,
                "BITS": bits,
                "GROUP": group,
            },
            body=PRODUCT,
            blocks=-(-self.rows // (WARPS * together)),
            threads=32 * WARPS,
        )

    def add(self, program: Program, x: Argument, y: Argument) -> None:
        """Append the product of ``x`` [columns], which goes into ``y`` [rows]; both bfloat16."""
        program.add(self.spec, x, *self._arrays, y)


def suits_product(matrix: Projection) -> bool:
    """Whether `RowProduct` can multiply with a matrix."""
    if matrix.scales is not None:
        return quantised_alike(matrix)
    return matrix.weight.dtype == mx.bfloat16 and matrix.weight.shape[1] % CHUNK == 0
