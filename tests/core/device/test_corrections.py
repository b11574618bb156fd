"""Corrections of forecasts by kernels, run on the host: they give what MLX's operations give, to the last roundings."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.corrections import Correction
from slotstream_core.models.qwen4_exp.device.corrections import ForecastCorrections, correction_fault
from slotstream_core.models.qwen4_exp.device.kernels import KernelSpec, Output, random_row
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.models.qwen4_exp.device.publishing import run_once
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator
from tests.core.device.test_device_kernels import DEVICE

emulated = pytest.mark.skipif(
    COMPILER is None or Backend.detect().kind == "cuda", reason="runs kernels on the host, with a C++ compiler"
)

HIDDEN, EXPERTS, TARGETS = 200, 40, 2  # the last block of each kernel has less than its share


def corrections(rank: int) -> list[TargetCorrection]:
    random = np.random.default_rng(rank)
    made = Correction(
        a=random.normal(0, 0.1, (TARGETS, HIDDEN, rank)).astype(np.float16),
        b=random.normal(0, 0.1, (TARGETS, rank, EXPERTS)).astype(np.float16),
        mu=random.normal(0, 0.1, (TARGETS, HIDDEN)).astype(np.float32),
        delta=random.normal(0, 0.1, (TARGETS, EXPERTS)).astype(np.float32),
    )
    return [TargetCorrection(made, index, DEVICE) for index in range(TARGETS)]


@pytest.mark.parametrize("rank", [1, 32, 70])
def test_corrected_forecasts_are_those_of_the_operations(launched_kernels: LaunchedKernels, rank: int) -> None:
    found = corrections(rank)
    mixed, logits = random_row(1, HIDDEN), random_row(1, EXPERTS).astype(mx.float32)
    for target, correction in enumerate(found, start=1):
        program = launched_kernels.program()
        corrected = ForecastCorrections(program, found).add(target, mixed, logits)
        run_once(launched_kernels, program)
        wanted = np.array(correction.apply(mixed, logits))
        np.testing.assert_allclose(np.array(corrected * 1), wanted, rtol=1e-5, atol=1e-5)
        assert np.abs(wanted - np.array(logits)).max() > 0.1


@emulated
def test_a_correction_that_comes_out_wrong_is_told(tmp_path: Path) -> None:
    emulator = Emulator(tmp_path)
    assert correction_fault(LaunchedKernels(EmulatedTarget(emulator)), corrections(8)[0]) is None
    emulator.spoil = (("+ delta[expert]", "+ 9.0f"),)
    fault = correction_fault(LaunchedKernels(EmulatedTarget(emulator)), corrections(8)[0])
    assert fault is not None
    assert fault.startswith("of corrected forecasts, result 0 is")


@emulated
def test_the_host_rounds_to_halves_as_a_device_does(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = halves[np.isfinite(halves)].astype(np.float32)
    between = np.nextafter(numbers, np.float32(np.inf)), (numbers[:-1] + numbers[1:]) / 2
    scattered = np.exp2(random.uniform(-30, 20, 10_000)).astype(np.float32)
    values = np.concatenate([numbers, *between, scattered, -scattered, np.array([np.inf, -np.inf, np.nan], np.float32)])
    spec = KernelSpec(
        name="halves",
        inputs=("values", "halves"),
        outputs=(
            Output(name="rounded", shape=(len(values),), dtype=mx.float16),
            Output(name="read", shape=(len(halves),), dtype=mx.float32),
        ),
        constants={"VALUES": len(values), "HALVES": len(halves)},
        body="""
          for (int i = threadIdx.x; i < VALUES; i += blockDim.x) rounded[i] = __float2half(values[i]);
          for (int i = threadIdx.x; i < HALVES; i += blockDim.x) read[i] = __half2float(halves[i]);
        """,
        blocks=1,
        threads=32,
    )
    program = LaunchedKernels(EmulatedTarget(Emulator(tmp_path))).program()
    rounded, read = (program.scratch(output.shape, output.dtype) for output in spec.outputs)
    program.add(spec, mx.array(values), mx.array(halves), rounded, read)
    program.run()
    with np.errstate(over="ignore"):
        assert_equal(np.array(rounded), values.astype(np.float16))
    assert_equal(np.array(read), halves.astype(np.float32))


def assert_equal(found: npt.NDArray[np.floating], wanted: npt.NDArray[np.floating]) -> None:
    """The same numbers and signs of zero; NaNs in the same places."""
    np.testing.assert_array_equal(found, wanted)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(wanted[known]))
