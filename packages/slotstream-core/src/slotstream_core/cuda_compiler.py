"""Kernels in CUDA, compiled when they are needed by the compiler that MLX brings along, and loaded by the CUDA runtime.

Their sources include nothing, so no headers of CUDA have to be found.
"""

from __future__ import annotations

import ctypes
from typing import Final

from slotstream_core.errors import BackendError

COMPILER: Final = "libnvrtc.so.13"
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # cudaDevAttrComputeCapabilityMajor and Minor
LOG_LINES = 6
"""Of what the compiler says about a source that it refuses."""


def load_kernel(runtime: ctypes.CDLL, source: str, name: str, *, device: int) -> int:
    """Compile a kernel for one device and return its handle, which stays valid until the process ends.

    Args:
        runtime: The CUDA runtime.
        source: Holds one `extern "C"` function.
        name: Of that.
        device: Its number, as the runtime counts.

    Raises:
        BackendError: The compiler is not there, or something refuses.
    """
    major, minor = compute_capability(runtime, device)
    code = compile_kernel(source, name, architecture=f"sm_{major}{minor}")
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _require(
        runtime.cudaLibraryLoadData(ctypes.byref(library), code, None, None, 0, None, None, 0),
        f"loading the kernel {name}",
    )
    _require(runtime.cudaLibraryGetKernel(ctypes.byref(kernel), library, name.encode()), f"finding the kernel {name}")
    return kernel.value or 0


def compile_kernel(source: str, name: str, *, architecture: str) -> ctypes.Array[ctypes.c_char]:
    """Return what a device of an architecture, as `sm_90`, runs.

    Raises:
        BackendError: The compiler is not there, or refuses the source.
    """
    try:
        compiler = ctypes.CDLL(COMPILER)
    except OSError as error:
        raise BackendError(f"the CUDA compiler {COMPILER} cannot be loaded ({error})") from error
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    _require(
        compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None),
        f"preparing the kernel {name}",
    )
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    try:
        if compiler.nvrtcCompileProgram(program, 1, options):
            raise BackendError(f"the CUDA compiler refuses the kernel {name}:\n{_log(compiler, program)}")
        _require(compiler.nvrtcGetCUBINSize(program, ctypes.byref(size)), f"taking the kernel {name}")
        code = ctypes.create_string_buffer(size.value)
        _require(compiler.nvrtcGetCUBIN(program, code), f"taking the kernel {name}")
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def _log(compiler: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value + 1)
    compiler.nvrtcGetProgramLog(program, text)
    return "\n".join(text.value.decode(errors="replace").splitlines()[:LOG_LINES])


def compute_capability(runtime: ctypes.CDLL, device: int) -> tuple[int, int]:
    """Major and minor number of a device's kind.

    Raises:
        BackendError: The runtime refuses.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, attribute in ((major, CAPABILITY_MAJOR), (minor, CAPABILITY_MINOR)):
        _require(runtime.cudaDeviceGetAttribute(ctypes.byref(value), attribute, device), "asking for the device's kind")
    return major.value, minor.value


def _require(code: int, action: str) -> None:
    if code:
        raise BackendError(f"{action} failed: CUDA says {code}; see its list of error codes")
