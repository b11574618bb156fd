"""Products by a ggml that the caller built, through its C interface: the other side of `native_products`.

Weights are Q4_0: 4.5 bits a value, as 4 bits in groups of 64 with bfloat16 scales and biases are. They are random
bytes with sound scales; ggml rounds activations to 8 bits, which the native library does not. Nothing of ggml is needed
unless this class is made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Final

import numpy as np

from slotstream_core.experts.slot_memory import use_large_pages

F32, Q4_0, I32 = 0, 2, 26
BLOCK_VALUES, BLOCK_BYTES = 32, 18
LIBRARIES: Final = ("libggml-base.so", "libggml-cpu.so")


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


_FUNCTIONS: Final = {
    "ggml_init": (c_void_p, [_InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_new_tensor_2d": (c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "ggml_new_tensor_3d": (c_void_p, [c_void_p, c_int, c_int64, c_int64, c_int64]),
    "ggml_mul_mat": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ggml_mul_mat_id": (c_void_p, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_get_base": (c_void_p, [c_void_p]),
    "ggml_backend_buffer_get_size": (c_size_t, [c_void_p]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_reg_dev_get": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_cpu_reg": (c_void_p, []),
    "ggml_backend_cpu_init": (c_void_p, []),
    "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
    "ggml_backend_get_default_buffer_type": (c_void_p, [c_void_p]),
    "ggml_log_set": (None, [c_void_p, c_void_p]),
}


class GgmlPeer:
    """A ggml CPU backend.

    Args:
        directory: Holds `LIBRARIES`.
        threads: Threads that compute.
    """

    def __init__(self, directory: Path, *, threads: int) -> None:
        loaded = [ctypes.CDLL(str(directory / name), mode=ctypes.RTLD_GLOBAL) for name in LIBRARIES]
        self._functions: dict[str, Callable[..., int]] = {}
        for name, (result, arguments) in _FUNCTIONS.items():
            function = next(getattr(library, name) for library in loaded if hasattr(library, name))
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        self._silence = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(lambda level, text, user: None)
        self._call("ggml_log_set", ctypes.cast(self._silence, c_void_p), None)
        self._backend = self._call("ggml_backend_cpu_init")
        self._call("ggml_backend_cpu_set_n_threads", self._backend, threads)
        self._plain = self._call("ggml_backend_get_default_buffer_type", self._backend)

    def _call(self, name: str, *arguments: object) -> int:
        return self._functions[name](*arguments)

    def _repacked(self) -> int:
        """The buffer type that rearranges weights for the processor as they are copied into it."""
        registry = self._call("ggml_backend_cpu_reg")
        found = self._call("ggml_backend_reg_get_proc_address", registry, b"ggml_backend_dev_get_extra_bufts")
        extra = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(found)
        types = extra(self._call("ggml_backend_reg_dev_get", registry, 0))
        kinds: list[int] = []
        while types and types[len(kinds)]:
            kinds.append(int(types[len(kinds)] or 0))
        if not kinds:
            raise SystemExit("this ggml has no repacking buffer type; build it with GGML_CPU_REPACK=ON")
        return kinds[-1]

    def products(
        self, *, matrices: int, shape: tuple[int, int], members: int, rows: int, repack: bool
    ) -> list[Callable[[], None]]:
        """One call for each of many weights, so that none is found in a cache.

        Args:
            matrices: How many weights.
            shape: Rows and columns of one.
            members: Matrices of that shape in a weight, all of them used once in a call; 1 for a plain product.
            rows: Rows of activations.
            repack: Whether ggml may rearrange the weights.
        """
        weights = self._call("ggml_init", _InitParams(1 << 20, None, True))
        made = [
            self._call("ggml_new_tensor_3d", weights, Q4_0, shape[1], shape[0], members)
            if members > 1
            else self._call("ggml_new_tensor_2d", weights, Q4_0, shape[1], shape[0])
            for _ in range(matrices)
        ]
        kind = self._repacked() if repack else self._plain
        buffer = self._call("ggml_backend_alloc_ctx_tensors_from_buft", weights, kind)
        if not buffer:
            raise SystemExit("ggml could not allocate the weights")
        size = self._call("ggml_backend_buffer_get_size", buffer)
        memory = (ctypes.c_char * size).from_address(self._call("ggml_backend_buffer_get_base", buffer))
        use_large_pages(memoryview(memory).cast("B"))
        data = _random_blocks(shape[0] * shape[1] * members)
        for tensor in made:
            self._call("ggml_backend_tensor_set", tensor, data.ctypes.data, 0, data.nbytes)
        return [self._product(tensor, shape, members, rows) for tensor in made]

    def _product(self, weight: int, shape: tuple[int, int], members: int, rows: int) -> Callable[[], None]:
        context = self._call("ggml_init", _InitParams(1 << 20, None, True))
        if members > 1:
            x = self._call("ggml_new_tensor_3d", context, F32, shape[1], 1, rows)
            ids = self._call("ggml_new_tensor_2d", context, I32, members, rows)
            y = self._call("ggml_mul_mat_id", context, weight, x, ids)
        else:
            x = self._call("ggml_new_tensor_2d", context, F32, shape[1], rows)
            ids = 0
            y = self._call("ggml_mul_mat", context, weight, x)
        graph = self._call("ggml_new_graph", context)
        self._call("ggml_build_forward_expand", graph, y)
        if not self._call("ggml_backend_alloc_ctx_tensors_from_buft", context, self._plain):
            raise SystemExit("ggml could not allocate the activations")
        values = np.random.default_rng(1).standard_normal((rows, shape[1])).astype(np.float32)
        self._call("ggml_backend_tensor_set", x, values.ctypes.data, 0, values.nbytes)
        if ids:
            every = np.tile(np.arange(members, dtype=np.int32), (rows, 1))
            self._call("ggml_backend_tensor_set", ids, every.ctypes.data, 0, every.nbytes)

        def run() -> None:
            self._call("ggml_backend_graph_compute", self._backend, graph)

        return run


def _random_blocks(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Q4_0 blocks: a float16 scale, then 16 bytes of two values each."""
    blocks = np.random.default_rng(2).integers(0, 256, (count // BLOCK_VALUES, BLOCK_BYTES), dtype=np.uint8)
    blocks[:, :2] = np.full(1, 0.01, np.float16).view(np.uint8)
    return blocks
