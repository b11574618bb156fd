"""What runs the programs of tests that say the same of a GPU and of an emulated device."""

from pathlib import Path

import pytest

from slotstream_core.backend import Backend
from slotstream_core.models.qwen4_exp.device.cuda_launching import CudaTarget
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.native.binding import library_path
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator


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
