"""A `LaunchTarget` on an NVIDIA GPU: kernels without headers, a stream of their own, and where MLX keeps its arrays."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Collection, Sequence

import mlx.core as mx
import numpy as np

from slotstream_core.cuda_compiler import compute_capability, load_kernel
from slotstream_core.errors import BackendError
from slotstream_core.experts.cuda_memory import RUNTIME, STREAM_NON_BLOCKING, CudaMemory, function_address
from slotstream_core.models.qwen4_exp.device.kernels import HEADER, KernelSpec, parameter_types
from slotstream_core.models.qwen4_exp.device.launching import NO_GRAPHS, GraphFunctions, LaunchedKernels, Pinned

logger = logging.getLogger("slotstream.device")

PRELUDE = """
#define INFINITY __int_as_float(0x7f800000)
struct __nv_bfloat16 { unsigned short bits; };
__device__ inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned int)x.bits << 16); }
__device__ inline __nv_bfloat16 __float2bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
  __nv_bfloat16 x;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x.bits) : "f"(value));
  return x;
#else
  const unsigned int bits = __float_as_uint(value);
  if (value != value) return {0x7fff};
  return {(unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
#endif
}
struct __half { unsigned short bits; };
__device__ inline float __half2float(__half x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
__device__ inline __half __float2half(float value) {
  __half x;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x.bits) : "f"(value));
  return x;
}
/* Blocks of this kernel may be there before the one before has ended, and those of the next before this one has. */
__device__ inline void slotstream_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
"""
"""What kernels need of `math.h`, `HEADER` of `cuda_bf16.h`, others of `cuda_fp16.h` (rounding to the nearest, ties to
even), and every kernel of a program first of all."""

WAITING_MAJOR = 9
"""Compute capability from which on a kernel can wait for the one before."""

GRAPH_FUNCTIONS = (
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphInstantiate",
    "cudaGraphLaunch",
    "cudaGraphExecDestroy",
    "cudaGraphDestroy",
)

SPIED = 16
"""Arrays whose addresses one kernel tells."""


def cuda_source(spec: KernelSpec, dtypes: Sequence[mx.Dtype], placed: Collection[str] = ()) -> str:
    """The whole source of a kernel, whose function has the name of `kernel_name`.

    Args:
        spec: The kernel.
        dtypes: Of its inputs.
        placed: Names of the arguments that it looks up where it is told, instead of being given them.
    """
    parameters, looked_up = [], []
    for name, kind in parameter_types(spec, dtypes).items():
        parameters.append(f"{kind} const* at_{name}" if name in placed else f"{kind} {name}")
        if name in placed:
            looked_up.append(f"{kind} {name} = *at_{name};\n")
    signature = f'extern "C" __global__ void __launch_bounds__({spec.threads}) {kernel_name(spec)}'
    begin = f"slotstream_begin();\n{''.join(looked_up)}"
    return f"{PRELUDE}{HEADER}\n{signature}({', '.join(parameters)}) {{\n{begin}{spec.source}\n}}\n"


def kernel_name(spec: KernelSpec) -> str:
    """Of the function in `cuda_source`."""
    return f"slotstream_{spec.name}"


class CudaTarget:
    """See the module.

    Args:
        device: Its number, as the CUDA runtime counts; the one that MLX computes on.

    Raises (constructor):
        BackendError: The CUDA runtime is not in the process, or refuses.
    """

    def __init__(self, *, device: int = 0) -> None:
        self._device = device
        self._memory = CudaMemory(device=device)
        self._runtime = ctypes.CDLL(RUNTIME)
        self.launch = function_address(self._runtime.cudaLaunchKernel)
        waits = compute_capability(self._runtime, device)[0] >= WAITING_MAJOR
        self.early = function_address(self._runtime.cudaLaunchKernelExC) if waits else 0
        self.query = function_address(self._runtime.cudaStreamQuery)
        self.graphs = self._graphs()
        self.stream = self._make_stream()
        self._tell = _spy(compact=False), _spy(compact=True)

    def _make_stream(self) -> int:
        """The device's first choice among what is ready, so that a layer does not wait behind copies of records."""
        least, greatest, stream = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        codes = (
            self._runtime.cudaDeviceGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest)),
            self._runtime.cudaStreamCreateWithPriority(
                ctypes.byref(stream), ctypes.c_uint(STREAM_NON_BLOCKING), greatest
            ),
        )
        if any(codes):
            raise BackendError(f"making a stream failed: the CUDA runtime says {max(codes)}")
        return stream.value or 0

    def _graphs(self) -> GraphFunctions:
        try:
            functions = [getattr(self._runtime, name) for name in GRAPH_FUNCTIONS]
        except AttributeError as error:
            logger.warning("kernels are launched one by one, which is slower beside copies: %s", error)
            return NO_GRAPHS
        return GraphFunctions(*map(function_address, functions))

    def compile(self, spec: KernelSpec, dtypes: Sequence[mx.Dtype], placed: Collection[str]) -> int:
        """See `LaunchTarget.compile`."""
        source = cuda_source(spec, dtypes, placed)
        return load_kernel(self._runtime, source, kernel_name(spec), device=self._device)

    def pinned(self, byte_count: int) -> Pinned:
        """See `LaunchTarget.pinned`: the device reaches such memory by the address that the host has for it."""
        data = self._memory.buffer(byte_count)
        data[:] = 0
        return Pinned(data=data, address=data.ctypes.data)

    def addresses(self, arrays: Sequence[mx.array]) -> list[int]:
        """See `LaunchTarget.addresses`.

        A kernel tells the addresses that it is given. A second one, for which MLX copies whatever does not lie
        together, is given others for such arrays, which are refused.
        """
        found: list[int] = []
        mx.eval(list(arrays))
        for first in range(0, len(arrays), SPIED):
            part = arrays[first : first + SPIED]
            if any(array.size == 0 for array in part):
                raise BackendError("an array is empty, and has no address")
            told = [tell(part) for tell in self._tell]
            mx.eval(told)
            plain, compact = (np.array(addresses)[: len(part)].tolist() for addresses in told)
            for array, mine, other in zip(part, plain, compact, strict=True):
                if mine != other:
                    raise BackendError(f"the values of an array of shape {array.shape} do not lie together")
            found += plain
        return found


def cuda_launches() -> LaunchedKernels | None:
    """What launches kernels on MLX's GPU; None, after a warning, where something for that is missing."""
    try:
        return LaunchedKernels(CudaTarget())
    except (BackendError, AttributeError) as error:  # a runtime without one of the functions
        logger.warning("kernels are handed to MLX one by one, which is slower: %s", error)
        return None


def _spy(*, compact: bool) -> Callable[[Sequence[mx.array]], mx.array]:
    """What tells where arrays lie, or where copies of those lie that are not compact."""
    names = [f"array{i}" for i in range(SPIED)]
    body = "\n".join(f"told[{i}] = reinterpret_cast<long long>({name});" for i, name in enumerate(names))
    launch: Callable[..., list[mx.array]] = mx.fast.cuda_kernel(  # type: ignore[assignment]
        name="slotstream_addresses",
        input_names=names,
        output_names=["told"],
        source=body,
        ensure_row_contiguous=compact,
    )

    def tell(arrays: Sequence[mx.array]) -> mx.array:
        views = [(array.reshape(1) if array.ndim == 0 else array).view(mx.uint8) for array in arrays]
        padded = views + views[:1] * (SPIED - len(views))
        one = (1, 1, 1)
        return launch(inputs=padded, output_shapes=[(SPIED,)], output_dtypes=[mx.int64], grid=one, threadgroup=one)[0]

    return tell
