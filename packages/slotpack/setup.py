"""Builds the C coder when a compiler is there; without one the package runs on its Python reference."""

import os

from setuptools import Extension, setup

# Set SLOTPACK_SANITIZE=1 to build with the address and undefined-behaviour sanitizers.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
flags = SANITIZE if os.environ.get("SLOTPACK_SANITIZE") == "1" else []

coder = Extension(
    "slotpack._codec",
    sources=["csrc/codec.c", "csrc/frame.c", "csrc/batch.c", "csrc/encode.c"],
    depends=["csrc/rans.h", "csrc/nibbles.h", "csrc/wide.h", "csrc/quantised.h", "csrc/frame.h"],
    include_dirs=["csrc"],
    extra_compile_args=["-std=c11", "-O3", "-g0", "-Wall", "-Wextra", *flags],
    extra_link_args=flags,
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[coder], options={"bdist_wheel": {"py_limited_api": "cp311"}})
