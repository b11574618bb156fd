"""Matrices times one row, in one kernel, for programs of launches."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from slotstream_core.models.qwen4_exp.device.kernels import CHUNK, KernelSpec, Output, quantised_alike
from slotstream_core.models.qwen4_exp.device.launching import Argument, Program
from slotstream_core.models.qwen4_exp.projections import Projection

WARPS = 8
"""Of a block."""

SPREAD_ROWS = 4096
"""A matrix of so many rows keeps a GPU busy with a warp for every two of them."""

MOST_AHEAD = 10
"""Pieces of rows that a thread asks for before it uses the first."""

DENSE_BITS = 16

PRODUCT = """
  if (block >= 0 && block < BLOCKS_N) {
    // a warp for TOGETHER rows, which share what it reads of x; a dense matrix has 16 bits a value, and no scales
    const int first = (block * 8 + threadIdx.x / 32) * TOGETHER_N, lane = threadIdx.x % 32;
    float dots[TOGETHER_N], values[16];
    for (int i = 0; i < TOGETHER_N; i++) dots[i] = 0;
    if (BITS_N == 16) {
      const __nv_bfloat16* dense = reinterpret_cast<const __nv_bfloat16*>(weight_N);
      float weights[16];
#pragma unroll
      for (int step = 0; step < COLUMNS / 16; step += 32) {
        const int chunk = step + lane;
        if (chunk >= COLUMNS / 16) break;
        slotstream_load(x + 16 * chunk, values);
        for (int i = 0; i < TOGETHER_N; i++) {
          const size_t row = first + i < ROWS_N ? first + i : ROWS_N - 1;
          slotstream_load(dense + row * COLUMNS + 16 * chunk, weights);
          for (int j = 0; j < 16; j++) dots[i] += weights[j] * values[j];
        }
      }
    } else {
      constexpr int STORED = BITS_N == 16 ? 4 : BITS_N;
      const unsigned int* words = reinterpret_cast<const unsigned int*>(weight_N);
      for (int step = 0; step < COLUMNS / 16; step += 32 * AHEAD_N) {
        slotstream_packed<STORED> packed[AHEAD_N][TOGETHER_N];
        __nv_bfloat16 scale[AHEAD_N][TOGETHER_N], bias[AHEAD_N][TOGETHER_N];
#pragma unroll
        for (int a = 0; a < AHEAD_N; a++) {
          const int place = step + 32 * a + lane, chunk = place < COLUMNS / 16 ? place : 0;
#pragma unroll
          for (int i = 0; i < TOGETHER_N; i++) {
            const size_t row = first + i < ROWS_N ? first + i : ROWS_N - 1;
            const size_t group = row * (COLUMNS / GROUP_N) + 16 * chunk / GROUP_N;
            packed[a][i] = slotstream_take<STORED>(words + row * (COLUMNS / 32 * STORED), chunk);
            scale[a][i] = scales_N[group], bias[a][i] = biases_N[group];
          }
        }
        __syncwarp();  // the compiler would wait for each before it asks for the next
#pragma unroll
        for (int a = 0; a < AHEAD_N; a++) {
          const int place = step + 32 * a + lane, chunk = place < COLUMNS / 16 ? place : 0;
          const float counts = place < COLUMNS / 16 ? 1.0f : 0.0f;
          slotstream_load(x + 16 * chunk, values);
          const float total = slotstream_total(values) * counts;
#pragma unroll
          for (int i = 0; i < TOGETHER_N; i++) {
            const float dot = slotstream_dot(packed[a][i], values) * counts;
            dots[i] += slotstream_float(scale[a][i]) * dot + slotstream_float(bias[a][i]) * total;
          }
        }
      }
    }
    for (int i = 0; i < TOGETHER_N; i++) {
      const float dot = slotstream_sum(dots[i], 32);
      if (lane == 0 && first + i < ROWS_N) y_N[first + i] = __float2bfloat16(dot);
    }
  }
  block -= BLOCKS_N;
"""
"""With the matrix numbered N; the blocks of one follow those of the one before."""


class RowProducts:
    """The products of one row and some matrices, all in one launch.

    Args:
        matrices: 4 or 8 bits a value, or dense bfloat16; see `suits_product`. They have as many columns.

    Attributes:
        rows: Values of each result.
        spec: The kernel.
    """

    def __init__(self, matrices: Sequence[Projection]) -> None:
        self.rows = [matrix.out_features for matrix in matrices]
        self._arrays: list[mx.array] = []
        constants = {"COLUMNS": _columns(matrices[0])}
        blocks, inputs = 0, ["x"]
        for number, matrix in enumerate(matrices):
            dense = matrix.scales is None
            together = 2 if matrix.out_features >= SPREAD_ROWS else 1
            steps = -(-constants["COLUMNS"] // (32 * CHUNK))
            turns = -(-steps * together // MOST_AHEAD)
            own = {
                "ROWS": matrix.out_features,
                "BITS": DENSE_BITS if dense else matrix.bits,
                "GROUP": constants["COLUMNS"] if dense else matrix.group_size,
                "TOGETHER": together,
                "AHEAD": -(-steps // turns),
                "BLOCKS": -(-matrix.out_features // (WARPS * together)),
            }
            constants |= {f"{name}_{number}": value for name, value in own.items()}
            blocks += own["BLOCKS"]
            inputs += [f"{name}_{number}" for name in ("weight", "scales", "biases")]
            self._arrays += matrix.arrays() * (3 if dense else 1)  # in the places of scales, too
        parts = [PRODUCT.replace("_N", f"_{number}") for number in range(len(matrices))]
        self.spec = KernelSpec(
            name="row_products",
            inputs=tuple(inputs),
            outputs=tuple(
                Output(name=f"y_{number}", shape=(1, rows), dtype=mx.bfloat16) for number, rows in enumerate(self.rows)
            ),
            constants=constants,
            body="\n".join(["  int block = blockIdx.x;", *parts]),
            blocks=blocks,
            threads=32 * WARPS,
        )

    def scratch(self, program: Program) -> list[mx.array]:
        """An array of the program for each result, [1, rows]."""
        return [program.scratch(output.shape, output.dtype) for output in self.spec.outputs]

    def add(self, program: Program, x: Argument, results: Sequence[Argument]) -> None:
        """Append the products of ``x`` [columns], which go into ``results`` [rows] each; all bfloat16."""
        program.add(self.spec, x, *self._arrays, *results)


def suits_product(matrix: Projection) -> bool:
    """Whether `RowProducts` can multiply with a matrix."""
    if matrix.scales is not None:
        return quantised_alike(matrix)
    return matrix.weight.dtype == mx.bfloat16 and matrix.weight.shape[1] % CHUNK == 0


def _columns(matrix: Projection) -> int:
    if matrix.scales is None:
        return int(matrix.weight.shape[1])
    return int(matrix.scales.shape[1]) * matrix.group_size
