"""What runs the programs of tests that say the same of a GPU and of an emulated device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotstream_core.backend import Backend
from slotstream_core.models.qwen4_exp.device.cuda_launching import CudaTarget
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.native.binding import library_path
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """A device on the host, which compiles each kernel once for all tests of a module."""
    return Emulator(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def target(emulator: Emulator) -> EmulatedTarget:
    """Where its programs are launched."""
    return EmulatedTarget(emulator)


@pytest.fixture
def behind(target: EmulatedTarget) -> Iterator[EmulatedTarget]:
    """The same, running each launch up to two milliseconds later than it could, beside its host."""
    target.lag(2000)
    yield target
    target.refuse(from_launch=-1)
    target.lag(-1)


@pytest.fixture(scope="module")
def kernels(emulator: Emulator, target: EmulatedTarget) -> DeviceKernels:
    """What a model that it computes is built with."""
    return DeviceKernels(emulator, launched=LaunchedKernels(target))


@pytest.fixture
def launched_kernels(tmp_path: Path) -> LaunchedKernels:
    """On a GPU where there is one, else on the host."""
    if library_path() is None:
        pytest.skip("installed without a compiler")
    if Backend.detect().kind == "cuda":
        return LaunchedKernels(CudaTarget())
    if COMPILER is None:
        pytest.skip("runs kernels on the host, with a C++ compiler")
    return LaunchedKernels(EmulatedTarget(Emulator(tmp_path)))
