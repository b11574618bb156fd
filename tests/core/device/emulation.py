"""Kernels compiled for the host: the very source a GPU gets, run by threads of the system."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.device.kernels import HEADER, Kernel, KernelSpec

COMPILER = shutil.which("g++") or shutil.which("clang++")
SHIM = Path(__file__).with_name("emulated.h")

C_NAMES = {
    mx.bfloat16: "__nv_bfloat16",
    mx.float32: "float",
    mx.int32: "int32_t",
    mx.uint32: "uint32_t",
}


@dataclass
class Emulator:
    """A `KernelCompiler` for the host.

    Attributes:
        folder: Where sources and libraries go.
        launches: Names of the kernels run so far.
        spoil: What to replace in every source by what.
    """

    folder: Path
    launches: list[str] = field(default_factory=list)
    spoil: tuple[tuple[str, str], ...] = ()

    def __call__(self, spec: KernelSpec) -> Kernel:
        """Return the kernel of ``spec``; it is compiled when it first runs."""
        built: list[ctypes.CDLL] = []

        def run(*inputs: mx.array) -> list[mx.array]:
            mx.eval(inputs)
            assert len(inputs) == len(spec.inputs)
            held = [host_bytes(array) for array in inputs]
            results = [np.zeros(out.dtype.size * math.prod(out.shape) + 64, np.uint8) for out in spec.outputs]
            if not built:
                built.append(self._build(spec, [array.dtype for array in inputs]))
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*held, *results)]
            built[0].run(*pointers)
            self.launches.append(spec.name)
            return [
                mx.array(data[:-64].view(np.uint8)).view(output.dtype).reshape(output.shape)
                for data, output in zip(results, spec.outputs, strict=True)
            ]

        return run

    def _build(self, spec: KernelSpec, dtypes: list[mx.Dtype]) -> ctypes.CDLL:
        assert COMPILER is not None
        number = len(list(self.folder.glob("*.cpp")))
        source, library = self.folder / f"{number}_{spec.name}.cpp", self.folder / f"{number}_{spec.name}.so"
        types = [f"const {C_NAMES[dtype]}*" for dtype in dtypes] + [f"{C_NAMES[out.dtype]}*" for out in spec.outputs]
        names = [*spec.inputs, *(output.name for output in spec.outputs)]
        body = spec.source
        for right, wrong in self.spoil:
            body = body.replace(right, wrong)
        given = ", ".join(f"{kind} given_{name}" for kind, name in zip(types, names, strict=True))
        source.write_text(
            f'#include "{SHIM}"\n{HEADER}\n'
            + "".join(f"static {kind} {name};\n" for kind, name in zip(types, names, strict=True))
            + f"static void kernel() {{\n{body}\n}}\n"
            + f'extern "C" void run({given}) {{\n'
            + "".join(f"  {name} = given_{name};\n" for name in names)
            + f"  launch({spec.blocks}, {spec.threads}, kernel);\n}}\n"
        )
        command = [COMPILER, "-std=c++17", "-O0", "-shared", "-fPIC", "-o", str(library), str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return ctypes.CDLL(str(library))


def host_bytes(array: mx.array) -> npt.NDArray[np.uint8]:
    """The bytes of an array, aligned as a device's are."""
    stored = np.array(mx.contiguous(array).view(mx.uint8)).reshape(-1)
    room = np.zeros(stored.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + stored.nbytes] = stored
    return room[start : start + stored.nbytes]
