"""Programs of kernels, run on the host: what is launched, with which arguments, and what comes back."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import Backend
from slotstream_core.errors import BackendError
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels, KernelSpec, Output
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator

pytestmark = pytest.mark.skipif(
    COMPILER is None or Backend.detect().kind == "cuda", reason="runs kernels on the host, with a C++ compiler"
)

WIDTH = 48
ADD = KernelSpec(
    name="add",
    inputs=("a", "b"),
    outputs=(Output(name="sum", shape=(WIDTH,), dtype=mx.float32),),
    constants={"WIDTH": WIDTH},
    body="""
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < WIDTH) sum[place] = a[place] + b[place] * factor;
""",
    blocks=2,
    threads=32,
    values=("factor",),
)
PUBLISH = KernelSpec(
    name="publish",
    inputs=("values",),
    outputs=(
        Output(name="out", shape=(WIDTH,), dtype=mx.float32),
        Output(name="word", shape=(1,), dtype=mx.uint32),
    ),
    constants={"WIDTH": WIDTH},
    body="""
  for (int i = threadIdx.x; i < WIDTH; i += blockDim.x) out[i] = values[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    word[0] = (unsigned int)number;
  }
""",
    blocks=1,
    threads=32,
    values=("number",),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> EmulatedTarget:
    return EmulatedTarget(Emulator(tmp_path_factory.mktemp("launched")))


@pytest.fixture
def kernels(target: EmulatedTarget) -> LaunchedKernels:
    target.launches()
    target.refuse(from_launch=-1)
    target.answer(0)
    return LaunchedKernels(target)


def numbers(seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(-9, 9, WIDTH).astype(np.float32))


def test_a_program_runs_its_kernels_in_order_and_the_host_sees_what_they_publish(
    kernels: LaunchedKernels, target: EmulatedTarget
) -> None:
    program, signal, out = kernels.program(), kernels.signal(), target.pinned(4 * WIDTH)
    a, given, number = numbers(1), program.place("given", mx.float32), program.place("number")
    total = program.scratch((WIDTH,), mx.float32)
    program.add(ADD, a, given, total, 3)
    middle = program.mark()
    program.add(PUBLISH, total, out.address, signal.address, number)
    for turn in (2, 3):
        b = numbers(turn)
        program.point([given], [b])
        program.set(number, turn)
        program.run(0, middle)
        program.run(middle)
        signal.wait(turn)
        np.testing.assert_array_equal(out.data.view(np.float32), np.array(a + 3 * b))
    assert target.launches() == ["add", "publish"] * 2


def test_a_program_may_grow_after_it_ran(kernels: LaunchedKernels) -> None:
    program, a = kernels.program(), numbers(1)
    results = [program.scratch((WIDTH,), mx.float32) for _ in range(40)]  # more arguments than the table began with
    for before, after in zip([a, *results], results, strict=False):
        program.add(ADD, before, a, after, 1)
        program.run(program.mark() - 1)
    np.testing.assert_array_equal(np.array(results[-1]), 41 * np.array(a))


def test_arguments_that_do_not_suit_a_kernel_are_refused(kernels: LaunchedKernels) -> None:
    program, a, whole = kernels.program(), numbers(1), numbers(2).astype(mx.int32)
    number = program.place("number")
    with pytest.raises(BackendError, match="add takes 4 arguments, not 2: a, b, sum, factor"):
        program.add(ADD, a, a)
    with pytest.raises(BackendError, match="a of add is an array, and was given a number"):
        program.add(ADD, 5, a, a, 1)
    with pytest.raises(BackendError, match="b of add is an array, and was given a number"):
        program.add(ADD, a, number, a, 1)
    with pytest.raises(BackendError, match=r"sum of add is mlx.core.float32, and was given mlx.core.int32"):
        program.add(ADD, a, a, whole, 1)
    with pytest.raises(BackendError, match="factor of add is a number, and was given an array"):
        program.add(ADD, a, a, a, a)
    with pytest.raises(BackendError, match="given is of mlx.core.float32, and was given an array of mlx.core.int32"):
        program.point([program.place("given", mx.float32)], [whole])
    assert program.mark() == 0


def test_arrays_without_an_address_are_refused(target: EmulatedTarget) -> None:
    rows = mx.arange(12).reshape(3, 4)
    with pytest.raises(BackendError, match="do not lie together"):
        target.addresses([rows, rows.T])
    with pytest.raises(BackendError, match="is empty"):
        target.addresses([rows[:0]])
    first, second = target.addresses([rows, rows])
    assert first == second


def test_a_launch_that_the_device_refuses_is_told_by_its_name_and_code(
    kernels: LaunchedKernels, target: EmulatedTarget
) -> None:
    program, a = kernels.program(), numbers(1)
    for _ in range(3):
        program.add(ADD, a, a, program.scratch((WIDTH,), mx.float32), 1)
    target.refuse(from_launch=1)
    with pytest.raises(BackendError, match="launching add failed: the CUDA runtime says 719"):
        program.run()
    assert target.launches() == ["add"]
    with pytest.raises(BackendError, match="launches 2 to 4 are not among the 3 of the program"):
        program.run(2, 4)


def test_a_number_that_never_comes_is_no_endless_wait(kernels: LaunchedKernels, target: EmulatedTarget) -> None:
    signal = kernels.signal()
    signal.wait(1 << 32)  # its lowest bits
    with pytest.raises(BackendError, match="ended with the number 0 instead of 1"):
        signal.wait(1)
    target.answer(600)
    with pytest.raises(BackendError, match="have not reached the number 1 after 0.002 s"):
        signal.wait(1, timeout_s=0.002)
    target.answer(700)
    with pytest.raises(BackendError, match="the CUDA runtime says 700"):
        signal.wait(1)


def test_a_kernel_that_takes_numbers_is_for_programs_alone(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"the kernel add takes numbers \(factor\)"):
        DeviceKernels(Emulator(tmp_path)).kernel(ADD)


def test_a_source_that_does_not_compile_is_a_typed_error(kernels: LaunchedKernels) -> None:
    wrong = KernelSpec(
        name="wrong", inputs=(), outputs=ADD.outputs, constants={}, body="sum[0] = missing;", blocks=1, threads=32
    )
    with pytest.raises(BackendError, match="compiling wrong failed"):
        kernels.handle(wrong, [])
