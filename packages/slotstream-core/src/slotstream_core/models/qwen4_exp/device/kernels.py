"""What a kernel is, who compiles it, and how it proves itself before it is used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx
import numpy as np

from slotstream_core.backend import Backend
from slotstream_core.errors import BackendError, SettingError

if TYPE_CHECKING:
    from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels

logger = logging.getLogger("slotstream.device")

KERNELS_VARIABLE = "SLOTSTREAM_DEVICE_KERNELS"

TOLERANCE = 0.03
"""Largest distance of a result from that of MLX's operations, as a part of its length: bfloat16 keeps 8 bits, and
operation by operation rounds a dozen times on the way."""

HEADER = """
__device__ inline float slotstream_sum(float value, int lanes) {
  for (int apart = lanes / 2; apart; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}
__device__ inline float slotstream_logistic(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float slotstream_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void slotstream_load(const __nv_bfloat16* from, float* to) {
  for (int half = 0; half < 2; half++) {
    uint4 raw = reinterpret_cast<const uint4*>(from)[half];
    unsigned int words[4] = {raw.x, raw.y, raw.z, raw.w};
    for (int i = 0; i < 4; i++) {
      to[8 * half + 2 * i] = __uint_as_float(words[i] << 16);
      to[8 * half + 2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}
__device__ inline float slotstream_total(const float* x) {
  float total = 0;
  for (int i = 0; i < 16; i++) total += x[i];
  return total;
}
/* 16 values of a quantised row, as they are stored. */
template <int BITS>
struct slotstream_packed {
  unsigned int words[BITS / 2];
};
template <int BITS>
__device__ inline slotstream_packed<BITS> slotstream_take(const unsigned int* row, int chunk) {
  slotstream_packed<BITS> packed;
  if (BITS == 4) {
    uint2 raw = reinterpret_cast<const uint2*>(row)[chunk];
    packed.words[0] = raw.x, packed.words[1] = raw.y;
  } else {
    uint4 raw = reinterpret_cast<const uint4*>(row)[chunk];
    packed.words[0] = raw.x, packed.words[1] = raw.y;
    packed.words[BITS / 2 - 2] = raw.z, packed.words[BITS / 2 - 1] = raw.w;
  }
  return packed;
}
template <int BITS>
__device__ inline float slotstream_dot(const slotstream_packed<BITS>& packed, const float* x) {
  // the highest bits of a float's fraction make 1 + n / 2^BITS of n, which takes less than to convert it
  float sum = 0;
  for (int i = 0; i < 16; i++) {
    const int from = i * BITS % 32, to = 23 - BITS, up = from < to ? to - from : 0, down = from < to ? 0 : from - to;
    const unsigned int raised = packed.words[i * BITS / 32] << up >> down;
    sum += __uint_as_float((raised & (((1u << BITS) - 1) << to)) | 0x3f800000u) * x[i];
  }
  return float(1 << BITS) * (sum - slotstream_total(x));
}
template <int BITS>
__device__ inline float slotstream_dot(const unsigned int* row, int chunk, const float* x) {
  return slotstream_dot(slotstream_take<BITS>(row, chunk), x);
}
"""
"""Sums over lanes of a warp, and products of 16 bfloat16 values with 16 of a quantised row, 4 or 8 bits each."""

C_NAMES: Mapping[mx.Dtype, str] = {
    mx.bfloat16: "__nv_bfloat16",
    mx.float16: "__half",
    mx.float32: "float",
    mx.int32: "int",
    mx.uint32: "unsigned int",
    mx.int64: "long long",
    mx.uint64: "unsigned long long",
    mx.uint8: "unsigned char",
}
"""What kernels call the values of arrays; bodies use these names, and none of `<stdint.h>`."""

CHUNK = 16
"""Values of a quantised row that a thread takes at once."""

MOST_THREADS = 1024
"""Of a block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One array that a kernel writes, whole."""

    name: str
    shape: tuple[int, ...]
    dtype: mx.Dtype


KernelKey = tuple[str, tuple[tuple[str, int | float], ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSpec:
    """A kernel for one set of sizes.

    Attributes:
        name: Of the function.
        inputs: Names of its array arguments, each contiguous.
        outputs: What follows them.
        constants: Sizes and switches by the names that the body uses; floats are written as such.
        body: Of the function, in CUDA; it may use `HEADER`.
        blocks: Blocks of the grid.
        threads: Threads of a block.
        values: Names of the numbers that follow the arrays, `long long` each; a `Program` alone can give them.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    constants: Mapping[str, int | float]
    body: str
    blocks: int
    threads: int
    values: tuple[str, ...] = ()

    @property
    def key(self) -> KernelKey:
        """The same for kernels of the same name and sizes."""
        return self.name, tuple(self.constants.items())

    @property
    def source(self) -> str:
        """The body after its constants."""
        lines = [
            f"constexpr {'float' if isinstance(value, float) else 'int'} {name} = {value!r}"
            + ("f;" if isinstance(value, float) else ";")
            for name, value in self.constants.items()
        ]
        return "\n".join([*lines, self.body])


def parameter_types(spec: KernelSpec, dtypes: Sequence[mx.Dtype]) -> dict[str, str]:
    """What a kernel's arguments are in C, by name, in their order, for inputs of these types."""
    types = {name: f"const {C_NAMES[dtype]}*" for name, dtype in zip(spec.inputs, dtypes, strict=True)}
    types |= {output.name: f"{C_NAMES[output.dtype]}*" for output in spec.outputs}
    return types | dict.fromkeys(spec.values, "long long")


class Quantised(Protocol):
    """What `quantised_alike` looks at; `Projection` and `QuantizedStack` are such."""

    @property
    def scales(self) -> mx.array | None:
        """Of the groups of each row; None when the matrix is dense."""

    @property
    def bits(self) -> int:
        """Of a value."""

    @property
    def group_size(self) -> int:
        """Values that share a scale."""


Kernel = Callable[..., list[mx.array]]
"""Takes the input arrays of its `KernelSpec`, returns its outputs, and evaluates nothing."""


class KernelCompiler(Protocol):
    """Makes a kernel; what is wrong with its source may show at the first evaluation only."""

    def __call__(self, spec: KernelSpec) -> Kernel:
        """Return the kernel of ``spec``."""


def compile_cuda(spec: KernelSpec) -> Kernel:
    """A `KernelCompiler` for an NVIDIA GPU, through MLX, which compiles at the first use and keeps the result."""
    launch: Callable[..., list[mx.array]] = mx.fast.cuda_kernel(  # type: ignore[assignment]
        name=f"slotstream_{spec.name}",
        input_names=list(spec.inputs),
        output_names=[output.name for output in spec.outputs],
        source=spec.source,
        header=HEADER,
    )
    shapes = [output.shape for output in spec.outputs]
    dtypes = [output.dtype for output in spec.outputs]
    grid, group = (spec.blocks * spec.threads, 1, 1), (spec.threads, 1, 1)

    def run(*inputs: mx.array) -> list[mx.array]:
        return launch(inputs=list(inputs), output_shapes=shapes, output_dtypes=dtypes, grid=grid, threadgroup=group)

    return run


class DeviceKernels:
    """The kernels of one model, each compiled once, and the parts of it that proved themselves.

    Args:
        compile_kernel: Makes kernels.
        launched: Launches kernels without MLX; None where nothing does.

    Attributes:
        launched: As given.
        verdicts: By part and sizes, whether its kernels agree with MLX's operations.
    """

    def __init__(self, compile_kernel: KernelCompiler, *, launched: LaunchedKernels | None = None) -> None:
        self.launched = launched
        self._compile = compile_kernel
        self._kernels: dict[KernelKey, Kernel] = {}
        self.verdicts: dict[tuple[object, ...], bool] = {}

    @staticmethod
    def load(backend: Backend, environment: Mapping[str, str]) -> DeviceKernels | None:
        """Return what makes kernels for a backend that computes in bfloat16; None elsewhere, or where switched off.

        Raises:
            SettingError: `SLOTSTREAM_DEVICE_KERNELS` is neither 0 nor 1.
        """
        choice = environment.get(KERNELS_VARIABLE, "1")
        if choice not in ("0", "1"):
            raise SettingError(f"{KERNELS_VARIABLE} is {choice!r}; use 0 or 1, or unset it")
        usable = backend.kind == "cuda" and backend.compute_dtype == mx.bfloat16
        if not usable or choice == "0":
            return None
        # Imported here because it builds on this module.
        from slotstream_core.models.qwen4_exp.device.cuda_launching import cuda_launches

        return DeviceKernels(compile_cuda, launched=cuda_launches())

    def kernel(self, spec: KernelSpec) -> Kernel:
        """The kernel of ``spec``; one for all layers of the same sizes.

        Raises:
            BackendError: It takes numbers besides arrays.
        """
        if spec.values:
            raise BackendError(f"the kernel {spec.name} takes numbers ({', '.join(spec.values)}); add it to a program")
        if spec.key not in self._kernels:
            self._kernels[spec.key] = self._compile(spec)
        return self._kernels[spec.key]

    def proven(
        self,
        part: str,
        sizes: tuple[object, ...],
        ours: Callable[[], Sequence[mx.array]],
        plain: Callable[[], Sequence[mx.array]],
    ) -> bool:
        """Whether kernels of a part agree with MLX's operations; tried once for each set of sizes.

        Args:
            part: What they compute, for a person.
            sizes: What tells them from others of the part.
            ours: Runs the kernels on some data.
            plain: Runs the operations on the same data.
        """
        return self.faultless(
            (part, *sizes), lambda: _disagreement(ours, plain), f"the kernels for {part} are not used"
        )

    def faultless(self, key: tuple[object, ...], find_fault: Callable[[], str | None], otherwise: str) -> bool:
        """Whether something proves itself; tried once for each key, with a warning where it does not.

        Args:
            key: What it is called in `verdicts`.
            find_fault: Says what is wrong with it; None for nothing.
            otherwise: What is not done then, for a person.
        """
        if key not in self.verdicts:
            fault = find_fault()
            self.verdicts[key] = fault is None
            if fault is not None:
                logger.warning("%s: %s; MLX's operations are used, which is slower", otherwise, fault)
        return self.verdicts[key]


def _disagreement(ours: Callable[[], Sequence[mx.array]], plain: Callable[[], Sequence[mx.array]]) -> str | None:
    wanted = list(plain())
    mx.eval(wanted)
    try:
        found = list(ours())
        mx.eval(found)
    except (RuntimeError, ValueError) as error:  # a source that does not compile, a launch that is refused
        return f"MLX says {str(error).splitlines()[0][:200]!r}"
    return first_difference(found, wanted)


def first_difference(found: Sequence[mx.array], wanted: Sequence[mx.array]) -> str | None:
    """Say which result is farther than `TOLERANCE` from what it should be, and how far; None when none is."""
    for index, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        if mine.shape != theirs.shape:
            return f"result {index} has shape {mine.shape} instead of {theirs.shape}"
        reference = theirs.astype(mx.float32)
        length = float(np.array(mx.sqrt(mx.square(reference).sum())))
        apart = float(np.array(mx.sqrt(mx.square(mine.astype(mx.float32) - reference).sum())))
        if not apart <= TOLERANCE * length:
            return f"result {index} is {apart:.3g} from one of length {length:.3g}"
    return None


def quantised_alike(matrix: Quantised) -> bool:
    """Whether `HEADER` can multiply a row of a matrix."""
    return (
        suits_dot(matrix.bits, matrix.group_size) and matrix.scales is not None and matrix.scales.dtype == mx.bfloat16
    )


def suits_dot(bits: int, group_size: int) -> bool:
    """Whether `HEADER` can multiply rows quantised so."""
    return bits in (4, 8) and group_size > 0 and group_size % CHUNK == 0


def random_row(*shape: int) -> mx.array:
    """Values for a proof, bfloat16, the same every time."""
    return mx.random.normal(shape, key=mx.random.key(1)).astype(mx.bfloat16)
