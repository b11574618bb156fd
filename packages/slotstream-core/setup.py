"""Builds the native library when a compiler is there; without one the package runs on MLX's own operations.

Nothing is built for macOS, where MLX computes on Metal, nor with SLOTSTREAM_WITHOUT_NATIVE=1: the wheel is pure then.
"""

import os
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Set SLOTSTREAM_SANITIZE=1 to build with the address and undefined-behaviour sanitizers.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
SANITIZING = SANITIZE if os.environ.get("SLOTSTREAM_SANITIZE") == "1" else []

# -ffp-contract=off: a sum is rounded as it is written, whatever the compiler. -g0: no paths of the building machine.
FLAGS = ["-std=gnu11", "-O2", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]

# Only these files may use more than the least of the architecture: they run after the processor was asked.
AVX2 = ["-mavx2", "-mfma"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
X86_FLAGS = {
    "kernels_avx2.c": AVX2,
    "kernels_avx2_subnormal.c": AVX2,
    "kernels_avx512.c": AVX512,
    "pieces_avx2.c": AVX2,
}
# Plain loops, which the compiler turns into vectors.
VECTORISED = {"pieces.c": ["-O3"], "pieces_avx2.c": ["-O3"], "segments.c": ["-O3"]}
TARGET = sysconfig.get_platform()  # of the wheel, which a cross compiler may build elsewhere
WITH_X86 = TARGET == "linux-x86_64"
WITHOUT_NATIVE = not TARGET.startswith("linux-") or os.environ.get("SLOTSTREAM_WITHOUT_NATIVE") == "1"

SOURCES = (
    "kernels_scalar.c",
    "kernels_avx2.c",
    "kernels_avx2_subnormal.c",
    "kernels_avx512.c",
    "kernels_neon.c",
    "variants.c",
    "threads.c",
    "matrices.c",
    "products.c",
    "experts.c",
    "rows.c",
    "pieces.c",
    "pieces_avx2.c",
    "mirrors.c",
    "copies.c",
    "mapped.c",
    "graphs.c",
    "launches.c",
    "segments.c",
    "lanes.c",
    "residency.c",
    "tickets.c",
    "requests.c",
    "steps.c",
    "drafts.c",
    "many_rows.c",
    "module.c",
    "layer_module.c",
    "draft_module.c",
    "residency_module.c",
    "tickets_module.c",
    "launches_module.c",
    "launched_layers.c",
    "launched_layers_module.c",
)
HEADERS = (
    "slotstream_native.h",
    "kernels.h",
    "kernels_template.h",
    "kernels_vectors.h",
    "kernels_prepare.h",
    "kernels_quantized.h",
    "kernels_dense.h",
    "kernels_pointwise.h",
    "threads.h",
    "matrices.h",
    "pieces.h",
    "pieces_body.h",
    "mirrors.h",
    "clock.h",
    "copies.h",
    "mapped.h",
    "launches.h",
    "past_caches.h",
    "tiles_body.h",
    "attention_body.h",
    "segments.h",
    "lanes.h",
    "residency.h",
    "tickets.h",
    "requests.h",
    "launched_layers.h",
    "steps.h",
    "scratch.h",
    "many_rows.h",
    "arrays.h",
    "layer_module.h",
    "residency_module.h",
)


class BuildByFile(build_ext):
    """Compiles each file with the instructions it may use."""

    def build_extension(self, ext: Extension) -> None:
        """Add to the common flags those of `X86_FLAGS` and `VECTORISED`."""
        compile_one = self.compiler._compile

        def compile_with_flags(
            obj: str, src: str, extension: str, cc_args: list[str], extra: list[str], pp_opts: list[str]
        ) -> Any:
            name = Path(src).name
            flags = [*VECTORISED.get(name, []), *(X86_FLAGS.get(name, []) if WITH_X86 else [])]
            return compile_one(obj, src, extension, cc_args, [*extra, *flags], pp_opts)

        self.compiler._compile = compile_with_flags
        try:
            super().build_extension(ext)
        finally:
            self.compiler._compile = compile_one


native = Extension(
    "slotstream_core._native",
    sources=[f"csrc/{name}" for name in SOURCES],
    depends=[f"csrc/{name}" for name in HEADERS],
    include_dirs=["csrc"],
    define_macros=[("SS_WITH_X86_VARIANTS", "1")] if WITH_X86 else [],
    extra_compile_args=[*FLAGS, *SANITIZING],
    extra_link_args=["-pthread", *SANITIZING],
    libraries=["m"],
    py_limited_api=True,
    optional=True,
)

# Loaded before MLX and for everything loaded after it, so it must hold nothing but the one symbol it replaces.
blas = Extension(
    "slotstream_core._blas",
    sources=["csrc/blas_forwarding.c"],
    extra_compile_args=[*FLAGS, *SANITIZING],
    extra_link_args=SANITIZING,
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[] if WITHOUT_NATIVE else [native, blas],
    cmdclass={"build_ext": BuildByFile},
    options={} if WITHOUT_NATIVE else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
