"""Programs of kernels, run on the host or on a GPU: what is launched, with which arguments, and what comes back."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import Backend
from slotstream_core.errors import BackendError, DeviceHung
from slotstream_core.models.qwen4_exp.device.cuda_launching import CudaTarget, cuda_launches, cuda_source
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels, KernelSpec, Output
from slotstream_core.models.qwen4_exp.device.launching import NO_GRAPHS, LaunchedKernels, LaunchTarget
from slotstream_core.native.binding import library_path
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator

ON_GPU = Backend.detect().kind == "cuda"

pytestmark = pytest.mark.skipif(
    library_path() is None or (COMPILER is None and not ON_GPU), reason="needs the native library and a C++ compiler"
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


@pytest.fixture(scope="module", params=["plain", "early", "graphs"])
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> LaunchTarget:
    if not ON_GPU:
        folder = tmp_path_factory.mktemp("launched")
        return EmulatedTarget(Emulator(folder), early=request.param != "plain", graphs=request.param == "graphs")
    if request.param == "plain":
        pytest.skip("a GPU launches early")
    made = CudaTarget()
    if request.param == "early":
        made.graphs = NO_GRAPHS
    return made


@pytest.fixture
def emulated(target: LaunchTarget) -> Iterator[EmulatedTarget]:
    """The target where it is the host, without anything left of other tests, nor for them."""
    if not isinstance(target, EmulatedTarget):
        pytest.skip("a GPU does not fail on demand")
    target.launches()
    yield target
    target.refuse(from_launch=-1)
    target.answer(0)
    target.hang(from_launch=-1)


@pytest.fixture
def kernels(target: LaunchTarget) -> LaunchedKernels:
    return LaunchedKernels(target)


def numbers(seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(-9, 9, WIDTH).astype(np.float32))


def test_a_program_runs_its_kernels_in_order_and_the_host_sees_what_they_publish(
    kernels: LaunchedKernels, target: LaunchTarget
) -> None:
    if isinstance(target, EmulatedTarget):
        target.launches()
    program, signal, out = kernels.program(), kernels.signal(), target.pinned(4 * WIDTH)
    a, given, number = numbers(1), program.place("given", mx.float32), program.place("number")
    total = program.scratch((WIDTH,), mx.float32)
    program.add(ADD, a, given, total, 3)
    middle = program.mark()
    program.add(PUBLISH, total, out.address, signal.address, number)
    for turn in (2, 3, 4, 5):
        b = numbers(turn)
        program.point([given], [b])
        program.set(number, turn)
        program.run(0, middle)
        program.run(middle)
        signal.wait(turn)
        np.testing.assert_array_equal(out.data.view(np.float32), np.array(a + 3 * b))
    if isinstance(target, EmulatedTarget):
        assert target.launches() == ["take_table", "add", "take_table", "publish"] * 4


def test_a_program_may_grow_after_it_ran(kernels: LaunchedKernels, target: LaunchTarget) -> None:
    program, a, signal, out = kernels.program(), numbers(1), kernels.signal(), target.pinned(4 * WIDTH)
    results = [program.scratch((WIDTH,), mx.float32) for _ in range(40)]  # more arguments than the table began with
    for before, after in zip([a, *results], results, strict=False):
        factor = program.place("factor")
        program.set(factor, 1)
        program.add(ADD, before, a, after, factor)
        program.run(program.mark() - 1)
    program.add(PUBLISH, results[-1], out.address, signal.address, 5)
    program.run(program.mark() - 1)
    signal.wait(5)
    np.testing.assert_array_equal(out.data.view(np.float32), 41 * np.array(a))


def test_what_changes_while_runs_are_under_way_is_seen_by_the_runs_to_come_alone(
    kernels: LaunchedKernels, target: LaunchTarget
) -> None:
    rounds = 300
    program, signal, out = kernels.program(), kernels.signal(), target.pinned(4 * WIDTH)
    total, ones = program.scratch((WIDTH,), mx.float32), mx.ones((WIDTH,))
    factor, number = program.place("factor"), program.place("number")
    program.add(ADD, total, ones, total, factor)
    added = program.mark()
    program.add(PUBLISH, total, out.address, signal.address, number)
    wanted = 0
    for turn in range(1, rounds + 1):
        program.set(factor, turn % 7)
        program.run(0, added)
        wanted += turn % 7
    program.set(factor, 100)
    program.set(number, 8)
    program.run(added)
    signal.wait(8)
    np.testing.assert_array_equal(out.data.view(np.float32), np.full(WIDTH, wanted, np.float32))


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_where_a_range_cannot_become_a_graph_its_kernels_are_launched_one_by_one(
    tmp_path: Path, emulated: EmulatedTarget, step: int
) -> None:
    target = EmulatedTarget(Emulator(tmp_path))
    target.fail_graphs(step)
    program, a, total = LaunchedKernels(target).program(), numbers(1), mx.zeros((WIDTH,))
    for _ in range(3):
        program.add(ADD, a, a, total, 1)
    program.run(0, 2)
    if step == 3:  # what was accepted as a graph and is refused then is an error like any other
        with pytest.raises(BackendError, match="launching add failed: the CUDA runtime says 719"):
            program.run(0, 2)
        target.fail_graphs(0)
    for _ in range(3):
        program.run(0, 2)
        program.run(1, 3)
    assert target.launches() == ["take_table", "add", "add"] * 7
    assert target.left_graphs() == (2 if step in (0, 3) else 0)
    del program
    assert target.left_graphs() == 0


def test_a_run_that_a_hung_device_has_not_begun_ends_the_next_one(
    kernels: LaunchedKernels, emulated: EmulatedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotstream_core.models.qwen4_exp.device.launching.SIGNAL_TIMEOUT_S", 0.01)
    program, a = kernels.program(), numbers(1)
    program.add(ADD, a, a, program.scratch((WIDTH,), mx.float32), 1)
    program.run()
    emulated.hang(from_launch=2)
    program.run()  # a device that hangs takes what it is given
    with pytest.raises(DeviceHung, match=r"not answered for 0.01 s \(kernels have not reached the number 2\)"):
        program.run()
    emulated.hang(from_launch=-1)
    emulated.answer(700)
    with pytest.raises(BackendError, match="launching take_table failed: the CUDA runtime says 700"):
        program.run()


def test_every_launch_sees_all_that_those_before_it_wrote(kernels: LaunchedKernels, target: LaunchTarget) -> None:
    values, rounds = (1 << 20, 500) if ON_GPU else (256, 6)
    turn_round = KernelSpec(
        name="turn_round",
        inputs=("before",),
        outputs=(Output(name="after", shape=(values,), dtype=mx.float32),),
        constants={"VALUES": values},
        body="""
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  after[VALUES - 1 - place] = before[place] + 1.0f;
""",
        blocks=values // 64,
        threads=64,
    )
    program, signal, out = kernels.program(), kernels.signal(), target.pinned(4 * WIDTH)
    arrays = [program.scratch((values,), mx.float32) for _ in range(2)]
    for number in range(rounds):
        program.add(turn_round, arrays[number % 2], arrays[1 - number % 2])
    program.add(PUBLISH, arrays[0], out.address, signal.address, rounds)
    program.run()
    signal.wait(rounds)
    np.testing.assert_array_equal(out.data.view(np.float32), np.full(WIDTH, rounds, np.float32))
    assert bool(mx.all(arrays[0] == rounds))


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


def test_arrays_without_an_address_are_refused(target: LaunchTarget) -> None:
    rows = mx.arange(12).reshape(3, 4)
    for apart in (rows.T, rows[:, :2]):
        with pytest.raises(BackendError, match="do not lie together"):
            target.addresses([rows, apart])
    with pytest.raises(BackendError, match="is empty"):
        target.addresses([rows[:0]])


def test_an_array_has_one_address_and_a_part_of_it_lies_inside(target: LaunchTarget) -> None:
    arrays = [mx.zeros((n + 1, 5), dtype=mx.bfloat16) for n in range(40)]
    mx.eval(arrays)
    parts = [array[n // 2 :] for n, array in enumerate(arrays)]
    found = target.addresses([*arrays, *parts, mx.array(1.5)])
    assert found[:40] == target.addresses(arrays)
    assert len(set(found[:40])) == 40
    for n, (whole, part) in enumerate(zip(found[:40], found[40:80], strict=True)):
        assert part == whole + n // 2 * 10


def test_a_launch_that_the_device_refuses_is_told_by_its_name_and_code(
    kernels: LaunchedKernels, emulated: EmulatedTarget
) -> None:
    program, a = kernels.program(), numbers(1)
    for _ in range(3):
        program.add(ADD, a, a, program.scratch((WIDTH,), mx.float32), 1)
    emulated.refuse(from_launch=2)
    with pytest.raises(BackendError, match="launching add failed: the CUDA runtime says 719"):
        program.run()
    assert emulated.launches() == ["take_table", "add"]
    emulated.refuse(from_launch=0)
    with pytest.raises(BackendError, match="launching take_table failed: the CUDA runtime says 719"):
        program.run()
    emulated.refuse(from_launch=-1)
    program.run()  # what was refused is not waited for
    assert emulated.launches() == ["take_table", *["add"] * 3]
    with pytest.raises(BackendError, match="launches 2 to 4 are not among the 3 of the program"):
        program.run(2, 4)


def test_a_number_that_never_comes_is_no_endless_wait(kernels: LaunchedKernels, emulated: EmulatedTarget) -> None:
    signal = kernels.signal()
    signal.wait(1 << 32)  # its lowest bits
    with pytest.raises(BackendError, match="ended with the number 0 instead of 1"):
        signal.wait(1)
    emulated.answer(600)
    with pytest.raises(DeviceHung, match=r"not answered for 0.002 s \(kernels have not reached the number 1\)"):
        signal.wait(1, timeout_s=0.002)
    emulated.answer(700)
    with pytest.raises(BackendError, match="the CUDA runtime says 700"):
        signal.wait(1)


def test_a_kernel_that_takes_numbers_is_for_programs_alone(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"the kernel add takes numbers \(factor\)"):
        DeviceKernels(Emulator(tmp_path)).kernel(ADD)


def test_a_source_that_does_not_compile_is_a_typed_error(kernels: LaunchedKernels) -> None:
    wrong = KernelSpec(
        name="wrong", inputs=(), outputs=ADD.outputs, constants={}, body="sum[0] = missing;", blocks=1, threads=32
    )
    with pytest.raises(BackendError, match=r"compiling wrong failed|refuses the kernel slotstream_wrong"):
        kernels.handles([(ADD, (mx.float32, mx.float32), frozenset()), (wrong, (), frozenset())])


def test_without_the_native_library_nothing_is_launched(target: LaunchTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slotstream_core._native", None)
    with pytest.raises(BackendError, match="cannot be launched without the native library"):
        LaunchedKernels(target)


@pytest.mark.skipif(ON_GPU, reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_launch_with_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert cuda_launches() is None
    assert "kernels are handed to MLX one by one" in caplog.text


def test_the_source_for_a_gpu_has_every_argument_in_its_order() -> None:
    source = cuda_source(ADD, [mx.float32, mx.bfloat16])
    assert (
        'extern "C" __global__ void __launch_bounds__(32) slotstream_add'
        "(const float* a, const __nv_bfloat16* b, float* sum, long long factor) {\n"
        "slotstream_begin();\nconstexpr int WIDTH = 48;"
    ) in source
    assert "#include" not in source


def test_the_source_for_a_gpu_looks_up_what_changes_between_runs() -> None:
    source = cuda_source(ADD, [mx.float32, mx.bfloat16], ["b", "sum", "factor"])
    assert (
        "slotstream_add(const float* a, const __nv_bfloat16* const* at_b, float* const* at_sum, "
        "long long const* at_factor) {\nslotstream_begin();\n"
        "const __nv_bfloat16* b = *at_b;\nfloat* sum = *at_sum;\nlong long factor = *at_factor;\nconstexpr int"
    ) in source
