"""A row times a matrix: the kernel, run on the host, agrees with MLX's operation."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import Backend
from slotstream_core.models.qwen4_exp.device.kernels import random_row
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.models.qwen4_exp.device.products import RowProducts, suits_product
from slotstream_core.models.qwen4_exp.device.publishing import run_once
from slotstream_core.models.qwen4_exp.projections import Projection
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator

emulated = pytest.mark.skipif(
    COMPILER is None or Backend.detect().kind == "cuda", reason="runs kernels on the host, with a C++ compiler"
)

COLUMNS = 1056  # three steps, the last of a part of a warp


def matrix(rows: int, bits: int, group_size: int) -> Projection:
    weight = random_row(rows, COLUMNS)
    if not bits:
        return Projection(weight)
    packed, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    return Projection(packed, scales=scales, biases=biases, bits=bits, group_size=group_size)


def check(y: mx.array, stored: Projection, x: mx.array) -> None:
    """``y`` is the product in float32, rounded."""
    weight = stored.weight.astype(mx.float32)
    if stored.scales is not None and stored.biases is not None:
        scales, biases = stored.scales.astype(mx.float32), stored.biases.astype(mx.float32)
        weight = mx.dequantize(stored.weight, scales, biases, group_size=stored.group_size, bits=stored.bits)
    wanted = x.astype(mx.float32) @ weight.T
    np.testing.assert_allclose(np.array(y.astype(mx.float32)), np.array(wanted), rtol=0.005, atol=0.005)


@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("rows", [5, 24])
def test_a_row_is_multiplied_whatever_a_matrix_is_stored_as(
    launched_kernels: LaunchedKernels, bits: int, rows: int
) -> None:
    program = launched_kernels.program()
    stored, x, y = matrix(rows, bits, 32), random_row(1, COLUMNS), program.scratch((1, rows), mx.bfloat16)
    assert suits_product(stored)
    RowProducts([stored]).add(program, x, [y])
    run_once(launched_kernels, program)
    check(y * 1, stored, x)


@emulated
def test_matrices_that_are_stored_differently_take_one_launch(tmp_path: Path) -> None:
    target = EmulatedTarget(Emulator(tmp_path))
    program, x = LaunchedKernels(target).program(), random_row(1, COLUMNS)
    stored = [matrix(24, 4, 32), matrix(5, 0, 0), matrix(17, 8, 16 * 2)]
    products = RowProducts(stored)
    results = products.scratch(program)
    products.add(program, x, results)
    program.run()
    assert target.launches() == ["take_table", "row_products"]
    for y, each in zip(results, stored, strict=True):
        check(y, each, x)


@emulated
def test_large_matrices_share_what_is_read_of_the_row(tmp_path: Path) -> None:
    packed, scales, biases = mx.quantize(random_row(8195, 64), group_size=64, bits=4)
    large = Projection(packed, scales=scales, biases=biases, bits=4, group_size=64)
    product = RowProducts([large])
    assert product.spec.blocks == 513  # of eight warps with two rows each
    program = LaunchedKernels(EmulatedTarget(Emulator(tmp_path))).program()
    x, y = random_row(1, 64), program.scratch((1, 8195), mx.bfloat16)
    product.add(program, x, [y])
    program.run()
    check(y, large, x)


def test_matrices_that_no_kernel_reads_are_told_apart() -> None:
    assert not suits_product(Projection(random_row(4, 24)))
    assert not suits_product(Projection(random_row(4, 32).astype(mx.float32)))
    assert not suits_product(matrix(4, 2, 32))
