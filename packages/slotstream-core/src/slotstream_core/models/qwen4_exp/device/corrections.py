"""Corrections of forecasts within a program: logits + float16(mixed - mu) @ a @ b + delta, in two kernels."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from slotstream_core.errors import BackendError
from slotstream_core.models.qwen4_exp.device.kernels import (
    DeviceKernels,
    KernelSpec,
    Output,
    first_difference,
    random_row,
)
from slotstream_core.models.qwen4_exp.device.launching import Argument, LaunchedKernels, Program
from slotstream_core.models.qwen4_exp.device.publishing import run_once
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection

WARPS = 8
"""Of a block."""

WARP_ROWS = 8
"""Rows of the first factor that a warp takes, one after the other."""

INNER = """
  // the lanes take the columns side by side, the warps the rows in turn; the next kernel adds what the blocks sum
  __shared__ float sums[WARPS * RANK];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float dots[(RANK + 31) / 32];
  for (int i = 0; i < (RANK + 31) / 32; i++) dots[i] = 0;
#pragma unroll
  for (int step = 0; step < WARP_ROWS; step++) {
    const int row = (blockIdx.x * WARP_ROWS + step) * WARPS + warp;
    if (row < HIDDEN) {
      const float centred = __half2float(__float2half(slotstream_float(mixed[row]) - mu[row]));
      for (int i = 0; i < (RANK + 31) / 32; i++)
        if (32 * i + lane < RANK) dots[i] += centred * __half2float(a[row * RANK + 32 * i + lane]);
    }
  }
  for (int i = 0; i < (RANK + 31) / 32; i++)
    if (32 * i + lane < RANK) sums[warp * RANK + 32 * i + lane] = dots[i];
  __syncthreads();
  for (int column = threadIdx.x; column < RANK; column += blockDim.x) {
    float total = 0;
    for (int w = 0; w < WARPS; w++) total += sums[w * RANK + column];
    parts[blockIdx.x * RANK + column] = total;
  }
"""

CORRECT = """
  // the lanes take 32 experts, the warps the rows of the second factor in turn
  __shared__ float inner[RANK], sums[WARPS * 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, expert = 32 * blockIdx.x + lane;
  for (int column = threadIdx.x; column < RANK; column += blockDim.x) {
    float total = 0;
    for (int part = 0; part < PARTS; part++) total += parts[part * RANK + column];
    inner[column] = total;
  }
  __syncthreads();
  float dot = 0;
  if (expert < EXPERTS)
    for (int row = warp; row < RANK; row += WARPS) dot += inner[row] * __half2float(b[row * EXPERTS + expert]);
  sums[threadIdx.x] = dot;
  __syncthreads();
  if (warp == 0 && expert < EXPERTS) {
    float moved = 0;
    for (int w = 0; w < WARPS; w++) moved += sums[32 * w + lane];
    corrected[expert] = logits[expert] + moved + delta[expert];
  }
"""


class ForecastCorrections:
    """The corrections of a model's forecasts within a program.

    Args:
        program: Theirs.
        corrections: One for each layer from the second on; at least one, all of the same rank.
    """

    def __init__(self, program: Program, corrections: Sequence[TargetCorrection]) -> None:
        self._program, self._corrections = program, corrections
        hidden, rank, experts = _sizes(corrections[0])
        parts = -(-hidden // (WARPS * WARP_ROWS))
        self._parts = program.scratch((parts, rank), mx.float32)
        self._corrected = program.scratch((1, experts), mx.float32)
        self._inner = KernelSpec(
            name="correction_inner",
            inputs=("mixed", "mu", "a"),
            outputs=(Output(name="parts", shape=(parts, rank), dtype=mx.float32),),
            constants={"HIDDEN": hidden, "RANK": rank, "WARPS": WARPS, "WARP_ROWS": WARP_ROWS},
            body=INNER,
            blocks=parts,
            threads=32 * WARPS,
        )
        self._correct = KernelSpec(
            name="correct_forecast",
            inputs=("parts", "logits", "b", "delta"),
            outputs=(Output(name="corrected", shape=(1, experts), dtype=mx.float32),),
            constants={"EXPERTS": experts, "RANK": rank, "PARTS": parts, "WARPS": WARPS},
            body=CORRECT,
            blocks=-(-experts // 32),
            threads=32 * WARPS,
        )

    def add(self, target: int, mixed: Argument, logits: Argument) -> mx.array:
        """Append the correction of the forecast of layer ``target``.

        Args:
            target: The layer, at least 1.
            mixed: What the logits were made from, [1, hidden], bfloat16.
            logits: float32 [1, experts].

        Returns:
            The corrected logits, as ``logits``; rewritten by the next correction of the program.
        """
        a, b, mu, delta = self._corrections[target - 1].device_factors
        self._program.add(self._inner, mixed, mu, a, self._parts)
        self._program.add(self._correct, self._parts, logits, b, delta, self._corrected)
        return self._corrected


def corrections_proven(device: DeviceKernels, kernels: LaunchedKernels, correction: TargetCorrection) -> bool:
    """Whether launches correct a forecast as MLX's operations do; tried once for all sizes, with a warning if not.

    Args:
        device: Knows what has proven itself.
        kernels: Launches kernels.
        correction: One of those of a model.
    """
    key = ("launched corrections", *_sizes(correction))
    return device.faultless(
        key, lambda: correction_fault(kernels, correction), "layers are not launched while forecasts are corrected"
    )


def correction_fault(kernels: LaunchedKernels, correction: TargetCorrection) -> str | None:
    """What is wrong with the correction of a random forecast; None for nothing."""
    hidden, _, experts = _sizes(correction)
    mixed, logits = random_row(1, hidden), random_row(1, experts).astype(mx.float32)
    program = kernels.program()
    try:
        corrected = ForecastCorrections(program, [correction]).add(1, mixed, logits)
        run_once(kernels, program)
    except (BackendError, RuntimeError, ValueError) as error:
        return str(error).splitlines()[0][:200]
    difference = first_difference([corrected * 1], [correction.apply(mixed, logits)])
    return None if difference is None else f"of corrected forecasts, {difference}"


def _sizes(correction: TargetCorrection) -> tuple[int, int, int]:
    """Values of a row, rank, experts."""
    a, b, _, _ = correction.device_factors
    return int(a.shape[0]), int(a.shape[1]), int(b.shape[1])
